// player.c: draws, judges and times any schedule without a model (experiments.h).
#include "05_pipeline_1f1b/experiments/experiments.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "04_pipeline_naive/experiments/experiments.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "judge/draw/svg.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// TICKS: ticks per unit of time; every v divides TICKS
enum { TICKS = 5040, MOST_P = 16, MOST_M = 128, MOST_V = 8 };

// The schedule that is shown: p lists, and the times of ops in ticks.
typedef struct {
    size_t p, m, v;
    Schedule *stage;
    OpTimes times;
} Shown;
static double units_of(size_t ticks) { return (double)ticks / TICKS; }

// ---------------------------------------------------------------- known schedules

typedef enum { NAIVE, GPIPE, ONE_F_ONE_B, INTERLEAVED, ZB_H1, ZB_AUTO, KNOWN } Known;
static const char *const known_name[KNOWN] = { "naive",       "gpipe", "1f1b",
                                               "interleaved", "zb-h1", "zb-auto" };
static const char *const known_title[KNOWN] = { "naive",       "GPipe", "1F1B",
                                                "interleaved", "ZB-H1", "ZB auto" };

static OpTimes times_of(Run *run, size_t v) {
    double tf = option_real(run, "tf"), tb = option_real(run, "tb"), tw = option_real(run, "tw");
    REQUIRE(tf > 0 && tb >= 0 && tw >= 0 && tf <= 1000 && tb <= 1000 && tw <= 1000,
            "--tf %g --tb %g --tw %g: choose times up to 1000, and a forward above 0", tf, tb, tw);
    // By default a message takes the same fraction of a forward as on the equal stages of 05.02.
    Stack stack = { .model = { .width = 12, .heads = 3, .context = 10 },
                    .blocks = 2,
                    .sequences = 1 };
    StackTimes real_stage = stack_times(&stack);
    double message = tf * (double)real_stage.message / (double)real_stage.forward;
    if (option_given(run, "message")) message = option_real(run, "message");
    REQUIRE(message >= 0 && message <= 1000, "--message %g: choose 0 to 1000 units", message);
    double chunk = (double)TICKS / (double)v;
    return (OpTimes){ .forward = (size_t)lround(tf * chunk),
                      .backward_inputs = (size_t)lround(tb * chunk),
                      .backward_weights = (size_t)lround(tw * chunk),
                      .message = (size_t)lround(message * TICKS) };
}

static bool possible(Known which, size_t p, size_t m) { return which != INTERLEAVED || m % p == 0; }

static Schedule known_list(Known which, const Shown *s, size_t i) {
    switch (which) {
    case NAIVE: return schedule_naive(s->p, s->m, i);
    case GPIPE: return schedule_gpipe(s->p, s->m, i);
    case ONE_F_ONE_B: return schedule_1f1b(s->p, s->m, i);
    case INTERLEAVED: return schedule_interleaved(s->p, s->m, s->v, i);
    case ZB_H1: return schedule_zb_h1(s->p, s->m, i);
    case ZB_AUTO: return schedule_zb_auto(s->p, s->m, i, s->p, s->times);
    case KNOWN: break;
    }
    fault("there is no known schedule %d", (int)which);
}
static Shown known(Run *run, Known which, size_t p, size_t m, size_t v) {
    Shown play = { .p = p, .m = m, .v = which == INTERLEAVED ? v : 1 };
    play.stage = host_alloc(p * sizeof *play.stage);
    play.times = times_of(run, play.v);
    for (size_t i = 0; i < p; i++) play.stage[i] = known_list(which, &play, i);
    return play;
}
static Judgement judge(const Shown *s) {
    return judge_lists(s->stage, s->p, s->m, s->v, &s->times);
}

// ---------------------------------------------------------------- drawn as a recording

static const Picoseconds UNIT = 1000000; // drawn as a microsecond
static Picoseconds moment(size_t ticks) { return (Picoseconds)ticks * UNIT / TICKS; }
static void add(RankRecording *r, RecordedEvent e) { r->events[r->n++] = e; }

static void draw(Run *run, const Shown *play, const char *title) {
    Timeline t = timeline_with_times(play->stage, play->p, play->m, &play->times);
    Recording all = { .ranks = play->p, .end = moment(t.end), .unit = UNIT };
    all.rank = host_alloc(play->p * sizeof *all.rank);
    size_t ops = 0;
    for (size_t i = 0; i < play->p; i++) ops += t.n[i];
    for (size_t i = 0; i < play->p; i++) // events: ops, sends, receives
        all.rank[i].events = host_alloc((2 * t.n[i] + ops + 1) * sizeof *all.rank[i].events);
    for (size_t i = 0; i < play->p; i++)
        for (size_t e = 0; e < t.n[i]; e++) {
            static const EventKind kind[] = { EVENT_FORWARD, EVENT_BACKWARD, EVENT_BACKWARD,
                                              EVENT_WEIGHTS };
            const Event *v = &t.event[i][e];
            StageOp to;
            RecordedEvent done = { .start = moment(v->start),
                                   .end = moment(v->end),
                                   .kind = kind[v->op.what],
                                   .number = (uint8_t)v->op.micro_batch,
                                   .chunk = (uint8_t)v->op.chunk };
            add(&all.rank[i], done);
            if (!steps_feeds(v->op, i, t.p, t.v, &to) || to.stage == i) continue;
            RecordedEvent sent = { .start = moment(v->arrives - play->times.message),
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
    recording_show(run, &all, title, PICTURE_EVERY_ROW);
    for (size_t i = 0; i < play->p; i++) free(all.rank[i].events);
    free(all.rank);
    timeline_free(&t);
}

// ---------------------------------------------------------------- the verdict

static bool in_halves(const Shown *p) {
    for (size_t e = 0; e < p->stage[0].n; e++)
        if (p->stage[0].ops[e].what == BACKWARD_INPUTS) return true;
    return false;
}

static void verdict(Run *run, const Shown *play, const Judgement *j, const Judgement *best,
                    const char *best_title) {
    static const char *const refused[] = {
        "", "Illegal: an op stands in its list twice, or not at all.",
        "Illegal: a message goes to the wrong op.", "Deadlock: no stage can go on."
    };
    if (j->verdict != LISTS_LEGAL) {
        say(run, "%s", refused[j->verdict]);
        for (const char *line = j->why; *line; line += strcspn(line, "\n") + 1)
            say(run, "  %.*s", (int)strcspn(line, "\n"), line);
        return;
    }
    bool slow = j->end > best->end;
    const char *kind = in_halves(play) ? "one chunk" : "one chunk and whole backwards";
    if (play->v > 1) kind = "as many chunks";
    if (slow)
        say(run, "Legal, but slow: %.4g units. %s takes %.4g, %.1f %% less.", units_of(j->end),
            best_title, units_of(best->end), 100 - 100 * (double)best->end / (double)j->end);
    else
        say(run, "Legal: %.4g units. No known schedule with %s is faster.", units_of(j->end), kind);
    for (size_t n = 0; n < j->waits && (slow || n == 0); n++) {
        PipeOp op = j->wait[n].op;
        char chunk[16] = "";
        if (play->v > 1) snprintf(chunk, sizeof chunk, "c%zu", op.chunk);
        say(run, "  %s: %.4g units, stage %zu before %c%zu%s, for stage %zu",
            n ? "then" : "longest wait between two ops", units_of(j->wait[n].units),
            j->wait[n].stage, "FBIW"[op.what], op.micro_batch, chunk, j->wait[n].from);
    }
}

// ---------------------------------------------------------------- the table

typedef struct {
    char step[32], idle[32], flight[8 * MOST_P];
} Column;

static Column column_of(const Shown *play, const Judgement *j) {
    Column c = { "=-", "=-", "=" };
    const OpTimes *t = &play->times;
    double busy = (double)(play->m * play->v) *
                  (double)(t->forward + t->backward_inputs + t->backward_weights);
    if (j->verdict == LISTS_LEGAL) {
        snprintf(c.step, sizeof c.step, "=%.4g units", units_of(j->end));
        snprintf(c.idle, sizeof c.idle, "=%.1f %%", 100 - 100 * busy / (double)j->end);
    }
    size_t least = SIZE_MAX, most = 0;
    for (size_t i = 0; i < play->p; i++) {
        size_t n = list_in_flight(&play->stage[i]);
        if (n < least) least = n;
        if (n > most) most = n;
        if (play->p <= 4) snprintf(c.flight + strlen(c.flight), 16, "%s%zu", i ? " " : "", n);
    }
    if (play->p > 4)
        snprintf(c.flight, sizeof c.flight, least == most ? "=%zu" : "=%zu..%zu", least, most);
    if (play->v > 1) snprintf(c.flight + strlen(c.flight), 16, " of 1/%zu", play->v);
    return c;
}

// ---------------------------------------------------------------- the page

bool player_asked(Run *run) {
    static const char *const asks[] = { "schedule", "list", "p",  "m",       "v",
                                        "tf",       "tb",   "tw", "message", NULL };
    for (size_t i = 0; asks[i]; i++)
        if (option_given(run, asks[i])) return true;
    return false;
}

// The schedule that the options name: a known one, or a typed list, which also gives the sizes.
static Shown wanted(Run *run, const char **title) {
    size_t p = option_size(run, "p"), m = option_size(run, "m"), v = option_size(run, "v");
    const char *list = option_text(run, "list"), *name = option_text(run, "schedule");
    REQUIRE(!list || !name, "--list and --schedule both say what is to be played: leave one out");
    Shown play = { 0 };
    if (list) {
        play.stage = lists_parse(list, &play.p);
        for (size_t i = 0; i < play.p; i++)
            for (size_t e = 0; e < play.stage[i].n; e++) {
                PipeOp op = play.stage[i].ops[e];
                if (op.micro_batch >= play.m) play.m = op.micro_batch + 1;
                if (op.chunk >= play.v) play.v = op.chunk + 1;
            }
        REQUIRE(!option_given(run, "p") || p == play.p,
                "--list has %zu stages, --p says %zu: leave --p out", play.p, p);
        REQUIRE(play.m > 0, "--list has no op: write F0 B0 for one stage, and / between stages");
        if (option_given(run, "m")) play.m = m;
        if (option_given(run, "v")) play.v = v;
        *title = "the list";
    }
    REQUIRE(list || (p >= 1 && m >= 1 && v >= 1),
            "--p %zu --m %zu --v %zu: choose at least 1 of each", p, m, v);
    size_t P = list ? play.p : p, M = list ? play.m : m, V = list ? play.v : v;
    REQUIRE(P <= MOST_P && M <= MOST_M && V <= MOST_V && V >= 1,
            "%zu stages, %zu micro-batches, %zu chunks: choose at most %d, %d and %d", P, M, V,
            MOST_P, MOST_M, MOST_V);
    if (list) {
        play.times = times_of(run, V);
        return play;
    }
    Known which = ONE_F_ONE_B;
    for (Known k = 0; name && k < KNOWN; k++)
        if (!strcmp(name, known_name[k])) which = k;
    REQUIRE(possible(which, p, m),
            "--m %zu: interleaved stages take micro-batches in groups of p = %zu: choose a "
            "multiple of %zu, or another --schedule",
            m, p, p);
    *title = known_title[which];
    return known(run, which, p, m, v);
}

// Checks a known schedule: it is legal, and without message times its step is that of its formula.
static void closed_form(Run *run, Known which, const Shown *play, const Judgement *j) {
    const OpTimes *t = &play->times;
    double f = (double)t->forward, b = (double)(t->backward_inputs + t->backward_weights);
    double p = (double)play->p, m = (double)play->m, v = (double)play->v, got = (double)j->end;
    double want = which == NAIVE ? m * p * (f + b) : (m * v + p - 1) * (f + b);
    check_true(run, "legal", known_title[which], j->verdict == LISTS_LEGAL);
    if (play->times.message == 0 && which < ZB_H1)
        check_numbers(run, "step = formula", known_title[which], &got, &want, 1, 0);
}

void player(Run *run) {
    const char *title = NULL, *best_title = NULL, *columns[RESULT_COLUMNS + 1] = { 0 };
    char text[80];
    Shown play = wanted(run, &title), other[KNOWN];
    Judgement mine = judge(&play), j[KNOWN], *best = NULL;
    Column column[RESULT_COLUMNS];
    size_t n = 0, v = play.v > 1 ? play.v : option_size(run, "v");
    if (v > MOST_V || v < 2) v = 2;
    columns[n] = title;
    column[n++] = column_of(&play, &mine);
    for (Known k = 0; k < KNOWN; k++) {
        if (!possible(k, play.p, play.m)) continue;
        other[k] = known(run, k, play.p, play.m, v);
        j[k] = judge(&other[k]);
        closed_form(run, k, &other[k], &j[k]);
        // Compares with lists of the same kind only: with as many chunks, and with halves of
        // backwards only if this list has them.
        bool alike = other[k].v == play.v && (k < ZB_H1 || in_halves(&play));
        if (alike && (!best || j[k].end < best->end)) {
            best = &j[k];
            best_title = known_title[k];
        }
        if (k != NAIVE && n < RESULT_COLUMNS && strcmp(title, known_title[k])) {
            columns[n] = known_title[k];
            column[n++] = column_of(&other[k], &j[k]);
        }
    }
    if (!best) {
        best = &j[ONE_F_ONE_B];
        best_title = known_title[ONE_F_ONE_B];
    }
    OpTimes whole = times_of(run, 1);
    say(run,
        "Units of time: a stage's forward %.4g, its backward %.4g + %.4g (of inputs, of "
        "weights), a message %.4g.",
        units_of(whole.forward), units_of(whole.backward_inputs), units_of(whole.backward_weights),
        units_of(whole.message));
    snprintf(text, sizeof text, "%s, p = %zu, m = %zu", title, play.p, play.m);
    if (play.v > 1) snprintf(text + strlen(text), 16, ", v = %zu", play.v);
    draw(run, &play, text);
    verdict(run, &play, &mine, best, best_title);
    Result rows[] = { { .what = "step", .formula = "the list, played" },
                      { .what = "idle", .formula = "1 - work/step" },
                      { .what = "in flight", .formula = "F to B or W" },
                      { 0 } };
    for (size_t k = 0; k < n; k++) {
        rows[0].cell[k] = column[k].step;
        rows[1].cell[k] = column[k].idle;
        rows[2].cell[k] = column[k].flight;
    }
    results(run, columns, rows);
    for (Known k = 0; k < KNOWN; k++)
        if (possible(k, play.p, play.m)) schedule_all_free(other[k].stage, play.p);
    schedule_all_free(play.stage, play.p);
}
