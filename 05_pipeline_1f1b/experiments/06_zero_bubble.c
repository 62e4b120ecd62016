// 06_zero_bubble.c (experiment): ZB-H1 and two automatic lists equal gradient accumulation in every
// bit. Compares steps, bubbles and memory with 1F1B's. tests/lists.t has lists of other sizes.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 11 sequences of 5 to 10 counted tokens in 7 micro-batches: 2, 2, 2, 2, 1, 1, 1; 9 blocks on 4
// stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 11, MICRO = 8 }; // MICRO: micro-batches on equal stages
static const double clip = 0.25;
static Stack equal_stack(void) { return (Stack){ .model = sizes, .blocks = 2, .sequences = 1 }; }

// The automatic lists for the times of the equal stages, with a cap of p or 2p-1.
static OpTimes equal_times(void) {
    Stack s = equal_stack();
    return zb_times(&s);
}
static Schedule auto_p(size_t p, size_t m, size_t i) {
    return schedule_zb_auto(p, m, i, p, equal_times());
}
static Schedule auto_2p(size_t p, size_t m, size_t i) {
    return schedule_zb_auto(p, m, i, 2 * p - 1, equal_times());
}

// A way to make the lists. column: its name on the page. draw: its name for --draw and in the ids.
enum { ZB_WAYS = 4 };
typedef struct {
    const char *name, *column, *draw;
    ScheduleRule rule;
} ZeroBubbleWay;
static const ZeroBubbleWay ways[ZB_WAYS] = {
    { "1F1B", "1F1B", "1f1b", schedule_1f1b },
    { "ZB-H1", "ZB-H1", "zb-h1", schedule_zb_h1 },
    { "auto, p", "planner, memory p", "auto-p", auto_p },
    { "auto, 2p-1", "planner, memory 2p-1", "auto-2p-1", auto_2p },
};

// Two steps of m micro-batches in a row. The second one does not wait for the norm. Frees the list.
static Schedule twice(Schedule one, size_t m) {
    Schedule s = { 0 };
    for (size_t at = 0; at < 2 * one.n; at++) {
        PipeOp op = one.ops[at % one.n];
        op.micro_batch += at < one.n ? 0 : m;
        schedule_add_op(&s, op);
    }
    schedule_free(&one);
    return s;
}

// The rule's list of stage i. An automatic rule makes the list for these times.
static Schedule list_for(ScheduleRule rule, size_t p, size_t m, size_t i, const OpTimes *times) {
    size_t cap = rule == auto_p ? p : rule == auto_2p ? 2 * p - 1 : 0;
    return cap ? schedule_zb_auto(p, m, i, cap, *times) : rule(p, m, i);
}
// The time of one step, or of two, by the rule's lists for these times.
static double steps_of(ScheduleRule rule, size_t p, size_t m, const OpTimes *times, size_t steps) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) {
        stage[i] = list_for(rule, p, m, i, times);
        if (steps == 2) stage[i] = twice(stage[i], m);
    }
    return (double)lists_makespan(stage, p, steps * m, times);
}
static double step_of(ScheduleRule rule, size_t p, size_t m, const OpTimes *times) {
    return steps_of(rule, p, m, times, 1);
}
// units: F = B = W = 1. slow: F, B and W of a block, with messages that take a quarter of F.
static const OpTimes units = { 1, 1, 1, 0 }, slow = { 12, 14, 10, 3 };

// ---------------------------------------------------------------- lists alone

static void lists(Run *run) {
    // ZB-H1 has (p-1)(F+B-W) = 3 idle units, a third of 1F1B's 9.
    double got[4], want[] = { 33, 27, 29, 27 };
    for (size_t k = 0; k < 4; k++) got[k] = step_of(ways[k].rule, 4, 8, &units);
    check_numbers(run, "lists", "p = 4, m = 8, F = B = W = 1: 33, 27, 29, 27", got, want, 4, 0);
    // ZB-H1's next step is as long as the first. With the cap 2p-1 the next step has no bubble: 24
    // units.
    double two[] = { steps_of(schedule_zb_h1, 4, 8, &units, 2),
                     steps_of(auto_2p, 4, 8, &units, 2) };
    double no_barrier[] = { 27 + 27, 27 + 24 };
    check_numbers(run, "lists", "two steps without a barrier: 54, 51", two, no_barrier, 2, 0);
    // The planner knows the time of a message. A list that is planned without this time takes 398
    // units.
    double told = step_of(auto_p, 4, 8, &slow), known = 384;
    check_numbers(run, "lists", "auto, p, F 12, B 14, W 10, a message 3: 384", &told, &known, 1, 0);
}

// ---------------------------------------------------------------- equal stages

// 1F1B and ZB-H1 have a formula for micro-batches in flight. An automatic list has none.
static Predicted flight_formula(const ZeroBubbleWay *way, size_t p, size_t m, size_t i) {
    bool one_by_one = way->rule == schedule_1f1b;
    size_t most = one_by_one ? p - i : p;
    if (!one_by_one && way->rule != schedule_zb_h1) return NOT_PREDICTED;
    return formula(most < m ? most : m);
}

// Measures a step, and the next one without a barrier.
static void measure(Run *run, const Stack *stack) {
    size_t p = run->world->size, i = run->world->rank;
    OpTimes t = zb_times(stack);
    for (size_t k = 0; k < ZB_WAYS; k++) {
        const ZeroBubbleWay *way = &ways[k];
        EqualWay equal = { way->draw, way->name, host_alloc(p * sizeof *equal.stage),
                           flight_formula(way, p, MICRO, i), NOT_PREDICTED };
        for (size_t stage = 0; stage < p; stage++)
            equal.stage[stage] = list_for(way->rule, p, MICRO, stage, &t);
        Schedule list = twice(list_for(way->rule, p, MICRO, i, &t), MICRO);
        int drawn = way->rule == schedule_zb_h1 ? 0 : PICTURE_DETAIL;
        int same_scale = k > 0 ? PICTURE_SAME_SCALE : 0;
        CostName title, id, name;
        cost_name(&title, "%s, m = %d", way->column, MICRO);
        Played one = equal_stages(run, stack, MICRO, &equal, title.text, drawn | same_scale);
        Played two = play_list(run, stack, &list, 2 * MICRO);
        schedule_free(&list);
        if (!clock_config()->simulated) continue; // real time differs from run to run
        double next = steps_of(way->rule, p, MICRO, &t, 2) - step_of(way->rule, p, MICRO, &t);
        check_cost(run, cost_name(&id, "next.%s", way->draw),
                   cost_name(&name, "equal stages, %s: the next step, no barrier", way->name), "ps",
                   NOT_PREDICTED, played(next), (double)(two.timing.step - one.timing.step));
    }
}

// ---------------------------------------------------------------- the page

static void table(Run *run) {
    static const struct {
        const char *name, *ids;
    } quantity[] = {
        { "step", "step.%s" },
        { "idle, of the step", "idle.%s" },
        { "next step without a barrier", "next.%s" },
        { "micro-batches kept until W", "flight.%s" },
        { "activations, peak", "activations.%s" },
        { "messages sent", "sent.%s" },
    };
    enum { ROWS = sizeof quantity / sizeof *quantity };
    char cell[ROWS][ZB_WAYS][80], plain[ZB_WAYS][24];
    Result rows[ROWS + 2] = { { 0 } };
    const char *columns[ZB_WAYS + 1] = { NULL };
    for (size_t k = 0; k < ZB_WAYS; k++) {
        columns[k] = ways[k].column;
        for (size_t r = 0; r < ROWS; r++) {
            snprintf(cell[r][k], sizeof cell[r][k], quantity[r].ids, ways[k].draw);
            rows[r].what = quantity[r].name;
            rows[r].cell[k] = cell[r][k];
        }
        snprintf(plain[k], sizeof plain[k], "=%.0f units",
                 step_of(ways[k].rule, run->world->size, MICRO, &units));
        rows[ROWS].cell[k] = plain[k];
    }
    rows[ROWS].what = "step if F = B = W = 1";
    results(run, columns, clock_config()->simulated ? rows : rows + 3); // real clock: no times
    say(run, "  Without a barrier: a stage begins its next step before the others end this one.");
    say(run, "  Step without messages: 1F1B (m+p-1)(F+B+W); ZB-H1 m(F+B+W) + (p-1)(F+B-W) if "
             "m >= p.");
    bool slower = run->is_root && clock_config()->simulated &&
                  cost_value(run, "step.auto-p") > cost_value(run, "step.zb-h1");
    if (slower)
        say(run, "  With memory p this planner is slower than ZB-H1. The paper's planner keeps the "
                 "best of many lists.");
}

static void answer(Run *run) {
    size_t p = run->world->size;
    if (p == 1) {
        say_answer(run, "One stage has no bubble to fill: all lists take the same time.");
    } else if (run->is_root && clock_config()->simulated) {
        bool less = cost_value(run, "idle.zb-h1") < cost_value(run, "idle.1f1b");
        say_answer(run,
                   "%s. ZB-H1 is idle for %s of its step of %s, 1F1B for %s of %s. The "
                   "planner, with memory for 2p-1 micro-batches, is idle for %s.",
                   less ? "Yes, a part of it" : "No", cost_text(run, "idle.zb-h1"),
                   cost_text(run, "step.zb-h1"), cost_text(run, "idle.1f1b"),
                   cost_text(run, "step.1f1b"), cost_text(run, "idle.auto-2p-1"));
    } else {
        say_answer(run,
                   "Yes, a part of it. If F = B = W = 1, ZB-H1's lists take %.0f units, and "
                   "1F1B's take %.0f.",
                   step_of(schedule_zb_h1, p, MICRO, &units),
                   step_of(schedule_1f1b, p, MICRO, &units));
    }
    say_cost(run,
             "activations are kept until W: %s per rank instead of %s, and %s with the "
             "planner's 2p-1.",
             cost_text(run, "activations.zb-h1"), cost_text(run, "activations.1f1b"),
             cost_text(run, "activations.auto-2p-1"));
    say_use_when(run, "there are few micro-batches per stage, and memory for p of them on every "
                      "stage.");
}

// ---------------------------------------------------------- training, on stages of unequal size

static StepResult zero_bubble_step(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                                   size_t micro_batches) {
    Schedule list = rank->schedule(rank->pp->size, micro_batches, rank->pp->rank);
    model_zero_gradients(m);
    PipelineResult r = zero_bubble_run(rank->pp, m, &list, batch, micro_batches);
    schedule_free(&list);
    return pipeline_update(rank, m, o, batch, r);
}

// Each list must give the bits of accumulation, on unequal stages.
static void train(Run *run, const Training *t) {
    StagesWay by[ZB_WAYS];
    StageCosts seen[ZB_WAYS];
    CostName what[ZB_WAYS];
    for (size_t k = 1; k < ZB_WAYS; k++) {
        cost_name(&what[k], "%s = accumulation", ways[k].name);
        by[k] = (StagesWay){ what[k].text, NULL, zero_bubble_step, ways[k].rule, NULL };
    }
    stages_compare(run, t, &by[1], ZB_WAYS - 1, &seen[1]);
}

static void zero_bubble(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.clip = clip;
    lists(run);
    train(run, &t);
    Stack stack = equal_stack();
    config_store(run, &stack.model);
    stack.model.seed = run->seed;
    OpTimes d = zb_times(&stack);
    say(run, "A backward has two halves: B=, of inputs (the stage before waits for it), and W~, "
             "of weights.");
    say(run, "ZB-H1, a fixed order from the zero-bubble paper, runs the W halves later, when the "
             "stage would be");
    say(run, "idle. A planner picks each stage's next op greedily, with memory for p or "
             "2p-1 micro-batches.");
    say(run, "F, B, W of a stage take %.3g, %.3g, %.3g us, a message %.3g us.",
        (double)d.forward / 1e6, (double)d.backward_inputs / 1e6, (double)d.backward_weights / 1e6,
        (double)d.message / 1e6);
    measure(run, &stack);
    table(run);
    answer(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "draw", "1f1b|zb-h1|auto-p|auto-2p-1", "zb-h1",
      "the schedule whose picture --svg and --trace write" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(zero_bubble, options);
