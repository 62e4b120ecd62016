// report.c: prints the lines of checks and costs, and writes the JSON. Only rank 0 prints and
// records.
#include "judge/frame/frame.h"
#include "judge/frame/process.h"
#include "common/device/device.h"
#include "common/base/output.h"
#include "common/tensor/random.h"
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIDEST_COLUMN = 48 }; // a longer name shifts its own line only

// Returns the list with room for one more item. The room doubles when count reaches a power of two.
static void *grown(void *list, size_t count, size_t item) {
    if ((count & (count - 1)) != 0) return list;
    list = realloc(list, (count == 0 ? 1 : 2 * count) * item);
    if (list == NULL) fault("out of memory for %zu records", 2 * count);
    return list;
}

const char *report_mark(Run *run, bool pass, const char *good, const char *bad) {
    static const char *const painted[2][2] = { { "\033[31mFAIL\033[0m", "\033[31mFAIL\033[0m" },
                                               { "\033[32mok\033[0m", "\033[32mPASS\033[0m" } };
    if (!run->state->program->color) return pass ? good : bad;
    return painted[pass][strcmp(good, "PASS") == 0];
}

// ---- progress, on a terminal's stderr ----

void report_clear_progress(Run *run) {
    if (run->state->progressed > 0) fprintf(stderr, "\r\033[K");
    run->state->progressed = 0;
}
void progress(Run *run, const char *what, size_t done, size_t all) {
    enum { PATIENCE = 2 }; // seconds
    const double pause = 0.2, t = now();
    struct RunState *s = run->state;
    size_t rank, size;
    if (!run->is_root || !isatty(STDERR_FILENO) || process_launched(&rank, &size)) return;
    if (done >= all) report_clear_progress(run);
    else if (t - s->program->started > PATIENCE && t - s->progressed > pause) {
        fprintf(stderr, "\r\033[K%s %zu of %zu", what, done, all);
        s->progressed = t;
    }
}

static void print_line(const char *format, va_list args) {
    vprintf(format, args);
    if (*format == 0 || format[strlen(format) - 1] != '\n') putchar('\n');
}

void say(Run *run, const char *format, ...) {
    if (!run->is_root) return;
    report_clear_progress(run);
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
}

void say_detail(Run *run, const char *format, ...) {
    if (!run->is_root || !run->state->program->verbose) return;
    report_clear_progress(run);
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
}

// ---- configuration ----

static void config_set(Run *run, const char *name, const char *text, double number) {
    struct RunState *s = run->state;
    if (!run->is_root) return;
    size_t i = 0;
    while (i < s->config_count && strcmp(s->configs[i].name, name) != 0) i++;
    if (i == s->config_count) {
        s->configs = grown(s->configs, s->config_count++, sizeof *s->configs);
        s->configs[i] = (ConfigRecord){ .name = text_copy(name) };
    }
    free(s->configs[i].text);
    s->configs[i].text = text == NULL ? NULL : text_copy(text);
    s->configs[i].number = number;
}
void report_config_number(Run *run, const char *name, double value) {
    config_set(run, name, NULL, value);
}
void report_config_text(Run *run, const char *name, const char *value) {
    config_set(run, name, value, 0);
}

// ---- checks ----

void report_check(Run *run, CheckRecord check, const char *error_text, const char *limit_text) {
    struct RunState *s = run->state;
    size_t what = strlen(check.what), name = strlen(check.name);
    report_clear_progress(run);
    if (what > s->what_width && what <= WIDEST_COLUMN) s->what_width = what;
    if (name > s->name_width && name <= WIDEST_COLUMN) s->name_width = name;
    if (s->program->verbose || !check.pass) {
        printf("%s %-*s   %-*s   ", s->program->tag, (int)s->what_width, check.what,
               (int)s->name_width, check.name);
        printf("%-11s  %-13s  %s\n", error_text, limit_text,
               report_mark(run, check.pass, "ok", "FAIL"));
    }
    check.what = text_copy(check.what);
    check.name = text_copy(check.name);
    s->checks = grown(s->checks, s->check_count, sizeof *s->checks);
    s->checks[s->check_count++] = check;
    s->checks_failed += !check.pass;
}

void report_detail(const char *text) { printf("    %s\n", text); }

// ---- costs ----

// Returns whether each given prediction equals the measured value. Returns false for NaN.
static bool pair_holds(CostPair p) { return p.agree && p.predicted == p.measured; }

static CostRecord cost_judge(const CostPair *pairs, size_t ranks) {
    CostRecord r = { .lo = pairs[0], .hi = pairs[0], .pass = true };
    for (size_t i = 0; i < ranks; i++) {
        r.lo.predicted = fmin(r.lo.predicted, pairs[i].predicted);
        r.hi.predicted = fmax(r.hi.predicted, pairs[i].predicted);
        r.lo.measured = fmin(r.lo.measured, pairs[i].measured);
        r.hi.measured = fmax(r.hi.measured, pairs[i].measured);
        if (r.pass && !pair_holds(pairs[i])) {
            r.pass = false;
            r.wrong = pairs[i];
            r.wrong_rank = i;
        }
    }
    return r;
}

void check_cost(Run *run, const char *id, const char *name, const char *unit, Predicted by_formula,
                Predicted by_play, double measured) {
    struct RunState *s = run->state;
    if (!by_formula.given && !by_play.given)
        fault("cost %s: neither a formula nor a list predicts it", id);
    CostPair local = { .predicted = by_formula.given ? by_formula.value : by_play.value,
                       .measured = measured,
                       .id = text_hash(id) };
    local.agree = !by_play.given || by_play.value == measured;
    size_t *sizes = NULL;
    ledger_pause();
    void *all = side_gather(&local, sizeof local, &sizes);
    ledger_resume();
    if (run->world->rank == 0) {
        const CostPair *pairs = all;
        for (size_t i = 1; i < run->world->size; i++)
            if (pairs[i].id != local.id) fault("cost %s: rank %zu passes another cost here", id, i);
        CostRecord r = cost_judge(pairs, run->world->size);
        r.played = !by_formula.given;
        r.id = text_copy(id);
        r.name = text_copy(name);
        r.unit = text_copy(unit);
        s->costs = grown(s->costs, s->cost_count, sizeof *s->costs);
        s->costs[s->cost_count++] = r;
        s->costs_failed += !r.pass;
        if (!r.pass) diagnose_cost(run, &r);
    }
    free(all);
    free(sizes);
}

void check_costs(Run *run, const char *ids, const char *names, const CostRow *row) {
    for (; row->id; row++) {
        char id[96], name[96];
        snprintf(id, sizeof id, ids, row->id);
        snprintf(name, sizeof name, names, row->name);
        check_cost(run, id, name, row->unit, row->by_formula, row->by_play, row->measured);
    }
}

const CostRecord *report_cost(Run *run, const char *id) {
    const struct RunState *s = run->state;
    for (size_t i = s->cost_count; i-- > 0;)
        if (strcmp(s->costs[i].id, id) == 0) return &s->costs[i];
    fault("there is no cost \"%s\": call check_cost before, or correct the id", id);
}

static void number_text(char *text, size_t room, double value) {
    snprintf(text, room, value == floor(value) && fabs(value) < 0x1p53 ? "%.0f" : "%.6g", value);
}

// Writes one number if the ranks agree, otherwise the range.
static void range_text(char text[72], double lo, double hi) {
    char a[32], b[32];
    number_text(a, sizeof a, lo);
    number_text(b, sizeof b, hi);
    snprintf(text, 72, lo == hi || strcmp(a, b) == 0 ? "%s" : "%s..%s", a, b);
}

void report_costs(Run *run) {
    struct RunState *s = run->state;
    char text[72];
    int widths[4] = { 4, 4, 9, 8 }; // at least as wide as the headings
    bool verbose = s->program->verbose;
    if (s->cost_count == 0 || (!verbose && !s->costs_failed)) return;
    for (size_t i = 0; i < s->cost_count; i++) {
        const CostRecord *c = &s->costs[i];
        if ((int)strlen(c->name) > widths[0]) widths[0] = (int)strlen(c->name);
        if ((int)strlen(c->unit) > widths[1]) widths[1] = (int)strlen(c->unit);
        range_text(text, c->lo.predicted, c->hi.predicted);
        if ((int)strlen(text) > widths[2]) widths[2] = (int)strlen(text);
        range_text(text, c->lo.measured, c->hi.measured);
        if ((int)strlen(text) > widths[3]) widths[3] = (int)strlen(text);
    }
    printf("%s %-*s   %-*s   ", s->program->tag, widths[0], "cost", widths[1], "unit");
    printf("%*s   %*s\n", widths[2], "predicted", widths[3], "measured");
    for (size_t i = 0; i < s->cost_count; i++) {
        const CostRecord *c = &s->costs[i];
        if (c->pass && !verbose) continue;
        range_text(text, c->lo.predicted, c->hi.predicted);
        printf("%s %-*s   %-*s   %*s   ", s->program->tag, widths[0], c->name, widths[1], c->unit,
               widths[2], text);
        range_text(text, c->lo.measured, c->hi.measured);
        printf("%*s   %s\n", widths[3], text, report_mark(run, c->pass, "ok", "FAIL"));
        if (!c->pass)
            printf("    %s: rank %zu measured %.17g, predicted %.17g%s\n", c->name, c->wrong_rank,
                   c->wrong.measured, c->wrong.predicted,
                   c->wrong.agree ? "" : ", and its list of steps gives another number");
    }
}

// ---- JSON ----

// Returns the number of bytes of the UTF-8 character at the beginning of text. Returns 0 if the
// character is not valid (RFC 3629), for example too short, overlong, half of a surrogate pair, or
// beyond the last character.
static size_t utf8_length(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    size_t n = c[0] < 0x80   ? 1
               : c[0] < 0xc2 ? 0
               : c[0] < 0xe0 ? 2
               : c[0] < 0xf0 ? 3
               : c[0] < 0xf5 ? 4
                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80) return 0;
    if ((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f)) return 0;
    if ((c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f)) return 0;
    return n;
}

// Adds a text as valid JSON. A path may hold any byte, but JSON holds only characters. So each
// invalid byte becomes U+FFFD.
static void add_text(cJSON *object, const char *name, const char *text) {
    char *valid = host_alloc(3 * strlen(text) + 1), *end = valid;
    while (*text != 0) {
        size_t n = utf8_length(text), bytes = n > 0 ? n : 1;
        const char *character = n > 0 ? text : "\xef\xbf\xbd";
        size_t length = n > 0 ? n : 3;
        memcpy(end, character, length);
        end += length;
        text += bytes;
    }
    cJSON_AddStringToObject(object, name, valid);
    free(valid);
}

// Adds a number, or null for NaN and infinity.
static void add_number(cJSON *object, const char *name, double value) {
    cJSON_AddNumberToObject(object, name, value);
}

// Adds --reduce and --seed, then the program's own options, then the values that the program has
// set with report_config_number() and report_config_text().
static void add_config(cJSON *config, Run *run) {
    const struct RunState *s = run->state;
    const OptionValues *set = &s->settings;
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, run->seed);
    add_text(config, "reduce", run->reduce == REDUCE_FAST ? "fast" : "ordered");
    cJSON_AddRawToObject(config, "seed", seed); // as raw text, because a double has only 53 bits
    for (size_t i = set->common; i < set->count; i++) {
        const OptionValue *o = &set->list[i];
        bool replaced = false;
        for (size_t k = 0; k < s->config_count; k++)
            replaced |= strcmp(s->configs[k].name, o->option.name) == 0;
        if (replaced || (o->option.value != NULL && o->text == NULL)) continue;
        if (o->option.value == NULL) cJSON_AddBoolToObject(config, o->option.name, o->given);
        else if (option_value_is_number(o))
            add_number(config, o->option.name, option_value_real(o));
        else add_text(config, o->option.name, o->text);
    }
    for (size_t i = 0; i < s->config_count; i++) {
        const ConfigRecord *c = &s->configs[i];
        if (strcmp(c->name, "reduce") == 0 || strcmp(c->name, "seed") == 0) continue;
        if (c->text == NULL) add_number(config, c->name, c->number);
        else add_text(config, c->name, c->text);
    }
}

static cJSON *new_item(cJSON *list) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    return item;
}

static void add_check(cJSON *item, const CheckRecord *c) {
    add_text(item, "name", c->name);
    add_text(item, "what", c->what);
    add_number(item, "error", c->error);
    add_number(item, "limit", c->limit);
    cJSON_AddBoolToObject(item, "pass", c->pass);
}

static void add_cost(cJSON *item, const CostRecord *c) {
    // The pair has the largest numbers of all ranks, or the numbers of the first wrong rank.
    const CostPair *pair = c->pass ? &c->hi : &c->wrong;
    add_text(item, "id", c->id);
    add_text(item, "name", c->name);
    add_text(item, "unit", c->unit);
    add_number(item, "predicted", pair->predicted);
    add_number(item, "measured", pair->measured);
    cJSON_AddBoolToObject(item, "played", c->played);
    cJSON_AddBoolToObject(item, "pass", c->pass);
}

void report_json(Run *run, const char *path, double seconds, bool pass) {
    const struct RunState *s = run->state;
    char digest[24];
    cJSON *page = cJSON_CreateObject();
    add_text(page, "lesson", lesson_info.id);
    add_text(page, "title", lesson_info.name);
    add_text(page, "backend", device_name());
    add_text(page, "transport", transport_name[s->program->choice.transport]);
    add_text(page, "precision", REAL_NAME);
    add_number(page, "ranks", (double)run->world->size);
    add_config(cJSON_AddObjectToObject(page, "config"), run);
    cJSON *checks = cJSON_AddArrayToObject(page, "checks"),
          *costs = cJSON_AddArrayToObject(page, "costs");
    for (size_t i = 0; i < s->check_count; i++) add_check(new_item(checks), &s->checks[i]);
    for (size_t i = 0; i < s->cost_count; i++) add_cost(new_item(costs), &s->costs[i]);
    static const char *const endings[PAGE_ENDINGS] = { "answer", "cost", "use_when" };
    for (size_t i = 0; i < PAGE_ENDINGS; i++)
        if (s->endings[i] != NULL && pass) add_text(page, endings[i], s->endings[i]);
    snprintf(digest, sizeof digest, "%016" PRIx64, s->digest);
    if (s->digest) add_text(page, "digest", digest);
    else cJSON_AddNullToObject(page, "digest");
    add_number(page, "seconds", seconds);
    cJSON_AddBoolToObject(page, "pass", pass);
    char *text = cJSON_PrintUnformatted(page);
    if (!text) fault("out of memory for the JSON of this run");
    Output o = output_open("json", path);
    fprintf(o.f, "%s\n", text);
    output_close(&o);
    free(text);
    cJSON_Delete(page);
}

void report_free(Run *run) {
    struct RunState *s = run->state;
    for (size_t i = 0; i < s->config_count; i++) {
        free(s->configs[i].name);
        free(s->configs[i].text);
    }
    for (size_t i = 0; i < s->check_count; i++) {
        free(s->checks[i].what);
        free(s->checks[i].name);
    }
    for (size_t i = 0; i < s->cost_count; i++) {
        free(s->costs[i].id);
        free(s->costs[i].name);
        free(s->costs[i].unit);
    }
    for (size_t i = 0; i < PAGE_ENDINGS; i++) free(s->endings[i]);
    for (PageText *t = s->texts, *before; t; t = before) {
        before = t->before;
        free(t);
    }
    free(s->wrong);
    free(s->configs);
    free(s->checks);
    free(s->costs);
    options_free(&s->settings);
}
