// player.c: draws, judges and times any schedule without a model.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "judge/draw/svg.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Each unit of time has TICKS ticks. Every v up to MOST_V divides TICKS, so 1/v of a unit is a
// whole number of ticks.
enum { TICKS = 5040, MOST_P = 16, MOST_M = 128, MOST_V = 8 };

// The times are in ticks.
typedef struct {
    const char *title;
    size_t p, m, v;
    Schedule *stage;
    OpTimes times;
    Judgement judgement;
} Shown;
static double units_of(size_t ticks) { return (double)ticks / TICKS; }

// ---------------------------------------------------------------- known schedules

// The known schedules are the ways of equal_ways with a flush, and then the planner's lists.
enum { ZB_AUTO = WAY_ZB_H1 + 1, KNOWN };
static const char *known_id(size_t which) {
    return which == ZB_AUTO ? "zb-auto" : equal_ways[which].id;
}
static const char *known_title(size_t which) {
    return which == ZB_AUTO ? "ZB auto" : equal_ways[which].name;
}

static OpTimes times_of(Run *run, size_t v) {
    double tf = option_real(run, "tf"), tb = option_real(run, "tb"), tw = option_real(run, "tw");
    double message = option_real(run, "message"), chunk = (double)TICKS / (double)v;
    REQUIRE(tf > 0 && fmin(fmin(tb, tw), message) >= 0 &&
                fmax(fmax(tf, tb), fmax(tw, message)) <= 1000,
            "--tf %g --tb %g --tw %g --message %g: choose times up to 1000, and a forward above 0",
            tf, tb, tw, message);
    return (OpTimes){ .forward = (size_t)lround(tf * chunk),
                      .backward_inputs = (size_t)lround(tb * chunk),
                      .backward_weights = (size_t)lround(tw * chunk),
                      .message = (size_t)lround(message * TICKS) };
}

static bool possible(size_t which, size_t p, size_t m) {
    return which != WAY_INTERLEAVED || m % p == 0;
}

static Shown known(Run *run, size_t which, size_t p, size_t m, size_t v) {
    Shown s = { .title = known_title(which), .p = p, .m = m };
    s.v = which == WAY_INTERLEAVED ? v : 1;
    s.stage = host_alloc(p * sizeof *s.stage);
    s.times = times_of(run, s.v);
    for (size_t i = 0; i < p; i++)
        s.stage[i] = which == ZB_AUTO ? schedule_zb_auto(p, m, i, p, s.times)
                                      : pipeline_way_list((PipelineWay)which, p, m, s.v, 1, i);
    s.judgement = judge_lists(s.stage, p, m, s.v, &s.times);
    return s;
}

// ---------------------------------------------------------------- options

static bool asked(Run *run) {
    static const char *const options[] = { "schedule", "list", "p",  "m",       "v",
                                           "tf",       "tb",   "tw", "message", NULL };
    for (size_t i = 0; options[i]; i++)
        if (option_given(run, options[i])) return true;
    return false;
}

static void check_sizes(size_t p, size_t m, size_t v) {
    REQUIRE(p >= 1 && m >= 1 && v >= 1 && p <= MOST_P && m <= MOST_M && v <= MOST_V,
            "%zu stages, %zu micro-batches, %zu chunks: choose 1 to %d, %d and %d", p, m, v, MOST_P,
            MOST_M, MOST_V);
}

// Returns the schedule that the user typed. The text determines the numbers of stages,
// micro-batches and chunks.
static Shown typed(Run *run, const char *list) {
    Shown s = { .title = "the list" };
    s.stage = lists_parse(list, &s.p);
    for (size_t i = 0; i < s.p; i++)
        for (size_t e = 0; e < s.stage[i].n; e++) {
            PipeOp op = s.stage[i].ops[e];
            if (op.micro_batch >= s.m) s.m = op.micro_batch + 1;
            if (op.chunk >= s.v) s.v = op.chunk + 1;
        }
    check_sizes(s.p, s.m, s.v > 1 ? s.v : option_size(run, "v"));
    s.times = times_of(run, s.v);
    s.judgement = judge_lists(s.stage, s.p, s.m, s.v, &s.times);
    return s;
}

static Shown wanted(Run *run) {
    const char *list = option_text(run, "list"), *name = option_text(run, "schedule");
    REQUIRE(!list || !(name || option_given(run, "p") || option_given(run, "m")),
            "--list is a whole schedule: leave --schedule, --p and --m out");
    if (list) return typed(run, list);
    size_t p = option_size(run, "p"), m = option_size(run, "m"), v = option_size(run, "v");
    check_sizes(p, m, v);
    size_t which = WAY_1F1B;
    for (size_t k = 0; name && k < KNOWN; k++)
        if (!strcmp(name, known_id(k))) which = k;
    REQUIRE(possible(which, p, m),
            "--m %zu: interleaved stages take micro-batches in groups of p = %zu: choose a "
            "multiple of %zu, or another --schedule",
            m, p, p);
    return known(run, which, p, m, v);
}

// ---------------------------------------------------------------- drawn as a recording

static const Picoseconds UNIT = 1000000; // a unit of time is drawn as a microsecond
static Picoseconds moment(size_t ticks) { return (Picoseconds)ticks * UNIT / TICKS; }
static void add(RankRecording *r, RecordedEvent e) { r->events[r->n++] = e; }

// Draws the ops of each stage, and a send and a receive for each message.
static void draw(Run *run, const Shown *s) {
    static const EventKind kind[] = { EVENT_FORWARD, EVENT_BACKWARD, EVENT_BACKWARD,
                                      EVENT_WEIGHTS };
    Timeline t = timeline_with_times(s->stage, s->p, s->m, &s->times);
    Recording all = { .ranks = s->p, .end = moment(t.end), .unit = UNIT };
    all.rank = host_alloc(s->p * sizeof *all.rank);
    size_t ops = 0;
    for (size_t i = 0; i < s->p; i++) ops += t.n[i];
    for (size_t i = 0; i < s->p; i++)
        all.rank[i].events = host_alloc((2 * ops + 1) * sizeof *all.rank[i].events);
    for (size_t i = 0; i < s->p; i++)
        for (size_t e = 0; e < t.n[i]; e++) {
            const Event *v = &t.event[i][e];
            StageOp to;
            add(&all.rank[i], (RecordedEvent){ .start = moment(v->start),
                                               .end = moment(v->end),
                                               .kind = kind[v->op.what],
                                               .number = (uint8_t)v->op.micro_batch,
                                               .chunk = (uint8_t)v->op.chunk });
            if (!steps_feeds(v->op, i, t.p, t.v, &to) || to.stage == i) continue;
            RecordedEvent sent = { .start = moment(v->arrives - s->times.message),
                                   .end = moment(v->arrives),
                                   .kind = EVENT_SEND,
                                   .flow = i * 100000 + e + 1,
                                   .comm = "pp",
                                   .peer = (uint16_t)to.stage };
            add(&all.rank[i], sent);
            sent.kind = EVENT_RECV;
            sent.start = sent.end;
            sent.peer = (uint16_t)i;
            add(&all.rank[to.stage], sent);
        }
    const char *chunks = s->v > 1 ? page_text(run, ", v = %zu", s->v) : "";
    recording_show(run, &all,
                   page_text(run, "%s, p = %zu, m = %zu%s", s->title, s->p, s->m, chunks),
                   PICTURE_EVERY_ROW);
    for (size_t i = 0; i < s->p; i++) free(all.rank[i].events);
    free(all.rank);
    timeline_free(&t);
}

// ---------------------------------------------------------------- the page

// Prints the judgement of s. `best` is the fastest of s and the known schedules.
static void verdict(Run *run, const Shown *s, const Shown *best) {
    static const char *const illegal[] = {
        "", "Illegal: an op occurs twice in its list, or not at all.",
        "Illegal: a message goes to the wrong op.", "Deadlock: no stage can go on."
    };
    const Judgement *j = &s->judgement;
    if (j->verdict != LISTS_LEGAL) {
        say(run, "%s", illegal[j->verdict]);
        for (const char *line = j->why; *line; line += strcspn(line, "\n") + 1)
            say(run, "  %.*s", (int)strcspn(line, "\n"), line);
        return;
    }
    const char *faster = "No known schedule is faster.";
    if (best != s)
        faster = page_text(run, "The fastest known schedule, %s, takes %.4g.", best->title,
                           units_of(best->judgement.end));
    say(run, "Legal: %.4g units. %s", units_of(j->end), faster);
    if (j->wait.units)
        say(run, "  longest wait between two ops: %.4g units, stage %zu before %s, for stage %zu",
            units_of(j->wait.units), j->wait.stage, j->wait.op, j->wait.from);
}

static void fill_column(Run *run, Result *rows, size_t column, const Shown *s) {
    const OpTimes *t = &s->times;
    size_t end = s->judgement.end, one = t->forward + t->backward_inputs + t->backward_weights;
    double idle = 100 - 100 * (double)(s->m * s->v * one) / (double)end;
    rows[0].cell[column] = end ? page_text(run, "=%.4g units", units_of(end)) : "=-";
    rows[1].cell[column] = end ? page_text(run, "=%.1f %%", idle) : "=-";
    const char *part = s->v > 1 ? page_text(run, " of 1/%zu", s->v) : "";
    rows[2].cell[column] = page_text(run, "%s%s", flight_cell(run, s->stage, s->p), part);
}

bool player(Run *run) {
    if (!asked(run)) return false;
    // The wanted schedule, then the known schedules but the naive one.
    Shown shown[KNOWN] = { wanted(run) };
    const Shown *s = &shown[0], *best = s;
    const char *columns[RESULT_COLUMNS + 1] = { NULL };
    Result rows[] = { { .what = "step", .formula = "the list, played" },
                      { .what = "idle", .formula = "1 - work/step" },
                      { .what = "in flight", .formula = "F to B or W" },
                      { 0 } };
    size_t n = 1, v = s->v > 1 ? s->v : option_size(run, "v");
    for (size_t k = WAY_GPIPE; k < KNOWN; k++)
        if (possible(k, s->p, s->m) && strcmp(s->title, known_title(k)) != 0)
            shown[n++] = known(run, k, s->p, s->m, v);
    for (size_t k = 0; k < n; k++) {
        const Judgement *j = &shown[k].judgement;
        if (j->verdict == LISTS_LEGAL && j->end < best->judgement.end) best = &shown[k];
        columns[k] = shown[k].title;
        fill_column(run, rows, k, &shown[k]);
        if (k) check_true(run, "legal", columns[k], j->verdict == LISTS_LEGAL);
    }
    OpTimes whole = times_of(run, 1);
    say(run,
        "Units of time: a stage's forward %.4g, its backward %.4g + %.4g (of inputs, of "
        "weights), a message %.4g.",
        units_of(whole.forward), units_of(whole.backward_inputs), units_of(whole.backward_weights),
        units_of(whole.message));
    draw(run, s);
    verdict(run, s, best);
    results(run, columns, rows);
    for (size_t k = 0; k < n; k++) schedule_all_free(shown[k].stage, s->p);
    return true;
}
