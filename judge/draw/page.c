// page.c: what a reader sees without --verbose: the title, the lesson's own lines, pictures and table of results, one
// line per claim that was checked, and everything that failed in full. The log, with a line per check and cost, is
// report.c's.
#include "judge/frame/frame.h"
#include "common/device/device.h"
#include "common/device/blas_kernels.h"
#include "common/comm/clock.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { NARROW = 40, WIDE = 512, USUAL = 100, WIDEST_PARTS = 120 };         // columns

// A launcher gives its processes terminals of their own, wherever their output goes.
bool page_on_terminal(void) {
    size_t rank, size;
    return isatty(STDOUT_FILENO) && !comm_launched_by_mpi(&rank, &size);
}
size_t page_width(void) {
    struct winsize window;
    const char *columns = getenv("COLUMNS");
    size_t width = columns ? (size_t)strtoul(columns, NULL, 10) : 0;
    if (!width && page_on_terminal() && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0) width = window.ws_col;
    return width >= NARROW && width <= WIDE ? width : USUAL;
}

// ---------------------------------------------------------------- progress, on a terminal's stderr

void page_clear_progress(Run *run) {
    if (run->state->progressed > 0) fprintf(stderr, "\r\033[K");
    run->state->progressed = 0;
}
void progress(Run *run, const char *what, size_t done, size_t all) {
    enum { PATIENCE = 2 };                     // seconds
    const double pause = 0.2, t = now();
    struct RunState *s = run->state;
    size_t rank, size;
    if (!run->is_root || !isatty(STDERR_FILENO) || comm_launched_by_mpi(&rank, &size)) return;
    if (done >= all) page_clear_progress(run);
    else if (t - s->program->started > PATIENCE && t - s->progressed > pause) {
        fprintf(stderr, "\r\033[K%s %zu of %zu", what, done, all);
        s->progressed = t;
    }
}

// ---------------------------------------------------------------- text that is broken at spaces

// Prints text from column `at` on; further lines begin at column `indent`.
void page_wrap(const char *text, size_t at, size_t indent) {
    size_t width = page_width();
    while (*text) {
        size_t n = strcspn(text, " ");
        if (at + n > width && at > indent) {
            printf("\n%*s", (int)indent, "");
            at = indent;
        }
        printf("%.*s", (int)n, text);
        at += n;
        text += n;
        if (*text == ' ') {
            text++;
            if (*text && at + 1 + strcspn(text, " ") <= width) {
                putchar(' ');
                at++;
            } else if (*text) {
                printf("\n%*s", (int)indent, "");
                at = indent;
            }
        }
    }
    putchar('\n');
}

void page_title(const Program *p, size_t ranks) {
    char text[512];
    size_t n = 0, indent = strlen(p->tag) + 2;
    printf("%s  ", p->tag);
    page_wrap(lesson_info.question, indent, indent);
    n += (size_t)snprintf(text + n, sizeof text - n, "%zu rank%s, %s (%s); %s %s%s; ", ranks, ranks == 1 ? "" : "s",
                          p->choice.transport, p->choice.why, device_name(), REAL_NAME, p->tf32 ? " in tf32" : "");
    if (p->threads > 1)
        n += (size_t)snprintf(text + n, sizeof text - n, "%zu threads each%s; ", p->threads, threads_advice());
    const ClockConfig *c = clock_config();
    if (c->simulated)
        n += (size_t)snprintf(text + n, sizeof text - n, "simulated clock: device %s, link %s", c->device.name,
                              c->link.name);
    if (c->simulated && c->node > 0)
        n += (size_t)snprintf(text + n, sizeof text - n, " in nodes of %zu, %s between", c->node, c->between.name);
    if (c->simulated) n += (size_t)snprintf(text + n, sizeof text - n, "; ");
    if (kernels_advised() && !getenv("OPENBLAS_CORETYPE"))
        n += (size_t)snprintf(text + n, sizeof text - n, "%s kernels (faster: OPENBLAS_CORETYPE=%s); ",
                              kernels_in_use(), kernels_advised());
    snprintf(text + n, sizeof text - n, "%sseed %" PRIu64, p->launch.reduce == REDUCE_FAST ? "reduce fast; " : "",
             p->seed);
    printf("%*s", (int)indent, "");
    page_wrap(text, indent, indent);
    putchar('\n');
}

// ---------------------------------------------------------------- units for people

// Three digits and the unit's prefix: 2.60 ms, 338 kB.
static void scaled(char *text, size_t room, double value, const char *unit, bool time) {
    static const char *const large[] = { "", "k", "M", "G", "T", "P" }, *const small[] = { "p", "n", "u", "m", "" };
    const char *const *prefix = time ? small : large;
    size_t last = time ? 4 : 5, i = 0;
    while (i < last && fabs(value) >= 999.5) { value /= 1000; i++; }
    int digits = value == floor(value) && i == 0 ? 0 : fabs(value) < 9.995 ? 2 : fabs(value) < 99.95 ? 1 : 0;
    if (time && value == 0) snprintf(text, room, "0 s");
    else snprintf(text, room, "%.*f %s%s", digits, value, prefix[i], unit);
}
void page_value(char *text, size_t room, double value, const char *unit) {
    if (!strcmp(unit, "ps")) scaled(text, room, value, "s", true);
    else if (!strncmp(unit, "bytes", 5)) scaled(text, room, value, "B", false);
    else if (!strcmp(unit, "FLOPs")) scaled(text, room, value, "FLOP", false);
    else if (!strcmp(unit, "millionths")) snprintf(text, room, "%.1f %%", value / 1e4);
    else snprintf(text, room, "%.6g", value);
}

void page_cell(char cell[24], double value, const char *unit) {
    *cell = '=';
    page_value(cell + 1, 23, value, unit);
}

// ---------------------------------------------------------------- the table of results

static void cell_text(Run *run, const char *cell, char text[64]) {
    const struct RunState *s = run->state;
    *text = 0;
    if (!cell) return;
    if (*cell == '=') {
        snprintf(text, 64, "%s", cell + 1);
        return;
    }
    for (size_t i = s->cost_count; i-- > 0;) {
        const CostRecord *c = &s->costs[i];
        if (strcmp(c->id, cell)) continue;
        char lo[32], hi[32];
        page_value(lo, sizeof lo, c->lo.measured, c->unit);
        page_value(hi, sizeof hi, c->hi.measured, c->unit);
        const char *a = strrchr(lo, ' '), *b = strrchr(hi, ' ');
        if (!strcmp(lo, hi)) snprintf(text, 64, "%s", lo);
        else if (a && b && !strcmp(a, b)) snprintf(text, 64, "%.*s..%s", (int)(a - lo), lo, hi);     // 46..246 kB
        else snprintf(text, 64, "%s..%s", lo, hi);
        return;
    }
    fault("results(): there is no cost \"%s\"", cell);
}

void results(Run *run, const char *const *columns, const Result *rows) {
    if (!run->is_root) return;
    size_t label = 0, width[RESULT_COLUMNS] = {0}, n = 0;
    char text[64];
    for (; n < RESULT_COLUMNS && columns[n]; n++) width[n] = strlen(columns[n]);
    for (const Result *r = rows; r->what; r++) {
        if (strlen(r->what) > label) label = strlen(r->what);
        for (size_t i = 0; i < n; i++) {
            cell_text(run, r->cell[i], text);
            if (strlen(text) > width[i]) width[i] = strlen(text);
        }
    }
    bool formulas = false;
    for (const Result *r = rows; r->what; r++) formulas |= r->formula != NULL;
    printf("\n  %*s", (int)label, "");
    for (size_t i = 0; i < n; i++) printf("  %*s", (int)width[i], columns[i]);
    printf("%s\n", formulas ? "  formula" : "");
    for (const Result *r = rows; r->what; r++) {
        printf("  %-*s", (int)label, r->what);
        for (size_t i = 0; i < n; i++) {
            cell_text(run, r->cell[i], text);
            printf("  %*s", (int)width[i], text);
        }
        printf("%s%s\n", r->formula ? "  " : "", r->formula ? r->formula : "");
    }
}

// ---------------------------------------------------------------- claims

// "SGD: 1F1B = accumulation, gradients" is the claim "1F1B = accumulation", checked of "gradients" under "SGD".
typedef struct { char claim[96], part[128], with[32]; } Named;
static Named named(const CheckRecord *c) {
    Named n = {0};
    const char *what = c->what, *colon = strstr(what, ": "), *equals = strstr(what, " = ");
    if (colon && equals && colon < equals) {
        snprintf(n.with, sizeof n.with, "%.*s", (int)(colon - what), what);
        what = colon + 2;
    }
    const char *comma = equals ? strstr(equals, ", ") : NULL;
    snprintf(n.claim, sizeof n.claim, "%.*s", comma ? (int)(comma - what) : (int)strlen(what), what);
    snprintf(n.part, sizeof n.part, "%s", comma ? comma + 2 : c->name);
    static const char *const ends[] = { ", worst ", " of every step", " of step " };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        char *end = strstr(n.part, ends[i]);
        if (end) *end = 0;
    }
    return n;
}

// A list of different texts, joined by ", ".
typedef struct { char text[512]; size_t count; } Parts;
static void parts_add(Parts *list, const char *part) {
    size_t length = strlen(list->text), n = strlen(part);
    if (!n) return;
    for (const char *at = list->text; (at = strstr(at, part)); at += n)
        if ((at == list->text || at[-1] == ' ') && (at[n] == 0 || at[n] == ',')) return;
    list->count++;
    snprintf(list->text + length, sizeof list->text - length, "%s%s", length ? ", " : "", part);
}

static void print_claim(const struct RunState *s, size_t first, size_t widest) {
    Named head = named(&s->checks[first]);
    Parts parts = {0}, with = {0};
    double error = 0, limit = 0, least = INFINITY;
    size_t kinds[CHECK_KINDS] = {0}, count = 0, failed = 0;
    for (size_t i = first; i < s->check_count; i++) {
        const CheckRecord *c = &s->checks[i];
        Named n = named(c);
        if (strcmp(n.claim, head.claim)) continue;
        parts_add(&parts, n.part);
        parts_add(&with, n.with);
        kinds[c->kind]++;
        count++;
        failed += !c->pass;
        if (c->kind == CHECK_CLOSE && c->error >= error) { error = c->error; limit = c->limit; }
        if (c->kind == CHECK_DIFFERS && c->error < least) least = c->error;
    }
    char verdict[96];
    if (failed) snprintf(verdict, sizeof verdict, "%zu of %zu do not hold: see above", failed, count);
    else if (kinds[CHECK_DIFFERS]) snprintf(verdict, sizeof verdict, "differs, as it must (%.1e)", least);
    else if (kinds[CHECK_CLOSE]) snprintf(verdict, sizeof verdict, "within %.1e (largest error %.1e)", limit, error);
    else snprintf(verdict, sizeof verdict, kinds[CHECK_BITS] ? "every bit" : "holds");
    char text[1200];
    if (parts.count > 6 || strlen(parts.text) > WIDEST_PARTS)
        snprintf(parts.text, sizeof parts.text, "%zu checks", parts.count);
    snprintf(text, sizeof text, "%s%s%s: %s", parts.text, with.count ? "; " : "", with.text, verdict);
    printf("  %-*s  ", (int)widest, head.claim);
    size_t indent = widest + 4;
    page_wrap(text, strlen(head.claim) > widest ? strlen(head.claim) + 4 : indent, indent);
}

void page_claims(Run *run) {
    const struct RunState *s = run->state;
    enum { WIDEST = 36 };
    char costs[] = "predicted = measured";
    size_t widest = s->cost_count ? strlen(costs) : 0;
    putchar('\n');
    for (int print = 0; print < 2; print++)
        for (size_t i = 0; i < s->check_count; i++) {
            Named n = named(&s->checks[i]);
            bool seen = false;
            for (size_t k = 0; k < i && !seen; k++) {
                Named before = named(&s->checks[k]);
                seen = !strcmp(before.claim, n.claim);
            }
            if (seen) continue;
            if (print) print_claim(s, i, widest);
            else if (strlen(n.claim) > widest && strlen(n.claim) <= WIDEST) widest = strlen(n.claim);
        }
    if (s->cost_count)
        printf("  %-*s  %zu of %zu costs%s\n", (int)widest, costs, s->cost_count - s->costs_failed, s->cost_count,
               s->costs_failed ? "" : ", exactly; each check and cost: --verbose");
}
