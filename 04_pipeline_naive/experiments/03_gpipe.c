// 03_gpipe.c (experiment): checks that GPipe's training equals gradient accumulation in every bit,
// with the loops of pipeline_gpipe() and with the executor.
#include "04_pipeline_naive/experiments/experiments.h"
#include <math.h>

// The 4 micro-batches have 2, 2, 2 and 1 of the 7 sequences. A sequence has 5 to 10 counted tokens.
// The 4 stages have 3, 2, 2 and 2 of the 9 blocks.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 7 };

// ---------------------------------------------------------------- equal stages

// Runs GPipe and the naive order on equal stages. `unequal` is the idle share of the trained
// model's stages.
//
// The first message of each link and direction is exposed. The other messages hide behind the work
// of their receiver. If a message takes longer than that work, the difference is exposed.
static void equal_stages(Run *run, const Stack *stack, double unequal) {
    const size_t p = run->world->size, links = p - 1;
    const StackTimes t = stack_times(stack);
    const size_t f = t.forward, b = t.backward, d = links ? t.message : 0;
    const size_t late = (d > f ? d - f : 0) + (d > b ? d - b : 0);
    const bool timed = clock_config()->simulated; // real times differ from run to run
    const char *columns[RESULT_COLUMNS + 1] = { NULL };
    enum { NAIVE_STEP, STEP, IDLE, KEPT, ROWS };
    Result row[ROWS + 1] = {
        [NAIVE_STEP] = { "naive: step", "m(p(f+b)+2(p-1)d)", { NULL } },
        [STEP] = { "GPipe: step", "(m+p-1)(f+b)+2(p-1)d", { NULL } },
        [IDLE] = { "GPipe: idle", "(p-1)/(m+p-1) if d = 0", { NULL } },
        [KEPT] = { "GPipe: kept", "m micro-batches", { NULL } },
    };
    for (size_t k = 0; k < RESULT_COLUMNS; k++) {
        const size_t m = (size_t)1 << k;
        const Timing naive = stack_play(run, stack, schedule_naive, m).timing;
        const Played gpipe = stack_play(run, stack, schedule_gpipe, m);
        const size_t step = (m + p - 1) * (f + b) + 2 * links * d + (m - 1) * late;
        const size_t exposed = links * (2 * d + (m - 1) * late);
        const char *name = page_text(run, "equal stages, m = %zu", m);
        check_costs(
            run, page_text(run, "%%s.m%zu", m), page_text(run, "%s: %%s", name),
            (CostRow[]){
                { "activations", "activations, peak", "bytes",
                  BY_FORMULA(m * stack_kept(stack, p, run->world->rank)), gpipe.activations },
                { timed ? "step" : NULL, "step", "ps", BY_FORMULA(step), gpipe.timing.step },
                { "exposed", "exposed", "ps", BY_FORMULA(exposed), gpipe.timing.exposed },
                { "hidden", "hidden", "ps", BY_FORMULA(links * 2 * m * d - exposed),
                  gpipe.timing.hidden },
                { "idle", "bubble / step", "millionths", BY_FORMULA(stack_idle(stack, m, step)),
                  round(1e6 * gpipe.timing.idle_of_total) },
                { "naive", "naive order, step", "ps", BY_FORMULA(m * (p * (f + b) + 2 * links * d)),
                  naive.step },
                { 0 } });
        columns[k] = page_text(run, "m = %zu", m);
        row[NAIVE_STEP].cell[k] = value_cell(run, (double)naive.step, "ps");
        row[STEP].cell[k] = value_cell(run, (double)gpipe.timing.step, "ps");
        row[IDLE].cell[k] = page_text(run, "=%.1f %%", 100 * gpipe.timing.idle_of_total);
        row[KEPT].cell[k] = value_cell(run, (double)gpipe.activations, "bytes");
    }
    results(run, columns, row);
    const char *times = "";
    if (timed)
        times = page_text(run, "Forward f = %.3g us, backward b = 2f, message d = %.3g us. ",
                          (double)f / 1e6, (double)d / 1e6);
    say(run,
        "  p = %zu stages of two blocks. A micro-batch has one sequence, so a batch has m "
        "sequences.\n"
        "  kept: activations of rank 0. The naive order idles and keeps as much as GPipe with m = "
        "1.\n"
        "  %sUnequal stages, m = %zu: idle %.1f %%.",
        p, times, option_size(run, "micro-batches"), 100 * unequal);
    const char *const *idle = row[IDLE].cell, *const *kept = row[KEPT].cell;
    say_answer(run,
               "%zu equal stages are idle for %s of the step with m = 1, %s with m = 8, %s with "
               "m = 32. GPipe keeps all m micro-batches: %s for m = 32. The naive order keeps "
               "one: %s.",
               p, idle[0] + 1, idle[3] + 1, idle[5] + 1, kept[5] + 1, kept[0] + 1);
    say_cost(
        run,
        "activations of m micro-batches. GPipe sends as many bytes as the naive order. "
        "If d is at most f, only the first message of each link and direction delays the step.");
    say_use_when(run, "m is at least 4 p. Prefer 1F1B (05.02): the same bubble, less memory.");
}

// ---------------------------------------------------------------- the lesson

static void gpipe(Run *run) {
    Training t = stages_training(run, &sizes, SEQUENCES);
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    t.model.dropout = option_real(run, "dropout");
    const Stack stack = { .model = t.model, .blocks = 2, .sequences = 1 };
    const Timing drawn = stack_play(run, &stack, schedule_gpipe, t.micro_batches).timing;
    picture_show(run, "GPipe, equal stages", PICTURE_MEMORY);
    picture_summary(run, &drawn);
    enum { LOOPS, NAIVE_LIST, GPIPE_LIST, WAYS };
    static const StagesWay ways[WAYS] = {
        { .what = "GPipe, own loops = accumulation", .loop = pipeline_gpipe },
        { "naive list = accumulation", .step = pipeline_step, .schedule = schedule_naive },
        { "GPipe = accumulation", .step = pipeline_step, .schedule = schedule_gpipe },
    };
    StageCosts seen[WAYS];
    stages_compare(run, &t, ways, WAYS, seen);
    t.optimizer = adamw(0.01); // `seen` has the costs of the trainings with AdamW
    stage_check_loop(run, &t, pipeline_gpipe, schedule_gpipe, t.micro_batches, &seen[LOOPS]);
    // A forward has buffers for x and y, a backward for dy and dx.
    size_t message = stage_tokens(&t, 0) * t.model.width * weight_bytes(&t.model);
    check_cost(run, "loop.buffers", "own loops: buffers, peak", "bytes",
               BY_FORMULA(stage_neighbours(run) * message), seen[LOOPS].message_buffers);
    size_t p = run->world->size, buffers = stage_message_buffers(&t, p, run->world->rank);
    stage_check_costs(run, &t, NULL, t.micro_batches, buffers, &seen[GPIPE_LIST]);
    equal_stages(run, &stack, seen[GPIPE_LIST].timing.idle_of_total);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "4", "number of pieces of the batch" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 stages keep less" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(gpipe, options);
