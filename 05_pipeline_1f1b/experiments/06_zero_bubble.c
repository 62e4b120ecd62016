// 06_zero_bubble.c (experiment): ZB-H1 and two lists of a planner equal gradient accumulation in
// every bit. Compares steps, bubbles and memory with 1F1B's. tests/lists.t has lists of other
// sizes.
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdlib.h>

// The 7 micro-batches have 2, 2, 2, 2, 1, 1 and 1 of the 11 sequences. A sequence has 5 to 10
// counted tokens. The 4 stages have 3, 2, 2 and 2 of the 9 blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 11, MICRO = 8 }; // MICRO: micro-batches on equal stages
static const double clip = 0.25;
static Stack equal_stack(void) { return (Stack){ .model = sizes, .blocks = 2, .sequences = 1 }; }

// ---------------------------------------------------------------- four ways to make the lists

enum { ONE_F_ONE_B, ZB_H1, PLANNED_P, PLANNED_2P, WAYS };
// --draw and the ids of costs use `id`.
static const struct {
    const char *name, *id;
} ways[WAYS] = { { "1F1B", "1f1b" },
                 { "ZB-H1", "zb-h1" },
                 { "planner, memory p", "auto-p" },
                 { "planner, memory 2p-1", "auto-2p-1" } };

// Returns the list of stage i. The planner makes its list for these times.
static Schedule list_of(size_t way, size_t p, size_t m, size_t i, const OpTimes *times) {
    if (way == ONE_F_ONE_B) return schedule_1f1b(p, m, i);
    if (way == ZB_H1) return schedule_zb_h1(p, m, i);
    return schedule_zb_auto(p, m, i, way == PLANNED_P ? p : 2 * p - 1, *times);
}
// Returns the time of `steps` steps in a row, without a barrier between them, by the lists for
// these times.
static double steps_of(size_t way, size_t p, const OpTimes *times, size_t steps) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) {
        stage[i] = schedule_repeated(list_of(way, p, MICRO, i, times), MICRO, steps, false);
    }
    return (double)lists_makespan(stage, p, steps * MICRO, times);
}

// ---------------------------------------------------------------- equal stages

// Measures a step, then two steps in a row without a barrier between them.
static void measure(Run *run, const Stack *stack, size_t way) {
    size_t p = run->world->size, i = run->world->rank, most = way == ZB_H1 ? p : p - i;
    OpTimes t = zb_times(stack);
    EqualWay equal = { ways[way].id, ways[way].name, host_alloc(p * sizeof *equal.stage),
                       formula(most < MICRO ? most : MICRO), NOT_PREDICTED };
    if (way >= PLANNED_P) equal.flight = NOT_PREDICTED;
    for (size_t k = 0; k < p; k++) equal.stage[k] = list_of(way, p, MICRO, k, &t);
    int flags = way == ZB_H1 ? 0 : PICTURE_DETAIL;
    if (way > 0) flags |= PICTURE_SAME_SCALE;
    Played one = equal_stages(run, stack, MICRO, &equal,
                              page_text(run, "%s, m = %d", equal.name, MICRO), flags);
    Schedule list = schedule_repeated(list_of(way, p, MICRO, i, &t), MICRO, 2, false);
    Played two = play_list(run, stack, &list, 2 * MICRO);
    schedule_free(&list);
    if (!clock_config()->simulated) return; // real time differs from run to run
    check_cost(run, page_text(run, "next.%s", equal.id),
               page_text(run, "equal stages, %s: the next step, no barrier", equal.name), "ps",
               NOT_PREDICTED, played(steps_of(way, p, &t, 2) - steps_of(way, p, &t, 1)),
               (double)(two.timing.step - one.timing.step));
}

// ---------------------------------------------------------------- the page

static void table(Run *run) {
    enum { COSTS = 6 };
    static const char *const ids[COSTS] = { "step.%s",   "idle.%s",        "next.%s",
                                            "flight.%s", "activations.%s", "sent.%s" };
    const char *columns[WAYS + 1] = { NULL };
    Result rows[] = { { .what = "step" },
                      { .what = "idle, of the step" },
                      { .what = "next step without a barrier" },
                      { .what = "micro-batches kept until W" },
                      { .what = "activations, peak" },
                      { .what = "messages sent" },
                      { 0 } };
    for (size_t k = 0; k < WAYS; k++) {
        columns[k] = ways[k].name;
        for (size_t r = 0; r < COSTS; r++) rows[r].cell[k] = page_text(run, ids[r], ways[k].id);
    }
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
    if (run->world->size == 1) {
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
        say_answer(run, "The bits are the same. Times need the simulated clock.");
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
// Returns the planner's list of stage i, for the times of the equal stages.
static Schedule planned(size_t way, size_t p, size_t m, size_t i) {
    Stack stack = equal_stack();
    OpTimes times = zb_times(&stack);
    return list_of(way, p, m, i, &times);
}
static Schedule planned_p(size_t p, size_t m, size_t i) { return planned(PLANNED_P, p, m, i); }
static Schedule planned_2p(size_t p, size_t m, size_t i) { return planned(PLANNED_2P, p, m, i); }

static void zero_bubble(Run *run) {
    static const StagesWay by[] = {
        { "ZB-H1 = accumulation", NULL, zero_bubble_step, schedule_zb_h1, NULL },
        { "planner, memory p = accumulation", NULL, zero_bubble_step, planned_p, NULL },
        { "planner, memory 2p-1 = accumulation", NULL, zero_bubble_step, planned_2p, NULL },
    };
    StageCosts seen[WAYS - 1];
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.clip = clip;
    stages_compare(run, &t, by, WAYS - 1, seen);
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
    for (size_t way = 0; way < WAYS; way++) measure(run, &stack, way);
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
