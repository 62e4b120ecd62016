// 06_zero_bubble.c (experiment): checks that ZB-H1 and a planner's lists equal gradient
// accumulation in every bit. Compares step time, idle time and memory with those of 1F1B.
#include "05_pipeline_1f1b/experiments/experiments.h"

// The 7 micro-batches have 2, 2, 2, 2, 1, 1 and 1 of the 11 sequences. A sequence has 5 to 10
// counted tokens. The 4 stages have 3, 2, 2 and 2 of the 9 blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37, .dropout = 0.1
};
enum { SEQUENCES = 11, MICRO = 8 }; // MICRO: micro-batches on equal stages
static const double clip = 0.25;
static Stack equal_stack(void) { return (Stack){ .model = sizes, .blocks = 2, .sequences = 1 }; }

// Returns the planner's list of stage i, for the times of the equal stages.
static Schedule planned(size_t p, size_t m, size_t i) {
    Stack stack = equal_stack();
    return schedule_zb_auto(p, m, i, 2 * p - 1, zb_times(&stack));
}

static PipelineResult run_planned(Comm *pp, Model *model, const Batch *batch, size_t m) {
    Schedule list = planned(pp->size, m, pp->rank);
    PipelineResult r = zero_bubble_run(pp, model, &list, batch, m);
    schedule_free(&list);
    return r;
}
static PipelineResult run_zb_h1(Comm *pp, Model *model, const Batch *batch, size_t m) {
    return pipeline_way_run(WAY_ZB_H1, pp, NULL, model, NULL, batch, m, 1);
}

static const EqualWay planner = { WAY_ZB_H1, "planner", "planner, memory 2p-1", planned,
                                  run_planned };

static void measure(Run *run, const Stack *stack, const EqualWay *way, int picture) {
    equal_stages(run, way, stack, MICRO, page_text(run, "%s, m = %d", way->name, MICRO),
                 equal_files(run, way) | picture);
}

// ---------------------------------------------------------------- the page

static void table(Run *run) {
    const char *const columns[] = { "1F1B", "ZB-H1", planner.name, NULL };
    static const Result rows[] = {
        { "step", NULL, { "step.1f1b", "step.zb-h1", "step.planner" } },
        { "idle, of the step", NULL, { "idle.1f1b", "idle.zb-h1", "idle.planner" } },
        { "micro-batches kept until W", NULL, { "flight.1f1b", "flight.zb-h1", "flight.planner" } },
        { "activations, peak",
          NULL,
          { "activations.1f1b", "activations.zb-h1", "activations.planner" } },
        { "messages sent", NULL, { "sent.1f1b", "sent.zb-h1", "sent.planner" } },
        { 0 }
    };
    // Under the wall clock the rows of times are left out.
    results(run, columns, clock_config()->simulated ? rows : rows + 2);
    say(run, "  Step without messages: 1F1B (m+p-1)(F+B+W); ZB-H1 m(F+B+W) + (p-1)(F+B-W) if "
             "m >= p.");
    say(run,
        "  Planner: at least m(F+B+W) + (p-1)F, as the last stage begins after p-1 forwards. p "
        "stages, m = %d.\n"
        "  Kept until W: the most micro-batches between their F and their W.",
        MICRO);
}

static void answer(Run *run) {
    if (run->is_root && clock_config()->simulated) {
        bool less = cost_value(run, "idle.zb-h1") < cost_value(run, "idle.1f1b");
        say_answer(run,
                   "%s. ZB-H1 is idle for %s of its step of %s, 1F1B for %s of %s. The "
                   "planner, with memory for 2p-1 micro-batches, is idle for %s.",
                   less ? "Yes, a part of it" : "No", cost_text(run, "idle.zb-h1"),
                   cost_text(run, "step.zb-h1"), cost_text(run, "idle.1f1b"),
                   cost_text(run, "step.1f1b"), cost_text(run, "idle.planner"));
    } else {
        say_answer(run, "The bits are the same. Times need the simulated clock.");
    }
    say_cost(
        run,
        "activations of %s per rank, not %s: a stage keeps p micro-batches until their W, and B "
        "copies tensors for W. Planner: %s.",
        cost_text(run, "activations.zb-h1"), cost_text(run, "activations.1f1b"),
        cost_text(run, "activations.planner"));
    say_use_when(run, "m is only a few times p, and every stage has memory for p micro-batches.");
}

// ---------------------------------------------------------------- the lesson

static void zero_bubble(Run *run) {
    static const StagesWay by[] = {
        { .what = "ZB-H1 = accumulation", .loop = run_zb_h1 },
        { .what = "planner = accumulation", .loop = run_planned },
    };
    StageCosts seen[2];
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.clip = clip;
    stages_compare(run, &t, by, 2, seen);
    Stack stack = equal_stack();
    config_store(run, &stack.model);
    stack.model.seed = run->seed;
    OpTimes d = zb_times(&stack);
    say(run, "A backward has two halves. B (=) computes the gradient of the inputs; the stage "
             "before waits for it.");
    say(run, "W (~) computes the gradients of the weights; only the update at the step's end needs "
             "them. 1F1B runs");
    say(run, "both as one op. ZB-H1 (Qi et al. 2023) delays W, so that W fills idle time at the "
             "end.");
    say(run,
        "F, B, W of a stage take %.3g, %.3g, %.3g us, a message %.3g us. A planner computes "
        "another list from",
        (double)d.forward / 1e6, (double)d.backward_inputs / 1e6, (double)d.backward_weights / 1e6,
        (double)d.message / 1e6);
    say(run, "these times. Its list may keep up to 2p-1 micro-batches on a stage, so that forwards "
             "also fill idle");
    say(run, "time at the beginning. The planner adds op after op, each time the op that can start "
             "first. If two");
    say(run, "ops of a stage can start at the same time, B comes before F, and F before W.");
    measure(run, &stack, &equal_ways[WAY_1F1B], PICTURE_DETAIL);
    measure(run, &stack, &equal_ways[WAY_ZB_H1], PICTURE_SAME_SCALE);
    measure(run, &stack, &planner, PICTURE_DETAIL | PICTURE_SAME_SCALE);
    table(run);
    answer(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "7", "pieces the batch is cut into" },
    { "draw", "1f1b|zb-h1|planner", "zb-h1", "the schedule whose picture --svg and --trace write" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(zero_bubble, options);
