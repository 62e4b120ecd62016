// trace.c: writes a recording as a trace for ui.perfetto.dev and chrome://tracing. Times are in
// microseconds, exact to a picosecond.
//
// Each rank is a process of the trace. A process has row 0 for computation, row 1 for collectives
// and receives, and row 2 for sends. Slices of one row must not overlap. If two collectives,
// receives or sends overlap, the later one goes to a further row (3, 4, ...).
#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdlib.h>
#include "judge/frame/frame.h"
#include "common/base/output.h"
#include "common/comm/clock.h"
#include "judge/draw/svg.h"

enum { COMPUTE, COMMUNICATION, SENDS, ROWS = 64 };
typedef struct {
    uint64_t flow;
    Picoseconds at;
} End; // one end of a message
typedef struct {
    FILE *f;
    bool first;
    const Recording *r;
    const char *memory; // the name of the category in r
    End *sends, *receives;
    size_t n_sends, n_receives;
} Trace;

static void put(Trace *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(Trace *t, const char *format, ...) {
    va_list args;
    fputs(t->first ? "\n" : ",\n", t->f);
    t->first = false;
    va_start(args, format);
    vfprintf(t->f, format, args);
    va_end(args);
}

// A time in microseconds, with all digits down to a picosecond.
typedef struct {
    char text[32];
} Time;
static Time duration_of(Picoseconds ps) {
    Time t;
    snprintf(t.text, sizeof t.text, "%llu.%06llu", (unsigned long long)(ps / 1000000),
             (unsigned long long)(ps % 1000000));
    return t;
}
static Picoseconds since_begin(const Trace *t, Picoseconds at) {
    return at > t->r->begin ? at - t->r->begin : 0;
}

// ---- messages: an arrow from send to recv, if both are in the recording ----

static int by_flow(const void *a, const void *b) {
    const End *x = a, *y = b;
    return x->flow < y->flow ? -1 : x->flow > y->flow;
}
static End *ends(const Recording *r, EventKind kind, size_t *n) {
    size_t room = 0;
    for (size_t k = 0; k < r->ranks; k++) room += r->rank[k].n;
    End *list = host_alloc(room * sizeof *list);
    *n = 0;
    for (size_t k = 0; k < r->ranks; k++)
        for (size_t i = 0; i < r->rank[k].n; i++) {
            const RecordedEvent *e = &r->rank[k].events[i];
            if (e->kind == kind) list[(*n)++] = (End){ e->flow, e->start };
        }
    qsort(list, *n, sizeof *list, by_flow);
    return list;
}
static const End *end_of(const End *list, size_t n, uint64_t flow) {
    return bsearch(&(End){ .flow = flow }, list, n, sizeof *list, by_flow);
}

// Writes one end of an arrow. The arrow begins inside the slice of the send, and ends inside the
// slice of the recv, just before the end of that slice.
static void put_arrow(Trace *t, size_t rank, size_t row, const RecordedEvent *e) {
    enum { JUST_BEFORE = 1000 };
    const End *sent = end_of(t->sends, t->n_sends, e->flow);
    if (!sent || !end_of(t->receives, t->n_receives, e->flow)) return;
    bool sends = e->kind == EVENT_SEND;
    Picoseconds at = e->start;
    if (!sends) {
        at = e->end > e->start + JUST_BEFORE ? e->end - JUST_BEFORE : e->start;
        if (at < sent->at) at = sent->at;
    }
    put(t,
        "{\"name\":\"message\",\"cat\":\"message\",\"ph\":\"%s\",%s\"id\":\"%016llx\","
        "\"ts\":%s,\"pid\":%zu,\"tid\":%zu}",
        sends ? "s" : "f", sends ? "" : "\"bp\":\"e\",", (unsigned long long)e->flow,
        duration_of(since_begin(t, at)).text, rank, row);
}

// ---- slices ----

static void put_slice(Trace *t, size_t rank, size_t row, const RecordedEvent *e) {
    char name[64];
    bool message = e->kind == EVENT_SEND || e->kind == EVENT_RECV;
    Picoseconds start = since_begin(t, e->start), end = since_begin(t, e->end);
    if (row != COMPUTE)
        snprintf(name, sizeof name, "%s %s",
                 message ? event_name[e->kind] : comm_kind_name[e->call], e->comm);
    else if (e->number == NO_NUMBER) snprintf(name, sizeof name, "%s", event_name[e->kind]);
    else snprintf(name, sizeof name, "%s %u", event_name[e->kind], e->number);
    put(t,
        "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%s,\"dur\":%s,\"pid\":%zu,\"tid\":%zu,"
        "\"args\":{\"bytes\":%zu}}",
        name, row == COMPUTE ? "compute" : "communication", duration_of(start).text,
        duration_of(end - start).text, rank, row, e->bytes);
    if (message) put_arrow(t, rank, row, e);
}

// Returns the event's usual row, or the first further row that is free.
static size_t row_for(const RecordedEvent *e, Picoseconds free_from[ROWS]) {
    size_t row = e->kind == EVENT_SEND ? SENDS : COMMUNICATION;
    if (e->kind <= EVENT_UPDATE) row = COMPUTE;
    if (row != COMPUTE && free_from[row] > e->start)
        for (row = SENDS + 1; row + 1 < ROWS && free_from[row] > e->start; row++) {}
    if (free_from[row] < e->end) free_from[row] = e->end;
    return row;
}

static void put_rank(Trace *t, size_t rank) {
    static const char *const row_name[] = { "compute", "communication", "sends",
                                            "communication at the same time" };
    const RankRecording *k = &t->r->rank[rank];
    Picoseconds free_from[ROWS] = { 0 };
    size_t rows = SENDS + 1;
    put(t, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%zu,\"args\":{\"name\":\"rank %zu\"}}",
        rank, rank);
    put(t,
        "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%zu,\"args\":{\"sort_index\":%zu}}",
        rank, rank);
    for (size_t i = 0; i < k->n; i++) {
        size_t row = row_for(&k->events[i], free_from);
        put_slice(t, rank, row, &k->events[i]);
        if (row >= rows) rows = row + 1;
    }
    for (size_t row = 0; row < rows; row++) {
        put(t,
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%zu,\"tid\":%zu,\"args\":{\"name\":\"%"
            "s\"}}",
            rank, row, row_name[row < SENDS + 1 ? row : SENDS + 1]);
        put(t,
            "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%zu,\"tid\":%zu,\"args\":{\"sort_"
            "index\":%zu}}",
            rank, row, row);
    }
    for (size_t i = 0; i < k->samples; i++)
        put(t, "{\"name\":\"%s\",\"ph\":\"C\",\"ts\":%s,\"pid\":%zu,\"args\":{\"bytes\":%zu}}",
            t->memory, duration_of(since_begin(t, k->memory[i].at)).text, rank, k->memory[i].bytes);
}

// Writes the lesson's name, question and clock, which tools/play shows.
static void put_title(FILE *f) {
    cJSON *title = cJSON_CreateObject();
    cJSON_AddStringToObject(title, "lesson", lesson_info.id);
    cJSON_AddStringToObject(title, "title", lesson_info.name);
    cJSON_AddStringToObject(title, "question", lesson_info.question);
    cJSON_AddStringToObject(title, "clock", clock_config()->simulated ? "simulated" : "wall");
    char *text = cJSON_PrintUnformatted(title);
    if (text == NULL) fault("out of memory for the title of the trace");
    fputs(text, f);
    free(text);
    cJSON_Delete(title);
}

void trace_write(const Recording *r, const char *memory, const char *file) {
    Output o = output_open("trace", file);
    Trace t = { .f = o.f, .first = true, .r = r, .memory = memory };
    t.sends = ends(r, EVENT_SEND, &t.n_sends);
    t.receives = ends(r, EVENT_RECV, &t.n_receives);
    fprintf(o.f, "{\"displayTimeUnit\":\"ns\",\"otherData\":");
    put_title(o.f);
    fprintf(o.f, ",\"traceEvents\":[");
    for (size_t rank = 0; rank < r->ranks; rank++) put_rank(&t, rank);
    fprintf(o.f, "\n]}\n");
    free(t.sends);
    free(t.receives);
    output_close(&o);
}
