// 03_gpipe.c (experiment): GPipe's training equals gradient accumulation in every bit, with the two
// loops and with the executor. For equal stages and m = 1 to 32 it prints GPipe's times and memory
// beside those of the naive order.
#include "04_pipeline_naive/experiments/experiments.h"

// The 4 micro-batches have 2, 2, 2 and 1 of the 7 sequences. A sequence has 5 to 10 counted tokens.
// The 4 stages have 3, 2, 2 and 2 of the 9 blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 7 };

// Checks that the lesson's own loop and the executor give the same bits. The executor runs the
// loop's list.
static StageCosts same_bits(Run *run, const char *what, const Training *t, PipelineLoop *loop,
                            ScheduleRule rule) {
    Schedule list = rule(run->world->size, t->micro_batches, run->world->rank);
    StageCosts costs = stages_same_bits(run, what, t, NULL, loop, &list, pipeline_run);
    schedule_free(&list);
    return costs;
}

// ---------------------------------------------------------------- equal stages

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// Returns the time of GPipe's step. The first micro-batch passes all stages and links. Each later
// micro-batch follows as closely as the slowest stage or link lets it.
static size_t gpipe_step(const StackTimes *t, size_t p, size_t m) {
    size_t f = t->forward, b = t->backward, d = p > 1 ? t->message : 0;
    return p * (f + b) + 2 * (p - 1) * d + (m - 1) * (max(f, d) + max(b, d));
}

// Checks the costs of m = 8 in detail. The first message of each link and direction is exposed. The
// other messages hide behind the work of their receiver, unless a message (d) takes longer than
// that work.
static void costs_in_detail(Run *run, const Stack *stack, size_t m, const Timing *gpipe,
                            const Timing *naive) {
    size_t links = run->world->size - 1;
    StackTimes t = stack_times(stack);
    size_t f = t.forward, b = t.backward, d = links ? t.message : 0;
    size_t late = (d > f ? d - f : 0) + (d > b ? d - b : 0);
    size_t exposed = links * (2 * d + (m - 1) * late);
    stack_check_bubble(run, "gpipe", "equal stages, m = 8", stack, m,
                       formula(gpipe_step(&t, links + 1, m)), NOT_PREDICTED, gpipe);
    check_costs(run, "%s", "%s",
                (CostRow[]){
                    { "exposed.gpipe", "equal stages, m = 8: exposed, 2(p-1) messages or more",
                      "ps", BY_FORMULA(exposed), gpipe->exposed },
                    { "hidden.gpipe", "equal stages, m = 8: hidden", "ps",
                      BY_FORMULA(links * 2 * m * d - exposed), gpipe->hidden },
                    { "step.naive", "naive, m = 8: step", "ps",
                      BY_FORMULA(m * ((links + 1) * (f + b) + 2 * links * d)), naive->step },
                    { 0 } });
}

// The page's table has a column for each m. A stage has two blocks, and a micro-batch has one
// sequence.
enum { CASES = RESULT_COLUMNS, M8 = 3, M32 = 5 }; // m = 1, 2, 4, 8, 16, 32
typedef enum { NAIVE_STEP, NAIVE_IDLE, STEP, IDLE, NAIVE_KEPT, KEPT, ROWS } Row;
static void equal_stages(Run *run, const Stack *stack, Result rows[ROWS + 1]) {
    const char *columns[CASES + 1] = { NULL };
    size_t p = run->world->size, i = run->world->rank;
    StackTimes times = stack_times(stack);
    for (size_t k = 0; k < CASES; k++) {
        size_t m = (size_t)1 << k;
        Played naive = stack_play(run, stack, schedule_naive, m);
        Played gpipe = stack_play(run, stack, schedule_gpipe, m);
        check_costs(run, page_text(run, "%%s.m%zu", m),
                    page_text(run, "equal stages, m = %zu: %%s", m),
                    (CostRow[]){ { "step", "step", "ps", BY_FORMULA(gpipe_step(&times, p, m)),
                                   gpipe.timing.step },
                                 { "activations", "activations, peak", "bytes",
                                   BY_FORMULA(m * stack_kept(stack, p, i)), gpipe.activations },
                                 { 0 } });
        if (m == 8) costs_in_detail(run, stack, m, &gpipe.timing, &naive.timing);
        columns[k] = page_text(run, "m = %zu", m);
        for (size_t way = 0; way < 2; way++) {
            const Played *r = way ? &gpipe : &naive;
            rows[way ? STEP : NAIVE_STEP].cell[k] = value_cell(run, (double)r->timing.step, "ps");
            rows[way ? IDLE : NAIVE_IDLE].cell[k] =
                page_text(run, "=%.1f %%", 100 * r->timing.idle_of_total);
            rows[way ? KEPT : NAIVE_KEPT].cell[k] =
                value_cell(run, (double)r->activations, "bytes");
        }
    }
    results(run, columns, rows);
    say(run,
        "  p = %zu stages of two blocks, m micro-batches of one sequence. kept: peak "
        "activations of rank 0.",
        p);
}

static void answer(Run *run, const Result rows[ROWS + 1]) {
    size_t p = run->world->size;
    if (!clock_config()->simulated)
        say_answer(run,
                   "Idle times were not compared, because real times differ from run to run. "
                   "The stages keep %s of activations, those of all micro-batches of a step.",
                   cost_text(run, "activations"));
    else if (p == 1)
        say_answer(run, "One stage never waits; start 2 or more ranks to see idle time.");
    else
        say_answer(run,
                   "%zu equal stages are idle for %s of the step with m = 1, %s with "
                   "m = 8, %s with m = 32. Here a larger m is a larger batch. Against the "
                   "naive order the price is memory: for m = 32 GPipe keeps %s, the naive "
                   "order %s.",
                   p, rows[IDLE].cell[0] + 1, rows[IDLE].cell[M8] + 1, rows[IDLE].cell[M32] + 1,
                   rows[KEPT].cell[M32] + 1, rows[NAIVE_KEPT].cell[M32] + 1);
    say_cost(run, "activations of m micro-batches. Messages have the same bytes. If d <= f, only "
                  "the first message of each link and direction delays the step.");
    say_use_when(run, "m is at least 4 p. Prefer 1F1B (05.02): the same bubble, less memory.");
}

// ---------------------------------------------------------------- the lesson

static void gpipe(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    t.model.dropout = option_real(run, "dropout");
    same_bits(run, "naive: executor = own loop", &t, pipeline_naive, schedule_naive);
    StageCosts loops =
        same_bits(run, "GPipe: executor = own loops", &t, pipeline_gpipe, schedule_gpipe);
    stage_check_loop(run, &t, pipeline_gpipe, schedule_gpipe, t.micro_batches, &loops);
    // A forward has buffers for x and y, a backward for dy and dx.
    size_t message = stage_tokens(&t, 0) * t.model.width * weight_bytes(&t.model);
    check_cost(run, "loop.buffers", "own loops: buffers, peak", "bytes",
               formula(stage_neighbours(run) * message), NOT_PREDICTED, loops.message_buffers);

    const Stack stack = { .model = t.model, .blocks = 2, .sequences = 1 };
    const Timing drawn = stack_play(run, &stack, schedule_gpipe, t.micro_batches).timing;
    picture_show(run, "GPipe, equal stages", PICTURE_MEMORY);
    picture_summary(run, &drawn);
    static const StagesWay way = { "GPipe = accumulation", NULL, pipeline_step, schedule_gpipe,
                                   NULL };
    StageCosts seen;
    stages_compare(run, &t, &way, 1, &seen);
    t.optimizer = adamw(0.01); // seen: the costs of the training with AdamW
    size_t p = run->world->size, buffers = stage_message_buffers(&t, p, run->world->rank);
    stage_check_costs(run, &t, NULL, t.micro_batches, buffers, &seen);
    Result rows[ROWS + 1] = {
        [NAIVE_STEP] = { "naive: step", "m(p(f+b)+2(p-1)d)", { NULL } },
        [NAIVE_IDLE] = { "naive: idle", "1-1/p if d = 0", { NULL } },
        [STEP] = { "GPipe: step", "(m+p-1)(f+b)+2(p-1)d", { NULL } },
        [IDLE] = { "GPipe: idle", "(p-1)/(m+p-1) if d = 0", { NULL } },
        [NAIVE_KEPT] = { "naive: kept", "1 micro-batch", { NULL } },
        [KEPT] = { "GPipe: kept", "m micro-batches", { NULL } },
    };
    if (clock_config()->simulated) {
        const StackTimes d = stack_times(&stack);
        equal_stages(run, &stack, rows);
        say(run,
            "  Forward f = %.3g us, backward b = 2f, message d = %.3g us. Unequal stages, m = %zu: "
            "idle %.1f %%.",
            (double)d.forward / 1e6, p > 1 ? (double)d.message / 1e6 : 0, t.micro_batches,
            100 * seen.timing.idle_of_total);
    }
    answer(run, rows);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "4", "number of pieces of the batch" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 stages keep less" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(gpipe, options);
