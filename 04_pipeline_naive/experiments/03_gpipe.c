// 03_gpipe.c (experiment): GPipe's training equals gradient accumulation in every bit, by the two
// loops and by the executor; on equal stages, times and memory for m = 1 to 32 beside the naive
// ones.
#include "04_pipeline_naive/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// 7 sequences of 5 to 10 counted tokens each, in 4 micro-batches of 2, 2, 2 and 1; 9 blocks on 4
// stages: 3, 2, 2, 2.
static const ModelConfig sizes = {
    .layers = 9, .width = 12, .heads = 3, .context = 10, .vocab = 37
};
enum { SEQUENCES = 7 };

// One step of equal stages, two blocks each, where nothing but the order of the work makes a stage
// wait.
static void draw_equal_stages(Run *run, const Training *t) {
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    Played equal = stack_play(run, &stack, schedule_gpipe, t->micro_batches);
    picture_show(run, "GPipe, equal stages", PICTURE_MEMORY);
    picture_summary(run, &equal.timing);
}

// A lesson's own loop and the executor, which runs the loop's list, give the same bits.
static StageCosts same_bits(Run *run, const char *what, const Training *t, PipelineLoop *loop,
                            ScheduleRule rule) {
    Schedule list = rule(run->world->size, t->micro_batches, run->world->rank);
    StageCosts costs = stages_same_bits(run, what, t, NULL, NULL, loop, &list, pipeline_run);
    schedule_free(&list);
    return costs;
}

// ---------------------------------------------------------------- costs

static void training_costs(Run *run, const Training *t, const StageCosts *gpipe,
                           const StageCosts *naive) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t kept = stage_kept(&t->model, p, i) * E, all = t->sequences * t->model.context,
           largest = stage_tokens(t, 0);
    stage_check_costs(run, t, NULL, gpipe);        // as when naive
    check_cost(run, "flight.naive", "in flight, naive", "micro-batches", formula(1), NOT_PREDICTED,
               naive->in_flight);
    check_cost(run, "flight.gpipe", "in flight, GPipe: m", "micro-batches", formula(m),
               NOT_PREDICTED, gpipe->in_flight);
    check_cost(run, "activations.naive", "activations, peak, naive: the largest micro-batch",
               "bytes", formula(kept * largest), NOT_PREDICTED, naive->activations);
    check_cost(run, "activations.gpipe", "activations, peak, GPipe: all of them", "bytes",
               formula(kept * all), NOT_PREDICTED, gpipe->activations);
    check_cost(run, "buffers", "message buffers, peak", "bytes",
               formula(stage_message_buffers(t, p, i)), NOT_PREDICTED, gpipe->message_buffers);
}

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

// Equal stages of two blocks, micro-batches of one sequence. The first micro-batch passes all
// stages and links: p t_f + (p-1) d, with d the time of a message. Each of the others follows it as
// closely as the slowest on the way lets it, a stage or a link. So messages that are not longer
// than the work of a stage hide behind it: all but the first of each link and direction.
static void equal_stages(Run *run, const Training *t, const Timing *last) {
    enum { CASES = RESULT_COLUMNS };                       // m = 1, 2, 4, 8, 16, 32
    char cell[8][CASES][24], column[CASES][12];
    size_t p = run->world->size, i = run->world->rank;
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    size_t links = p - 1, way = links ? d.message : 0, f = d.forward, b = d.backward;
    for (size_t k = 0; k < CASES; k++) {
        CostName id, name;
        size_t m = (size_t)1 << k;
        Played slow = stack_play(run, &stack, schedule_naive, m),
               seen = stack_play(run, &stack, schedule_gpipe, m);
        size_t step = p * (f + b) + 2 * links * way + (m - 1) * (max(f, way) + max(b, way));
        size_t in_turn = m * (p * (f + b) + 2 * links * way), ideal = m * (f + b),
               free = (m + p - 1) * (f + b);
        check_cost(run, cost_name(&id, "step.m%zu", m),
                   cost_name(&name, "equal stages, m = %zu: step", m), "ps", formula(step),
                   NOT_PREDICTED, seen.timing.step);
        check_cost(run, cost_name(&id, "activations.m%zu", m),
                   cost_name(&name, "equal stages, m = %zu: activations, peak", m), "bytes",
                   formula(m * stack_kept(&stack, p, i)), NOT_PREDICTED, seen.activations);
        sprintf(column[k], "m = %zu", m);
        page_cell(cell[0][k], (double)slow.timing.step, "ps");
        page_cell(cell[1][k], 1e6 * slow.timing.idle_of_total, "millionths");
        page_cell(cell[2][k], (double)seen.timing.step, "ps");
        page_cell(cell[3][k], (double)seen.timing.step - (double)free, "ps");
        page_cell(cell[4][k], 1e6 * seen.timing.idle_of_total, "millionths");
        page_cell(cell[5][k], 1e6 * (1 - (double)ideal / (double)free), "millionths");
        page_cell(cell[6][k], (double)slow.activations, "bytes");
        page_cell(cell[7][k], (double)seen.activations, "bytes");
        if (m != 8) continue;
        stack_check_bubble(run, "gpipe", "equal stages, m = 8", &stack, m, formula(step),
                           NOT_PREDICTED, &seen.timing);
        size_t late = (way > f ? way - f : 0) + (way > b ? way - b : 0);  // 0: the others hide
        size_t exposed = links * (2 * way + (m - 1) * late);
        check_cost(run, "exposed.gpipe", "equal stages, m = 8: exposed, 2(p-1) messages or more",
                   "ps", formula(exposed), NOT_PREDICTED, seen.timing.exposed);
        check_cost(run, "hidden.gpipe", "equal stages, m = 8: hidden", "ps",
                   formula(links * 2 * m * way - exposed), NOT_PREDICTED, seen.timing.hidden);
        check_cost(run, "step.naive", "naive, m = 8: step", "ps", formula(in_turn), NOT_PREDICTED,
                   slow.timing.step);
        stack_check_bubble(run, "naive", "naive, m = 8", &stack, m, formula(in_turn), NOT_PREDICTED,
                           &slow.timing);
        check_cost(run, "exposed.naive", "naive, m = 8: exposed, 2m(p-1) messages", "ps",
                   formula(2 * m * links * way), NOT_PREDICTED, slow.timing.exposed);
    }
    static const char *const what[] = {
        "naive: step", "  idle",        "GPipe: step", "  messages",
        "  idle",      "  idle, d = 0", "kept, naive", "kept, GPipe"
    };
    static const char *const formula[] = {
        "m(p(f+b)+2(p-1)d)", "1-m(f+b)/step", "(m+p-1)(f+b)+2(p-1)d",      "2(p-1)d",
        "1-m(f+b)/step",     "(p-1)/(m+p-1)", "one micro-batch's, rank 0", "m times that"
    };
    const char *columns[CASES + 1] = { NULL };
    Result rows[9] = { {0} };
    for (size_t k = 0; k < CASES; k++) columns[k] = column[k];
    for (size_t r = 0; r < 8; r++) {
        rows[r] = (Result){ .what = what[r], .formula = formula[r] };
        for (size_t k = 0; k < CASES; k++) rows[r].cell[k] = cell[r][k];
    }
    results(run, columns, rows);
    say(run,
        "  Stages of two blocks, C = %zu, a = %zu; micro-batches of one sequence, T = %zu. f = "
        "%.3g us is a",
        t->model.width, t->model.heads, t->model.context, (double)f / 1e6);
    say(run,
        "  forward, b = 2f, d = %.3g us a message; formulas need d <= f. The last stage keeps %zu "
        "B more.",
        (double)way / 1e6, t->model.context * t->model.width * sizeof(real));
    say(run,
        "  The model: %zu blocks and the head on unequal stages, %zu sequences in %zu "
        "micro-batches: idle "
        "%.1f %%.",
        t->model.layers, t->sequences, t->micro_batches, 100 * last->idle_of_total);
}

// The loops of the lesson, m as in its training. Where stages are equal, nobody waits longer than
// under the executor.
static void loop_costs(Run *run, const Training *t, const StageCosts *loops) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches, E = sizeof(real);
    size_t neighbours = stage_neighbours(run), all = t->sequences * t->model.context;
    stage_check_loop(run, t, loops);
    check_cost(run, "loop.flight", "own loops: in flight, m", "micro-batches", formula(m),
               NOT_PREDICTED, loops->in_flight);
    check_cost(run, "loop.activations", "own loops: activations, peak", "bytes",
               formula(stage_kept(&t->model, p, i) * E * all), NOT_PREDICTED, loops->activations);
    // In a forward x and y, in a backward dy and dx.
    check_cost(run, "loop.buffers", "own loops: buffers, peak", "bytes",
               formula(neighbours * stage_tokens(t, 0) * t->model.width * E), NOT_PREDICTED,
               loops->message_buffers);
    if (!clock_config()->simulated) return;                // Real time differs from run to run.
    Stack stack = { .model = t->model, .blocks = 2, .sequences = 1 };
    StackTimes d = stack_times(&stack);
    Played seen = stack_play_loop(run, &stack, pipeline_gpipe, m);
    size_t way = p > 1 ? d.message : 0;
    size_t first = p * (d.forward + d.backward) + 2 * (p - 1) * way;
    size_t step = first + (m - 1) * (max(d.forward, way) + max(d.backward, way));
    check_cost(run, "loop.step", "own loops: equal stages, step", "ps", formula(step),
               NOT_PREDICTED, seen.timing.step);
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
    StageCosts seen = {0}, slow = {0};
    draw_equal_stages(run, &t);
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory naive = trajectory_new(run, &t), got = trajectory_new(run, &t),
                   want = training_unsplit(run, &t, 1);
        slow = stages_train(run, &t, NULL, pipeline_step, schedule_naive, &naive);  // for its costs
        seen = stages_train(run, &t, NULL, pipeline_step, schedule_gpipe, &got);
        say_detail(run, "%s: loss %.4f, %.4f, %.4f", i ? "AdamW" : "SGD", got.loss[0], got.loss[1],
                   got.loss[2]);
        training_compare(run, "GPipe = accumulation", &got, &want, 0);
        trajectory_free(&naive);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    Timing last = picture_timing(run);
    if (option_flag(run, "verbose")) {
        picture_show(run, "GPipe, the model's last step", PICTURE_MEMORY | PICTURE_NO_FILES);
        picture_summary(run, &last);
    }
    training_costs(run, &t, &seen, &slow);
    loop_costs(run, &t, &loops);
    // real time differs from run to run
    if (clock_config()->simulated) equal_stages(run, &t, &last);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "4", "that the batch is cut into" },
    { "dropout", "X", "0.1", "probability of dropping an element; at 0 less is kept" },
    {0},
};
EXPERIMENT(gpipe, options);
