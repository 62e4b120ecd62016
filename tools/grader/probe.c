// probe.c: gives every compared tensor of a graded program to the judge outside the process. So the
// judge need not believe the verdict of this process. The linker's --wrap replaces the frame's
// checks by functions of probe.c, which call the check and send the checked tensors, numbers or
// statement to the judge. probe.c also marks where the graded body runs. tools/grader/compare.c
// reads the records.
#include "judge/frame/frame.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void grader_result(const void *data, size_t bytes);
void grader_mark(int step);
int grader_enter(int body);
void grader_leave(const int *entered);
int grader_enter(int body) {
    grader_mark(body);
    return body;
}
void grader_leave(const int *entered) { grader_mark(-*entered); }

// ---- records: numbers and texts, one after the other ----

typedef struct {
    char *data;
    size_t size, room;
} Record;

static void add(Record *r, const void *data, size_t bytes) {
    if (r->size + bytes > r->room) {
        r->room = 2 * (r->size + bytes);
        r->data = realloc(r->data, r->room);
        if (r->data == NULL) fault("out of memory");
    }
    memcpy(r->data + r->size, data, bytes);
    r->size += bytes;
}
static void add_number(Record *r, double x) { add(r, &x, sizeof x); }
static void add_text(Record *r, const char *text) {
    add_number(r, (double)strlen(text));
    add(r, text, strlen(text));
}
static Record begin(const char *kind, const char *what, double limit) {
    Record r = { 0 };
    add_text(&r, kind);
    add_text(&r, what);
    add_number(&r, limit);
    return r;
}
static void finish(Record *r) {
    double bytes = (double)r->size;
    grader_result(&bytes, sizeof bytes);
    grader_result(r->data, r->size);
    free(r->data);
}

static void add_wholes(Record *r, const Snapshot *s) {
    add_number(r, (double)s->count);
    for (size_t t = 0; t < s->count; t++) {
        const Whole *w = &s->wholes[t];
        size_t n = w->rows * w->cols, missing = 0;
        for (size_t i = 0; i < n; i++) missing += w->owner[i] == 0;
        add_text(r, w->name);
        add_number(r, (double)w->rows);
        add_number(r, (double)w->cols);
        add_number(r, (double)missing);
        add_number(r, (double)w->clash);
        for (size_t i = 0; i < n; i++) add_number(r, (double)w->values[i]);
    }
}

static void tell_tensors(Run *run, const char *kind, const char *what, Snapshot *got,
                         Snapshot *want, double limit) {
    ledger_pause();
    snapshot_join(got);
    snapshot_join(want);
    if (run->world->rank == 0) {
        Record r = begin(kind, what, limit);
        add_wholes(&r, got);
        add_wholes(&r, want);
        finish(&r);
    }
    ledger_resume();
}

// ---- the wrapped functions ----

bool __real_check_close(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
bool __wrap_check_close(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
bool __wrap_check_close(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit) {
    tell_tensors(run, "close", what, got, want, limit);
    return __real_check_close(run, what, got, want, limit);
}

bool __real_check_equal(Run *run, const char *what, Snapshot *got, Snapshot *want);
bool __wrap_check_equal(Run *run, const char *what, Snapshot *got, Snapshot *want);
bool __wrap_check_equal(Run *run, const char *what, Snapshot *got, Snapshot *want) {
    tell_tensors(run, "equal", what, got, want, 0);
    return __real_check_equal(run, what, got, want);
}

bool __real_check_differs(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
bool __wrap_check_differs(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
bool __wrap_check_differs(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit) {
    tell_tensors(run, "differs", what, got, want, limit);
    return __real_check_differs(run, what, got, want, limit);
}

bool __real_check_replicas(Run *run, const char *what, Snapshot *got);
bool __wrap_check_replicas(Run *run, const char *what, Snapshot *got);
bool __wrap_check_replicas(Run *run, const char *what, Snapshot *got) {
    ledger_pause();
    snapshot_join(got);
    if (run->world->rank == 0) {
        Record r = begin("replicas", what, 0);
        add_number(&r, (double)got->count);
        for (size_t t = 0; t < got->count; t++) {
            const Whole *w = &got->wholes[t];
            add_text(&r, w->name);
            add_number(&r, (double)w->print_count);
            for (size_t i = 0; i < w->print_count; i++) {
                const PartPrint *p = &w->prints[i];
                add_number(&r, (double)(p->places >> 12)); // 52 bits, which a double can hold
                add_number(&r, (double)(p->digest >> 12));
                add_number(&r, (double)p->count);
                add_number(&r, (double)p->nans);
            }
        }
        finish(&r);
    }
    ledger_resume();
    return __real_check_replicas(run, what, got);
}

bool __real_check_numbers(Run *run, const char *what, const char *name, const double *got,
                          const double *want, size_t n, double limit);
bool __wrap_check_numbers(Run *run, const char *what, const char *name, const double *got,
                          const double *want, size_t n, double limit);
bool __wrap_check_numbers(Run *run, const char *what, const char *name, const double *got,
                          const double *want, size_t n, double limit) {
    bool same = __real_check_numbers(run, what, name, got, want, n, limit);
    if (run->world->rank == 0) {
        Record r = begin("numbers", what, limit);
        add_text(&r, name);
        add_number(&r, (double)n);
        for (size_t i = 0; i < n; i++) add_number(&r, got[i]);
        for (size_t i = 0; i < n; i++) add_number(&r, want[i]);
        finish(&r);
    }
    return same;
}

bool __real_check_true(Run *run, const char *what, const char *name, bool holds);
bool __wrap_check_true(Run *run, const char *what, const char *name, bool holds);
bool __wrap_check_true(Run *run, const char *what, const char *name, bool holds) {
    bool everywhere = __real_check_true(run, what, name, holds);
    if (run->world->rank == 0) {
        Record r = begin("holds", what, 0);
        add_text(&r, name);
        add_number(&r, everywhere);
        finish(&r);
    }
    return everywhere;
}

// Gives the judge the page as JSON, with the costs.
void __real_report_json(Run *run, const char *path, double seconds, bool pass);
void __wrap_report_json(Run *run, const char *path, double seconds, bool pass);
void __wrap_report_json(Run *run, const char *path, double seconds, bool pass) {
    char text[1 << 14];
    size_t n;
    __real_report_json(run, path, seconds, pass);
    FILE *f = fopen(path, "r");
    Record page = { 0 };
    while (f != NULL && (n = fread(text, 1, sizeof text, f)) > 0) add(&page, text, n);
    if (f != NULL) fclose(f);
    add(&page, "", 1);
    Record r = begin("page", "", 0);
    add_text(&r, page.data);
    free(page.data);
    finish(&r);
}
