// 01_by_hand.c (experiment): judges and times the lists of 1F1B for many sizes, draws the lists of
// the page, and compares 1F1B with GPipe and the naive order. With --schedule or --list (make
// play-05) player.c judges and draws any schedule.
#include "05_pipeline_1f1b/by_hand.h"
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- all sizes

static void judge_all(Run *run) {
    enum { CASES = MOST_STAGES * MOST_MICRO };
    double legal = 0, all = CASES, end[CASES], want_end[CASES];
    double flight[CASES * MOST_STAGES], want_flight[CASES * MOST_STAGES];
    size_t n = 0, stages = 0;
    for (size_t p = 1; p <= MOST_STAGES; p++)
        for (size_t m = 1; m <= MOST_MICRO; m++, n++) {
            Schedule *stage = schedule_all(by_hand_1f1b, p, m);
            Outcome played = by_hand_judge(stage, p, m);
            legal += played.verdict == LEGAL;
            end[n] = played.end;
            want_end[n] = (m + p - 1) * (T_FORWARD + T_BACKWARD);
            for (size_t i = 0; i < p; i++, stages++) {
                flight[stages] = list_in_flight(&stage[i]);
                want_flight[stages] = p - i < m ? p - i : m;
            }
            schedule_all_free(stage, p);
        }
    check_numbers(run, "1F1B", "legal schedules, p = 1..8, m = 1..24", &legal, &all, 1, 0);
    check_numbers(run, "1F1B", "step time (m+p-1)(t_f+t_b)", end, want_end, CASES, 0);
    check_numbers(run, "1F1B", "in flight min(p-i, m)", flight, want_flight, stages, 0);
}

// ---------------------------------------------------------- the page: 4 stages, 8 micro-batches

enum { P = 4, M = 8 };

// Draws the lists. A unit of time is two columns wide. "F0" and "B0--" are ops, and ".." is an idle
// unit.
static void chart(Run *run, const char *title, ScheduleRule rule) {
    Schedule *stage = schedule_all(rule, P, M);
    Outcome played = by_hand_judge(stage, P, M);
    say(run, "%s: %zu units", title, played.end);
    for (size_t i = 0; i < P; i++) {
        char row[2 * P * M * (T_FORWARD + T_BACKWARD) + 1];
        memset(row, '.', 2 * played.end);
        row[2 * played.end] = 0;
        for (size_t e = 0; e < stage[i].n && e < 2 * M; e++) {
            PipeOp op = stage[i].ops[e];
            char *at = row + 2 * played.start[i][e];
            memset(at, '-', 2 * by_hand_duration(op));
            at[0] = "FB"[op.what == BACKWARD];
            at[1] = (char)('0' + op.micro_batch);
        }
        say(run, "  stage %zu  %s  %zu in flight", i, row, list_in_flight(&stage[i]));
    }
    schedule_all_free(stage, P);
}

// Prints the ops [lo, hi) of stage 1 with their messages.
static void messages(Run *run, const char *phase, const Schedule *s, size_t lo, size_t hi) {
    char line[24 * 2 * M] = "";
    for (size_t e = lo; e < hi && e < s->n; e++) {
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
    static const ScheduleRule rule[] = { schedule_naive, schedule_gpipe, by_hand_1f1b };
    static const char *const columns[] = { "naive", "GPipe", "1F1B", NULL };
    Result rows[] = {
        { .what = "step", .formula = "naive mp(f+b), else (m+p-1)(f+b)" },
        { .what = "idle, of the step", .formula = "naive 1-1/p, else (p-1)/(m+p-1)" },
        { .what = "in flight, stages 0 to 3", .formula = "naive 1, GPipe m, 1F1B min(p-i, m)" },
        { 0 },
    };
    size_t end[3], most[3]; // most: the most micro-batches in flight on stage 0
    for (size_t n = 0; n < 3; n++) {
        Schedule *stage = schedule_all(rule[n], P, M);
        end[n] = by_hand_judge(stage, P, M).end;
        most[n] = list_in_flight(&stage[0]);
        double busy = (double)(M * (T_FORWARD + T_BACKWARD)) / (double)end[n];
        rows[0].cell[n] = page_text(run, "=%zu units", end[n]);
        rows[1].cell[n] = page_text(run, "=%.1f %%", 100 - 100 * busy);
        rows[2].cell[n] = flight_cell(run, stage, P);
        schedule_all_free(stage, P);
    }
    results(run, columns, rows);
    say(run, "  Naive: a micro-batch passes all stages and comes back before the next one starts.");
    const char *both = page_text(run, "both take %zu units", end[2]);
    if (end[2] != end[1]) both = page_text(run, "1F1B takes %zu units, GPipe %zu", end[2], end[1]);
    say_answer(run,
               "An order is legal if every op occurs once, each backward comes after its forward, "
               "each stage receives messages in the order in which they are sent, and no stage "
               "waits for ever. 1F1B keeps at most %zu micro-batches, GPipe %zu; %s.",
               most[2], most[1], both);
    say_cost(run, "%s than GPipe. The bubble remains: %s of the step is idle.",
             end[2] <= end[1] ? "no more time" : "more time", rows[1].cell[2] + 1);
    say_use_when(run, "you choose or write a schedule. Check an order with this program before you "
                      "run it.");
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this lesson only writes lists: start it with one rank");
    if (player(run)) return;
    say(run, "F: forward, f = 1 unit of time. B: backward, b = 2. In flight: micro-batches "
             "whose\nforward is done, but not their backward.");
    chart(run, "GPipe, p = 4 stages, m = 8 micro-batches", schedule_gpipe);
    chart(run, "1F1B (PTD-P, arXiv 2104.04473, figure 4), p = 4 stages, m = 8 micro-batches",
          by_hand_1f1b);
    Schedule list = by_hand_1f1b(P, M, 1);
    say(run, "1F1B, stage 1 with its messages: 0>F0>2 receives from stage 0, runs forward 0, sends "
             "to stage 2");
    messages(run, "warm-up", &list, 0, P - 2);
    messages(run, "steady", &list, P - 2, 2 * M - (P - 2));
    messages(run, "cool-down", &list, 2 * M - (P - 2), 2 * M);
    schedule_free(&list);
    say(run, "This program rejects a list that waits for ever, has an op twice, or takes a wrong "
             "message. A legal\n"
             "list may still be slow. Stages i count from 0.");
    table(run);
    judge_all(run);
}

// Only player() (player.c) uses these options.
static const Option options[] = {
    { "schedule", "naive|gpipe|1f1b|interleaved|zb-h1|zb-auto", NULL,
      "draw, judge and time this schedule" },
    { "list", "OPS", NULL,
      "or this one: 'F0 F1 B0 B1 / F0 B0 F1 B1'; I0 W0 for B0 in halves, F0c1 of chunk 1" },
    { "p", "N", "4", "stages" },
    { "m", "N", "8", "micro-batches" },
    { "v", "N", "2", "chunks on each stage, of interleaved ones" },
    { "tf", "X", "1", "units of time that the forward of a stage takes" },
    { "tb", "X", "1", "units of its backward of inputs" },
    { "tw", "X", "1", "units of its backward of weights; a whole backward takes tb + tw" },
    { "message", "X", "0", "units of a message" },
    REALS_ONLY("this lesson computes times and has no tensors"),
    { 0 },
};
EXPERIMENT(by_hand, options);
