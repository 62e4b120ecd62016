// ranks: 1
// level: core
// question: In which order may a pipeline stage do its forwards and backwards, and which order keeps little in memory?
//
// A schedule is a list of ops per stage. Nothing is computed here: lists are written, drawn, and judged. A list is
// legal when every op stands in it once and every receive is answered by the message it waits for. Then 1F1B ("one
// forward, one backward") is held against the naive schedule and GPipe: the same time as GPipe, with at most p - i
// micro-batches in flight on stage i instead of m. Stages and micro-batches count from 0. p stages, m micro-batches; a
// forward takes 1 unit of time, a backward 2.
#include "04_pipeline_naive/support/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "common/lesson/lesson.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STAGES = 8, MOST_MICRO = 24, CASES = MOST_STAGES * MOST_MICRO, T_FORWARD = 1, T_BACKWARD = 2 };

// ---------------------------------------------------------------- the rule of 1F1B, by hand

// Stage i first sends p - 1 - i micro-batches ahead: as many stages are behind it, and each needs one to be busy. After
// that the first gradient is about to come back, and every forward is followed by a backward. At the end, what was sent
// ahead comes home.
static Schedule by_hand_1f1b(size_t p, size_t m, size_t i) {
    Schedule list = {0};
    size_t ahead = p - 1 - i, forwards = 0, backwards = 0;
    while (forwards < ahead && forwards < m) schedule_add(&list, FORWARD, forwards++);     // warm-up
    while (forwards < m) {                                                                 // steady
        schedule_add(&list, FORWARD, forwards++);
        schedule_add(&list, BACKWARD, backwards++);
    }
    while (backwards < m) schedule_add(&list, BACKWARD, backwards++);                      // cool-down
    return list;
}

static char *text_of(const Schedule *s) {                  // "F0 F1 B0 ..."; free() it
    char *text = host_alloc(24 * s->n + 1);
    for (size_t e = 0; e < s->n; e++)
        sprintf(text + strlen(text), "%s%c%zu", e ? " " : "", "FB"[s->ops[e].what == BACKWARD], s->ops[e].micro_batch);
    return text;
}

// ---------------------------------------------------------------- the judge

typedef enum { LEGAL, NOT_ONCE, WRONG_MESSAGE, DEADLOCK } Verdict;

// One direction between two neighbours: messages arrive in the order in which they were sent, and carry no name.
typedef struct { size_t sent[2 * MOST_MICRO], n, read; } Mailbox;

// Can this op run now? If so it takes its message; *wrong: the message at hand is another micro-batch's.
static bool receive(Mailbox *from, size_t k, bool *wrong) {
    if (from->read == from->n) return false;               // a receive blocks
    *wrong |= from->sent[from->read++] != k;
    return true;
}
static void post(Mailbox *to, size_t k) { to->sent[to->n++] = k; }         // a send is posted and not waited for

// Lets the stages work down their lists, as 04's executor does. What an op needs, and from which stage, is the rule of
// every pipeline (pipe_op_needs): forward k that of the stage before, backward k that of the stage behind, on the last
// stage its own forward. What can run stays able to run, whoever moves first; so if one order of moves gets through,
// all do, and if one gets stuck, all do.
static Verdict judge(const Schedule *stage, size_t p, size_t m) {
    Mailbox on[MOST_STAGES] = {0}, back[MOST_STAGES] = {0};                // from stage i: to i + 1, and to i - 1
    bool done[MOST_STAGES][2][MOST_MICRO] = {{{0}}};
    size_t next[MOST_STAGES] = {0};
    bool wrong = false;
    for (size_t i = 0; i < p; i++)
        if (stage[i].n != 2 * m) return NOT_ONCE;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < p; i++) {
            if (next[i] == 2 * m) continue;
            PipeOp op = stage[i].ops[next[i]];
            size_t k = op.micro_batch;
            if (done[i][op.what][k]) return NOT_ONCE;
            StageOp needs;
            if (pipe_op_needs(op, i, p, 1, &needs)) {
                Mailbox *from = op.what == FORWARD ? &on[needs.stage] : &back[needs.stage];
                if (needs.stage != i && !receive(from, k, &wrong)) continue;
                if (needs.stage == i && !done[i][FORWARD][k]) return DEADLOCK;     // it would wait for its own future
            }
            if (wrong) return WRONG_MESSAGE;
            post(op.what == FORWARD ? &on[i] : &back[i], k);
            done[i][op.what][k] = moved = true;
            next[i]++;
        }
    }
    for (size_t i = 0; i < p; i++)
        if (next[i] < 2 * m) return DEADLOCK;
    return LEGAL;
}

// Most micro-batches between their forward and their backward.
static size_t most_in_flight(const Schedule *s) {
    size_t now = 0, most = 0;
    for (size_t e = 0; e < s->n; e++) {
        now = s->ops[e].what == FORWARD ? now + 1 : now - 1;
        if (now > most) most = now;
    }
    return most;
}

// ---------------------------------------------------------------- all sizes

static void judge_all(Run *run, const char *what, ScheduleRule rule, bool naive, bool early_back) {
    double legal = 0, all = CASES, end[CASES], want_end[CASES];
    double flight[CASES * MOST_STAGES], want_flight[CASES * MOST_STAGES];
    size_t n = 0, stages = 0;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t m = 1; m <= MOST_MICRO; m++, n++) {
            Schedule *stage = schedule_all(rule, p, m);
            legal += judge(stage, p, m) == LEGAL;
            end[n] = makespan(rule, p, m, T_FORWARD, T_BACKWARD);
            want_end[n] = (naive ? m * p : m + p - 1) * (T_FORWARD + T_BACKWARD);
            for (size_t i = 0; i < p; i++, stages++) {
                flight[stages] = most_in_flight(&stage[i]);
                want_flight[stages] = naive ? 1 : early_back && p - i < m ? p - i : m;
            }
            schedule_all_free(stage, p);
        }
    check_numbers(run, what, "legal schedules, p = 1..8, m = 1..24", &legal, &all, 1, 0);
    check_numbers(run, what, naive ? "step time m p (t_f+t_b)" : "step time (m+p-1)(t_f+t_b)", end, want_end, CASES, 0);
    const char *most = naive ? "in flight 1" : early_back ? "in flight min(p-i, m)" : "in flight m";
    check_numbers(run, what, most, flight, want_flight, stages, 0);
}

static void golden(Run *run, size_t i, const char *order) {            // p = 4, m = 8
    Schedule mine = by_hand_1f1b(4, 8, i);
    char name[40], *text = text_of(&mine);
    sprintf(name, "1F1B order, p = 4, m = 8, stage %zu", i);
    say(run, "  stage %zu: %s", i, text);
    check_true(run, name, "as published", !strcmp(text, order));
    free(text);
    schedule_free(&mine);
}

// Lists that must be refused, made from 1F1B's with p = 3, m = 4 by one small change.
static void refused(Run *run) {
    Schedule *s = schedule_all(by_hand_1f1b, 3, 4);                    // stage 1: F0 F1 B0 F2 B1 F3 B2 B3
    PipeOp *op = s[1].ops, keep[8];
    memcpy(keep, op, sizeof keep);
    op[0] = keep[2]; op[2] = keep[0];
    check_true(run, "refused", "B0 before F0: a deadlock", judge(s, 3, 4) == DEADLOCK);
    memcpy(op, keep, sizeof keep);
    op[7].micro_batch = 2;
    check_true(run, "refused", "B2 twice, B3 never", judge(s, 3, 4) == NOT_ONCE);
    memcpy(op, keep, sizeof keep);
    op[0] = keep[1]; op[1] = keep[0];
    check_true(run, "refused", "F1 before F0 on one stage: the wrong message", judge(s, 3, 4) == WRONG_MESSAGE);
    memcpy(op, keep, sizeof keep);
    op[1] = keep[2]; op[2] = keep[1];
    check_true(run, "not refused", "B0 before F1: legal, only slower", judge(s, 3, 4) == LEGAL);
    Timeline t = timeline_of(s, 3, 4, T_FORWARD, T_BACKWARD);
    bool longer = !t.stuck && t.end > (4 + 3 - 1) * (T_FORWARD + T_BACKWARD);
    check_true(run, "not refused", "and that is what it costs: a longer step", longer);
    timeline_free(&t);
    schedule_all_free(s, 3);
}

static void chart(Run *run, const char *title, ScheduleRule rule, size_t m) {
    enum { STAGES = 4 };
    Schedule *stage = schedule_all(rule, STAGES, m);
    Timeline t = timeline_of(stage, STAGES, m, T_FORWARD, T_BACKWARD);
    say(run, "%s, %d stages, %zu micro-batches: %zu units", title, STAGES, m, t.end);
    for (size_t i = 0; i < STAGES; i++) {
        char *row = timeline_row(&t, i);
        say(run, "  stage %zu (%zu in flight)  %s", i, most_in_flight(&stage[i]), row);
        free(row);
    }
    timeline_free(&t);
    schedule_all_free(stage, STAGES);
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this lesson only writes lists: start it with one rank");
    chart(run, "Naive", schedule_naive, 2);
    chart(run, "GPipe", schedule_gpipe, 8);
    chart(run, "1F1B", by_hand_1f1b, 8);
    golden(run, 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
    golden(run, 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
    judge_all(run, "naive", schedule_naive, true, false);
    judge_all(run, "GPipe", schedule_gpipe, false, false);
    judge_all(run, "1F1B", by_hand_1f1b, false, true);
    bool same = true;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t m = 1; m <= MOST_MICRO; m++)
            for (size_t i = 0; i < p; i++) {
                Schedule mine = by_hand_1f1b(p, m, i), module = schedule_1f1b(p, m, i);
                char *a = text_of(&mine), *b = text_of(&module);
                same &= !strcmp(a, b);
                free(a); free(b);
                schedule_free(&mine); schedule_free(&module);
            }
    check_true(run, "1F1B", "the lists that 02_1f1b runs are these", same);
    refused(run);
}

LESSON(by_hand, NULL);
