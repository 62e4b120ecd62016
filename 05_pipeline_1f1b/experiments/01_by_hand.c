// 01_by_hand.c (experiment): lists of all sizes are judged, timed and drawn; 1F1B's is the
// published order. With --schedule or --list (make play-05) any schedule is drawn, judged and
// timed: player.c.
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/by_hand.h"
#include "05_pipeline_1f1b/experiments/player.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "judge/frame/lesson.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = MOST_STAGES * MOST_MICRO };

static char *text_of(const Schedule *s) {                  // "F0 F1 B0 ..."; free() it
    char *text = host_alloc(24 * s->n + 1);
    for (size_t e = 0; e < s->n; e++)
        sprintf(text + strlen(text), "%s%c%zu", e ? " " : "", "FB"[s->ops[e].what == BACKWARD],
                s -> ops[e].micro_batch);
    return text;
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
            Outcome played = by_hand_judge(stage, p, m);
            legal += played.verdict == LEGAL;
            end[n] = played.end;
            want_end[n] = (naive ? m * p : m + p - 1) * (T_FORWARD + T_BACKWARD);
            for (size_t i = 0; i < p; i++, stages++) {
                flight[stages] = most_in_flight(&stage[i]);
                want_flight[stages] = naive ? 1 : early_back && p - i < m ? p - i : m;
            }
            schedule_all_free(stage, p);
        }
    check_numbers(run, what, "legal schedules, p = 1..8, m = 1..24", &legal, &all, 1, 0);
    check_numbers(run, what, naive ? "step time m p (t_f+t_b)" : "step time (m+p-1)(t_f+t_b)", end,
                  want_end, CASES, 0);
    const char *most = naive ? "in flight 1" : early_back ? "in flight min(p-i, m)" : "in flight m";
    check_numbers(run, what, most, flight, want_flight, stages, 0);
}

static void golden(Run *run, size_t i, const char *order) {            // p = 4, m = 8
    Schedule mine = by_hand_1f1b(4, 8, i);
    char name[40], *text = text_of(&mine);
    sprintf(name, "stage %zu of 4, m = 8", i);
    say_detail(run, "  stage %zu: %s", i, text);
    check_true(run, "1F1B order as published", name, !strcmp(text, order));
    free(text);
    schedule_free(&mine);
}

// Lists that must be refused, made from 1F1B's with p = 3, m = 4 by one small change.
static void refused(Run *run) {
    Schedule *s = schedule_all(by_hand_1f1b, 3, 4);  // stage 1: F0 F1 B0 F2 B1 F3 B2 B3
    PipeOp *op = s[1].ops, keep[8];
    memcpy(keep, op, sizeof keep);
    op[0] = keep[2]; op[2] = keep[0];
    check_true(run, "refused", "B0 before F0: a deadlock",
               by_hand_judge(s, 3, 4).verdict == DEADLOCK);
    memcpy(op, keep, sizeof keep);
    op[7].micro_batch = 2;
    check_true(run, "refused", "B2 twice, B3 never", by_hand_judge(s, 3, 4).verdict == NOT_ONCE);
    memcpy(op, keep, sizeof keep);
    op[0] = keep[1]; op[1] = keep[0];
    check_true(run, "refused", "F1 before F0 on one stage: the wrong message",
               by_hand_judge(s, 3, 4).verdict == WRONG_MESSAGE);
    memcpy(op, keep, sizeof keep);
    op[1] = keep[2]; op[2] = keep[1];
    check_true(run, "not refused", "B0 before F1: legal, only slower",
               by_hand_judge(s, 3, 4).verdict == LEGAL);
    bool longer = by_hand_judge(s, 3, 4).end > (4 + 3 - 1) * (T_FORWARD + T_BACKWARD);
    check_true(run, "not refused", "and that is what it costs: a longer step", longer);
    schedule_all_free(s, 3);
    // Stage 0 sends F5 and F6 ahead, stage 1 sends B1 and B2 back: before F7 and B3 no buffer is
    // free.
    Schedule unlike[] = { schedule_gpipe(2, 8, 0), by_hand_1f1b(2, 8, 1) };
    check_true(run, "refused, buffers full", "GPipe on stage 0, 1F1B on stage 1: a deadlock",
               by_hand_judge(unlike, 2, 8).verdict == DEADLOCK);
    schedule_free(&unlike[0]);
    schedule_free(&unlike[1]);
}

// ---------------------------------------------------------- the page: 4 stages, 8 micro-batches

enum { P = 4, M = 8 };

// Two columns a unit: "F0", "B0--", ".." idle.
static void chart(Run *run, const char *title, ScheduleRule rule) {
    Schedule *stage = schedule_all(rule, P, M);
    Outcome played = by_hand_judge(stage, P, M);
    say(run, "%s: %zu units", title, played.end);
    for (size_t i = 0; i < P; i++) {
        char row[2 * P * M * (T_FORWARD + T_BACKWARD) + 1];
        memset(row, '.', 2 * played.end);
        row[2 * played.end] = 0;
        for (size_t e = 0; e < stage[i].n; e++) {
            PipeOp op = stage[i].ops[e];
            char *at = row + 2 * played.start[i][e];
            memset(at, '-', 2 * by_hand_duration(op));
            at[0] = "FB"[op.what == BACKWARD];
            at[1] = (char)('0' + op.micro_batch);
        }
        say(run, "  stage %zu  %s  %zu in flight", i, row, most_in_flight(&stage[i]));
    }
    schedule_all_free(stage, P);
}

// The ops [lo, hi) of stage 1 with their messages.
static void messages(Run *run, const char *phase, const Schedule *s, size_t lo, size_t hi) {
    char line[24 * 2 * M] = "";
    for (size_t e = lo; e < hi; e++) {
        StageOp from, to;
        PipeOp op = s->ops[e];
        char *at = line + strlen(line);
        if (pipe_op_needs(op, 1, P, 1, &from)) at += sprintf(at, "%zu>", from.stage);
        at += sprintf(at, "%c%zu", "FB"[op.what == BACKWARD], op.micro_batch);
        if (pipe_op_feeds(op, 1, P, 1, &to)) at += sprintf(at, ">%zu", to.stage);
        if (e + 1 < hi) sprintf(at, " ");
    }
    say(run, "  %-9s  %s", phase, line);
}

static void table(Run *run) {
    const ScheduleRule rule[] = { schedule_naive, schedule_gpipe, by_hand_1f1b };
    char step[3][32], idle[3][32], flight[3][24 * P];
    for (size_t n = 0; n < 3; n++) {
        Schedule *stage = schedule_all(rule[n], P, M);
        size_t end = by_hand_judge(stage, P, M).end;
        sprintf(step[n], "=%zu units", end);
        sprintf(idle[n], "=%.1f %%", 100 - 100.0 * M * (T_FORWARD + T_BACKWARD) / (double)end);
        strcpy(flight[n], "=");
        for (size_t i = 0; i < P; i++)
            sprintf(flight[n] + strlen(flight[n]), "%s%zu", i ? " " : "",
                    most_in_flight(&stage[i]));
        schedule_all_free(stage, P);
    }
    static const char *const columns[] = { "naive", "GPipe", "1F1B", NULL };
    results(
        run, columns,
        (Result[]){ { "step", "m p (t_f+t_b); (m+p-1)(t_f+t_b)", { step[0], step[1], step[2] } },
                    { "idle, of the step", "1-1/p; (p-1)/(m+p-1)", { idle[0], idle[1], idle[2] } },
                    { "in flight, stage 0 1 2 3",
                      "1; m; min(p-i, m)",
                      { flight[0], flight[1], flight[2] } },
                    {0} });
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this lesson only writes lists: start it with one rank");
    if (player_asked(run)) {                               // make play-05: any schedule
        player(run);
        return;
    }
    say(run, "F: forward, 1 unit of time. B: backward, 2 units. In flight: between their forward "
             "and backward.");
    chart(run, "GPipe, p = 4 stages, m = 8 micro-batches", schedule_gpipe);
    chart(run, "1F1B, p = 4 stages, m = 8 micro-batches", by_hand_1f1b);
    Schedule list = by_hand_1f1b(P, M, 1);
    say(run, "1F1B, stage 1 with its messages: 0>F0>2 receives from stage 0, runs forward 0, sends "
             "to stage 2");
    messages(run, "warm-up", &list, 0, P - 2);
    messages(run, "steady", &list, P - 2, 2 * M - (P - 2));
    messages(run, "cool-down", &list, 2 * M - (P - 2), 2 * M);
    schedule_free(&list);
    say(run, "The judge refuses a list that hangs, has an op twice, or receives a message it does "
             "not wait for.");
    say(run, "A legal one may still be slow. As published: PTD-P (arXiv 2104.04473), figure 4.");
    table(run);
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

static const Option options[] = { PLAYER_OPTIONS, {0} };
EXPERIMENT(by_hand, options);
