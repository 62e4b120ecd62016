// page.c: prints the page of a lesson without --verbose. The page has the title, the lesson's own
// lines, pictures and table of results, and every failure in full. Then one line summarises all
// comparisons. The page ends with Answer, Cost and Use it when, or with Wrong, and the verdict.
#include "judge/frame/frame.h"
#include "judge/frame/process.h"
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

enum { NARROW = 40, WIDE = 512, USUAL = 100 }; // columns

// Returns whether the output goes to a terminal. A launcher gives each process its own terminal, so
// isatty() alone does not show where the output goes.
bool page_on_terminal(void) {
    size_t rank, size;
    return isatty(STDOUT_FILENO) && !process_launched(&rank, &size);
}
size_t page_width(void) {
    struct winsize window;
    const char *columns = getenv("COLUMNS");
    size_t width = columns ? (size_t)strtoul(columns, NULL, 10) : 0;
    if (!width && page_on_terminal() && ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0)
        width = window.ws_col;
    return width >= NARROW && width <= WIDE ? width : USUAL;
}

// ---- text broken at spaces ----

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

const char *threads_advice(void) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME")) return "";
    return " (they wait busily; OMP_WAIT_POLICY=passive lets them sleep)";
}

void page_title(const Program *p, size_t ranks) {
    enum { INDENT = 2 };
    char text[512];
    size_t n = 0, indent = strlen(p->tag) + 2;
    printf("%s  ", p->tag);
    page_wrap(lesson_info.question, indent, indent);
    n += (size_t)snprintf(text + n, sizeof text - n, "%zu rank%s, %s (%s); %s %s%s; ", ranks,
                          ranks == 1 ? "" : "s", transport_name[p->choice.transport], p->choice.why,
                          device_name(), REAL_NAME, p->tf32 ? " in tf32" : "");
    if (p->threads > 1)
        n += (size_t)snprintf(text + n, sizeof text - n, "%zu threads each%s; ", p->threads,
                              threads_advice());
    const ClockConfig *c = clock_config();
    if (c->simulated)
        n += (size_t)snprintf(text + n, sizeof text - n, "simulated clock: device %s, link %s",
                              c->device.name, c->link.name);
    if (c->simulated && c->node > 0)
        n += (size_t)snprintf(text + n, sizeof text - n, " in nodes of %zu, %s between", c->node,
                              c->between.name);
    if (c->simulated && c->rails > 0)
        n += (size_t)snprintf(text + n, sizeof text - n, " over %zu card%s", c->rails,
                              c->rails == 1 ? "" : "s");
    if (c->simulated) n += (size_t)snprintf(text + n, sizeof text - n, "; ");
    if (kernels_advised() && !getenv("OPENBLAS_CORETYPE"))
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "%s kernels (faster: OPENBLAS_CORETYPE=%s); ", kernels_in_use(),
                              kernels_advised());
    snprintf(text + n, sizeof text - n, "%sseed %" PRIu64,
             p->launch.reduce == REDUCE_FAST ? "reduce fast; " : "", p->seed);
    printf("%*s", INDENT, "");
    page_wrap(text, INDENT, INDENT);
    putchar('\n');
}

// ---- the table of results ----

static void cell_text(Run *run, const char *cell, char text[64]) {
    *text = 0;
    if (!cell) return;
    if (*cell == '=') {
        snprintf(text, 64, "%s", cell + 1);
        return;
    }
    const CostRecord *c = report_cost(run, cell);
    char lo[32], hi[32];
    page_value(lo, sizeof lo, c->lo.measured, c->unit);
    page_value(hi, sizeof hi, c->hi.measured, c->unit);
    const char *a = strrchr(lo, ' '), *b = strrchr(hi, ' ');
    if (!strcmp(lo, hi)) snprintf(text, 64, "%s", lo);
    else if (a && b && !strcmp(a, b))
        snprintf(text, 64, "%.*s..%s", (int)(a - lo), lo, hi); // prints a text such as 46..246 kB
    else snprintf(text, 64, "%s..%s", lo, hi);
}

void results(Run *run, const char *const *columns, const Result *rows) {
    if (!run->is_root) return;
    size_t label = 0, width[RESULT_COLUMNS] = { 0 }, n = 0;
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

// ---- the comparisons ----

static void page_ending(const char *head, const char *text) {
    enum { INDENT = 15 };
    printf("  %-*s", INDENT - 2, head);
    page_wrap(text, INDENT, INDENT);
}

static void add_kind(char text[256], size_t count, const char *kind) {
    size_t length = strlen(text);
    if (count > 0)
        snprintf(text + length, 256 - length, "%s%zu %s", length > 0 ? ", " : "", count, kind);
}

// Prints a line such as "27 comparisons: 20 equal in every bit, 6 within their limits (largest
// error 1.2e-06, limit 1.0e-05), 1 statement holds". The printed error is the error nearest to its
// limit.
void page_checked(Run *run) {
    const struct RunState *s = run->state;
    size_t kinds[CHECK_KINDS] = { 0 };
    const CheckRecord *worst = NULL;
    char text[256] = "", close[96] = "";
    for (size_t i = 0; i < s->check_count; i++) {
        const CheckRecord *c = &s->checks[i];
        if (!c->pass) continue;
        kinds[c->kind]++;
        if (c->kind != CHECK_CLOSE) continue;
        if (worst == NULL || c->error * worst->limit > worst->error * c->limit) worst = c;
    }
    if (worst != NULL)
        snprintf(close, sizeof close, "within %s (largest error %.1e, limit %.1e)",
                 kinds[CHECK_CLOSE] == 1 ? "its limit" : "their limits", worst->error,
                 worst->limit);
    add_kind(text, s->checks_failed, "failed");
    add_kind(text, kinds[CHECK_BITS], "equal in every bit");
    add_kind(text, kinds[CHECK_CLOSE], close);
    add_kind(text, kinds[CHECK_HOLDS],
             kinds[CHECK_HOLDS] == 1 ? "statement holds" : "statements hold");
    add_kind(text, kinds[CHECK_DIFFERS],
             kinds[CHECK_DIFFERS] == 1 ? "differs, as it must" : "differ, as they must");
    char line[512];
    size_t length = 0;
    if (s->check_count > 0)
        length = (size_t)snprintf(line, sizeof line, "%zu comparison%s: %s", s->check_count,
                                  s->check_count == 1 ? "" : "s", text);
    if (s->cost_count > 0)
        snprintf(line + length, sizeof line - length, "%s%zu of %zu costs exact",
                 length > 0 ? "; " : "", s->cost_count - s->costs_failed, s->cost_count);
    putchar('\n');
    page_ending("Compared:", line);
}

// ---- the answer ----

const char *cost_text(Run *run, const char *id) {
    struct RunState *s = run->state;
    const size_t texts = sizeof s->cost_texts / sizeof *s->cost_texts;
    if (!run->is_root) return "";
    char *text = s->cost_texts[s->cost_texts_used++ % texts];
    cell_text(run, id, text);
    return text;
}

double cost_value(Run *run, const char *id) {
    return run->is_root ? report_cost(run, id)->hi.measured : 0;
}

static void keep_ending(Run *run, int which, const char *format, va_list args) {
    char **ending = &run->state->endings[which], text[1024];
    if (!run->is_root) return;
    if (*ending != NULL)
        fault("the page already has this line: call say_answer, say_cost and say_use_when once: %s",
              *ending);
    vsnprintf(text, sizeof text, format, args);
    *ending = text_copy(text);
}

void say_answer(Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    keep_ending(run, PAGE_ANSWER, format, args);
    va_end(args);
}

void say_cost(Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    keep_ending(run, PAGE_COST, format, args);
    va_end(args);
}

void say_use_when(Run *run, const char *format, ...) {
    va_list args;
    va_start(args, format);
    keep_ending(run, PAGE_USE_WHEN, format, args);
    va_end(args);
}

void page_endings(Run *run, bool pass) {
    static const char *const heads[PAGE_ENDINGS] = { "Answer:", "Cost:", "Use it when:" };
    const struct RunState *s = run->state;
    if (s->wrong != NULL) page_ending("Wrong:", s->wrong);
    for (size_t i = 0; i < PAGE_ENDINGS && pass; i++)
        if (s->endings[i] != NULL) page_ending(heads[i], s->endings[i]);
}
