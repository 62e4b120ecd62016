// 03_gpipe.c (experiment): GPipe's training equals gradient accumulation in every bit, with the two
// loops and with the executor. For equal stages and m = 1 to 32 it prints GPipe's times and memory
// beside those of the naive order.
#include "04_pipeline_naive/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// 7 sequences of 5 to 10 counted tokens come in 4 micro-batches of 2, 2, 2 and 1. The 4 stages have
// 3, 2, 2 and 2 of the 9 blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 7 };

// One step of equal stages, two blocks each, so that only the order of the work makes a stage wait.
static void draw_equal_stages(Run *run, const Training *t) {
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Played equal = stack_play(run, &stack, schedule_gpipe, t->micro_batches);
    picture_show(run, "GPipe, equal stages", PICTURE_MEMORY);
    picture_summary(run, &equal.timing);
}

// The lesson's own loop and the executor give the same bits. The executor runs the loop's list.
static StageCosts same_bits(Run *run, const char *what, const Training *t, PipelineLoop *loop,
                            ScheduleRule rule) {
    Schedule list = rule(run->world->size, t->micro_batches, run->world->rank);
    StageCosts costs = stages_same_bits(run, what, t, NULL, loop, &list, pipeline_run);
    schedule_free(&list);
    return costs;
}

// ---------------------------------------------------------------- costs

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// Times and memory of equal stages, for the page's table: two blocks per stage, one sequence per
// micro-batch.
enum { CASES = RESULT_COLUMNS, ROWS = 6 }; // m = 1, 2, 4, 8, 16, 32
typedef struct {
    const char *cell[ROWS][CASES];
} EqualStages;

// The costs of m = 8, in detail. The first message of each link and direction is exposed. The other
// messages hide behind the work of their receiver, unless a message (d) takes longer than that
// work.
static void equal_stages_costs(Run *run, const Stack *stack, size_t m, size_t step,
                               const Timing *gpipe, const Timing *naive) {
    size_t links = run->world->size - 1;
    StackTimes t = stack_times(stack);
    size_t f = t.forward, b = t.backward, d = links ? t.message : 0;
    size_t late = (d > f ? d - f : 0) + (d > b ? d - b : 0);
    size_t exposed = links * (2 * d + (m - 1) * late);
    stack_check_bubble(run, "gpipe", "equal stages, m = 8", stack, m, formula(step), NOT_PREDICTED,
                       gpipe);
    check_cost(run, "exposed.gpipe", "equal stages, m = 8: exposed, 2(p-1) messages or more", "ps",
               formula(exposed), NOT_PREDICTED, gpipe->exposed);
    check_cost(run, "hidden.gpipe", "equal stages, m = 8: hidden", "ps",
               formula(links * 2 * m * d - exposed), NOT_PREDICTED, gpipe->hidden);
    check_cost(run, "step.naive", "naive, m = 8: step", "ps",
               formula(m * ((links + 1) * (f + b) + 2 * links * d)), NOT_PREDICTED, naive->step);
}

// GPipe's step: the first micro-batch passes all stages and links. Each later micro-batch follows
// as closely as the slowest stage or link lets it.
static size_t gpipe_step(const StackTimes *t, size_t p, size_t m) {
    size_t f = t->forward, b = t->backward, d = p > 1 ? t->message : 0;
    return p * (f + b) + 2 * (p - 1) * d + (m - 1) * (max(f, d) + max(b, d));
}

static void equal_stages(Run *run, const Training *t, const Timing *last, EqualStages *page) {
    static const char *const name[ROWS] = { "naive: step", "naive: idle", "GPipe: step",
                                            "GPipe: idle", "naive: kept", "GPipe: kept" };
    static const char *const in_words[ROWS] = {
        "m(p(f+b)+2(p-1)d)",      "1-1/p if d = 0", "(m+p-1)(f+b)+2(p-1)d",
        "(p-1)/(m+p-1) if d = 0", "1 micro-batch",  "m micro-batches",
    };
    const char *columns[CASES + 1] = { NULL };
    size_t p = run->world->size, i = run->world->rank;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes times = stack_times(&stack);
    for (size_t k = 0; k < CASES; k++) {
        size_t m = (size_t)1 << k, step = gpipe_step(&times, p, m);
        Played naive = stack_play(run, &stack, schedule_naive, m);
        Played gpipe = stack_play(run, &stack, schedule_gpipe, m);
        const char *ids = page_text(run, "%%s.m%zu", m);
        check_costs(run, ids, page_text(run, "equal stages, m = %zu: %%s", m),
                    (CostRow[]){ { "step", "step", "ps", BY_FORMULA(step), gpipe.timing.step },
                                 { "activations", "activations, peak", "bytes",
                                   BY_FORMULA(m * stack_kept(&stack, p, i)), gpipe.activations },
                                 { 0 } });
        if (m == 8) equal_stages_costs(run, &stack, m, step, &gpipe.timing, &naive.timing);
        columns[k] = page_text(run, "m = %zu", m);
        for (size_t way = 0; way < 2; way++) {
            const Played *r = way ? &gpipe : &naive;
            page->cell[2 * way][k] = value_cell(run, (double)r->timing.step, "ps");
            page->cell[2 * way + 1][k] = page_text(run, "=%.1f %%", 100 * r->timing.idle_of_total);
            page->cell[4 + way][k] = value_cell(run, (double)r->activations, "bytes");
        }
    }
    Result rows[ROWS + 1] = { { 0 } };
    for (size_t r = 0; r < ROWS; r++) {
        rows[r] = (Result){ .what = name[r], .formula = in_words[r] };
        for (size_t k = 0; k < CASES; k++) rows[r].cell[k] = page->cell[r][k];
    }
    results(run, columns, rows);
    say(run,
        "  p = %zu stages of two blocks, m micro-batches of one sequence. kept: peak "
        "activations of rank 0.",
        p);
    say(run,
        "  Forward f = %.3g us, backward b = 2f, message d = %.3g us. Unequal stages, "
        "m = %zu: idle %.1f %%.",
        (double)times.forward / 1e6, p > 1 ? (double)times.message / 1e6 : 0, t->micro_batches,
        100 * last->idle_of_total);
}

static void answer(Run *run, const EqualStages *page) {
    enum { IDLE = 3, KEPT = 5, M8 = 3, M32 = 5 }; // rows and columns of the table
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
                   p, page->cell[IDLE][0] + 1, page->cell[IDLE][M8] + 1, page->cell[IDLE][M32] + 1,
                   page->cell[KEPT][M32] + 1, page->cell[KEPT][0] + 1);
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
    draw_equal_stages(run, &t);
    static const StagesWay way = { "GPipe = accumulation", "GPipe, the last training step",
                                   pipeline_step, schedule_gpipe, NULL };
    StageCosts seen;
    stages_compare(run, &t, &way, 1, &seen);
    t.optimizer = adamw(0.01); // seen: the costs of the training with AdamW
    size_t p = run->world->size, buffers = stage_message_buffers(&t, p, run->world->rank);
    stage_check_costs(run, &t, NULL, t.micro_batches, buffers, &seen);
    EqualStages page;
    if (clock_config()->simulated) equal_stages(run, &t, &seen.timing, &page);
    answer(run, &page);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "4", "number of pieces of the batch" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 stages keep less" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(gpipe, options);
