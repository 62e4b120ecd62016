// 04_partition.c (experiment): cuts are the best of all cuts; a training whose layers move equals
// gradient accumulation in every bit, and its slowest stage is that of the best cut.
#include "04_pipeline_naive/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STAGES = 16, MOST_STEPS = 6 };

// The head of 331 vocabulary entries costs as much as two blocks. From step GROWN on, the first
// three blocks cost three times as much: their FLOPs are charged to the clock again. Micro-batches
// are of one sequence.
static const ModelConfig sizes = {
    .layers = 10, .width = 12, .heads = 3, .context = 10, .vocab = 331, .dropout = 0.1
};
enum { MICRO = 6, STEPS = 6, EVERY = 2, GROWN = 3, GROWN_BLOCKS = 3, GROWTH = 3 };

// ---------------------------------------------------------------- cuts alone

// Goes through all cuts of cost [n] into p parts; most, least: of the parts before. Keeps the best
// in *score, and the largest part of that one in *largest.
static void try_all(const double *cost, size_t n, size_t p, double most, double least,
                    bool difference, double *score, double *largest) {
    double sum = 0;
    if (p == 0) {
        double mine = difference ? most - least : most;
        if (n > 0 || mine >= *score) return;
        *score = mine;
        *largest = most;
        return;
    }
    for (size_t i = 1; i + p <= n + 1; i++) {
        sum += cost[i - 1];
        try_all(cost + i, n - i, p - 1, fmax(most, sum), fmin(least, sum), difference, score,
                largest);
    }
}
static double partition_exhaustive(const double *cost, size_t n, size_t p) {
    double score = INFINITY, largest = 0;
    try_all(cost, n, p, 0, INFINITY, false, &score, &largest);
    return largest;
}
static double partition_max_min(const double *cost, size_t n, size_t p) {
    double score = INFINITY, largest = 0;
    try_all(cost, n, p, 0, INFINITY, true, &score, &largest);
    return largest;
}
static double partition_largest(const double *cost, size_t p, const size_t *first) {
    double most = 0;
    for (size_t i = 0; i < p; i++) {
        double sum = 0;
        for (size_t k = first[i]; k < first[i + 1]; k++) sum += cost[k];
        most = fmax(most, sum);
    }
    return most;
}

static void cuts(Run *run) {
    // DeepSpeed's criterion is the smallest difference between the largest and the smallest stage.
    static const double example[] = { 9, 5, 5, 9, 6 };
    size_t first[4];
    double got[] = { partition_min_max(example, 5, 3, first), partition_max_min(example, 5, 3) },
           want[] = { 14, 15 };
    check_numbers(run, "cuts", "costs 9 5 5 9 6 on 3 stages: min-max 14, max - min 15", got, want,
                  2, 0);
    enum { CASES = 200 };
    double best[CASES], every[CASES], sum[CASES];
    for (size_t k = 0; k < CASES; k++) {
        double cost[12];
        size_t n = 1 + random_key(run->seed, k) % 12, p = 1 + random_key(run->seed + 1, k) % n,
               at[13];
        for (size_t i = 0; i < n; i++)
            cost[i] = (double)(random_key(random_key(run->seed, k), i) % 20);
        best[k] = partition_min_max(cost, n, p, at);
        every[k] = partition_exhaustive(cost, n, p);
        sum[k] = partition_largest(cost, p, at);  // what the cut that was returned comes to
    }
    check_numbers(run, "cuts", "200 random ones: the smallest of all cuts", best, every, CASES, 0);
    check_numbers(run, "cuts", "200 random ones: the cut has that cost", sum, every, CASES, 0);
}

// ------------------------------------------------------- training while layers cost more, and move

// ---- What a training did, and what it should have. ----
typedef struct { double messages, bytes, sum_bytes; } Moved;  // sent by this rank between two steps
typedef struct {
    size_t blocks[MOST_STEPS][MOST_STAGES];  // of each stage, in each step
    Timing timing[MOST_STEPS];
    Moved moved[MOST_STEPS];                                           // before each step
    size_t parameters, optimizer;                                      // bytes at the end
} Rebalanced;
// Which blocks cost how much more, from which step on; the cut is solved every so many steps.
typedef struct { size_t blocks, times, from, every; } Growth;

static void grown_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    double before = clock_flops();
    layer_forward(l->inner, b, x, y, s);
    if (b->step >= GROWN) clock_charge_flops((GROWTH - 1) * (clock_flops() - before));
}
static void grown_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    double before = clock_flops();
    layer_backward(l->inner, b, x, dy, dx, s);
    if (b->step >= GROWN) clock_charge_flops((GROWTH - 1) * (clock_flops() - before));
}
static const LayerKind grown = { .name = "grown",
                                 .forward = grown_forward,
                                 .backward = grown_backward };

static Model *stage_model(const Training *t, Comm *pp, const size_t *blocks, double *cost) {
    Model *m =
        model_describe(&t->model, pipeline_stage_layers(&t->model, blocks, pp->size, pp->rank));
    for (size_t i = 0; i < m->n_layers; i++) {
        size_t number = m->layers[i].number;
        if (number > 0 && number <= GROWN_BLOCKS) layer_wrap(&m->layers[i], &grown, NULL);
    }
    partition_time_layers(m, cost);
    model_allocate(m);
    optimizer_allocate(&t->optimizer, m);
    return m;
}

// GPipe on these stages. every: steps between two rebalances; 0: layers stay.
static void train(Run *run, const Training *t, const size_t *blocks, size_t every, Rebalanced *r,
                  Trajectory *out) {
    Comm *pp = run->world;
    size_t p = pp->size, n = partition_items(&t->model);
    PipelineRank me = { .pp = pp, .tied = pipeline_tied_group(pp), .clip = t->clip,
                        .schedule = schedule_gpipe };
    Optimizer o = t->optimizer;
    double *cost = host_alloc(n * sizeof *cost);
    for (size_t i = 0; i < p; i++) r->blocks[0][i] = blocks[i];
    Model *m = stage_model(t, pp, blocks, cost);
    for (size_t s = 0; s < t->steps; s++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = training_batches(t, &tokens, s, 1, 0);
        if (s > 0) memcpy(r->blocks[s], r->blocks[s - 1], p * sizeof(size_t));
        comm_ledger_reset(pp);
        if (every && s > 0 && s % every == 0) {            // the costs are those of the step before
            partition_solve(pp, &t->model, 1, cost, r->blocks[s]);
            Model *next = stage_model(t, pp, r->blocks[s], cost);
            pipeline_migrate(pp, &o, m, r->blocks[s - 1], next, r->blocks[s]);
            model_free(m);
            m = next;
        }
        r->moved[s] = (Moved){ pp->ledger[COMM_SEND].calls, pp->ledger[COMM_SEND].bytes,
                               pp->ledger[COMM_ALL_REDUCE].bytes };
        double done = 0;
        // Every layer has arrived: the step begins.
        comm_all_reduce_doubles(pp, &done, 1);
        memset(cost, 0, n * sizeof *cost);
        picture_begin(run, MEM_ACTIVATIONS);
        StepResult seen = pipeline_step(&me, m, &o, batch, t->micro_batches);
        picture_end(run);
        r->timing[s] = picture_timing(run);
        trajectory_record(out, s, m, seen.loss, seen.norm);
        if (t->recorded && (s == 0 || s + 1 == t->steps)) {
            char title[48];
            snprintf(title, sizeof title, "step %zu, %s", s,
                     s ? "rebalanced twice" : "as it begins");
            bool file = !strcmp(option_text(run, "draw"), s ? "end" : "begin");
            picture_show(run, title, file ? PICTURE_CHART : PICTURE_NO_FILES);
        }
        free(batch);
        arena_free(&tokens);
    }
    r->parameters = memory_now(MEM_PARAMETERS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    free(cost);
    model_free(m);
    if (me.tied) comm_free(me.tied);
}

// --blocks; without it 3, 4, 3 on three stages, else as equal as possible.
static void partition_blocks(Run *run, size_t layers, size_t *blocks) {
    size_t p = run->world->size, n = 0, sum = 0;
    const char *text = option_given(run, "blocks") ? option_text(run, "blocks") : NULL;
    for (size_t i = 0; i < p; i++)
        blocks[i] = p != 3 ? range_size(shard_range(layers, p, i)) : i == 1 ? layers - 6 : 3;
    while (text) {
        char *end = NULL;
        size_t value = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : 0;
        REQUIRE(value >= 1 && n < p && (*end == ',' || !*end),
                "--blocks %s: give %zu numbers, 1 or more, with commas "
                "between them, such as 3,4,3: the blocks of each stage",
                option_text(run, "blocks"), p);
        sum += blocks[n++] = value;
        text = *end ? end + 1 : NULL;
        REQUIRE(text || (n == p && sum == layers),
                "--blocks %s: give %zu numbers that add up to the %zu blocks of the "
                "model",
                option_text(run, "blocks"), p, layers);
    }
}

// ---------------------------------------------------------------- times, from sizes

// A forward of every layer for one sequence, in this step: embedding, blocks, head.
static void forward_times(const Training *t, Growth g, size_t step, double *cost) {
    CutSizes z = cut_sizes(&t->model, 1, 0);
    size_t L = t->model.layers;
    cost[0] = 0;                                           // a lookup: no product
    for (size_t k = 0; k < L; k++)
        cost[k + 1] =
            work_block(&z, 1).time * (k < g.blocks && step >= g.from ? (double)g.times : 1);
    cost[L + 1] = work_head(&z, 1).time;
}
static double stage_time(const double *cost, const size_t *blocks, size_t p, size_t i) {
    size_t lo = 0;
    for (size_t k = 0; k < i; k++) lo += blocks[k] + (k == 0);
    double sum = 0;
    for (size_t k = 0; k < blocks[i] + (i == 0) + (i + 1 == p); k++) sum += cost[lo + k];
    return sum;
}

// GPipe on unequal stages: the first micro-batch passes all of them, the others follow as closely
// as the slowest, stage or link, lets them; then the sums at the end of a step. Backward is twice
// forward.
static double step_time(const Training *t, const double *cost, const size_t *blocks, size_t p) {
    CutSizes z = cut_sizes(&t->model, 1, 0);
    double sum = 0, slowest = 0, way = p > 1 ? (double)stage_message_time(&t->model, 1) : 0;
    double others = (double)t->micro_batches - 1;
    for (size_t i = 0; i < p; i++) {
        double f = stage_time(cost, blocks, p, i);
        sum += 3 * f;
        slowest = fmax(slowest, f);
    }
    double sums = p > 1 ? ring_time(ALL_REDUCE_PASSES, 2, elements_wte(&z), sizeof(real)) : 0;
    sums += ring_time(ALL_REDUCE_PASSES, p, 1, sizeof(double));
    sums += ring_time(ALL_REDUCE_PASSES, p, config_tensors(&t->model), sizeof(double));
    // A stage of the embedding alone: its message begins the step.
    if (stage_time(cost, blocks, p, 0) == 0) sum -= way;
    return sum + 2 * (double)(p - 1) * way +
           others * (fmax(slowest, way) + fmax(2 * slowest, way)) + sums;
}

// ---------------------------------------------------------------- costs

static void time_lines(Run *run, const Training *t, Growth g, const char *name, const Rebalanced *r,
                       bool moves) {
    size_t p = run->world->size, n = t->model.layers + 2;
    double *now = host_alloc(n * sizeof *now), *before = host_alloc(n * sizeof *before);
    for (size_t s = 0; s < t->steps; s++) {
        CostName id, text;
        forward_times(t, g, s, now);
        // The costs that the last cut knew, if there was one.
        forward_times(t, g, s > 0 ? s - s % g.every - 1 : 0, before);
        bool solved = moves && s >= g.every && !memcmp(now, before, n * sizeof *now);
        double slowest = solved ? partition_exhaustive(now, n, p) : 0;
        for (size_t i = 0; i < p && !solved; i++)
            slowest = fmax(slowest, stage_time(now, r->blocks[s], p, i));
        check_cost(run, cost_name(&id, "busiest.%s.%zu", moves ? "move" : "stay", s),
                   cost_name(&text, "%s, step %zu: slowest stage%s", name, s,
                             solved ? ", of the best cut" : ""),
                   "ps", formula(3 * slowest * (double)t->micro_batches), NOT_PREDICTED,
                   (double)r->timing[s].busiest);
        check_cost(run, cost_name(&id, "step.%s.%zu", moves ? "move" : "stay", s),
                   cost_name(&text, "%s, step %zu: step", name, s), "ps",
                   formula(step_time(t, now, r->blocks[s], p)), NOT_PREDICTED,
                   (double)r->timing[s].step);
    }
    free(now);
    free(before);
}

static size_t stage_of(const size_t *blocks, size_t k) {
    size_t i = 0;
    for (; k >= blocks[i]; i++) k -= blocks[i];
    return i;
}

static void text_of(char *cell, const size_t *blocks, size_t p) {
    strcpy(cell, "=");
    for (size_t i = 0; i < p; i++) sprintf(cell + strlen(cell), "%s%zu", i ? " " : "", blocks[i]);
}

static void table(Run *run, const Training *t, Growth g, const Rebalanced *stays,
                  const Rebalanced *moved) {
    static const char *const columns[] = { "blocks stay", "step", "idle", "blocks move",
                                           "step",        "idle", NULL };
    char text[MOST_STEPS][6][64], name[MOST_STEPS][48];
    Result rows[MOST_STEPS + 1] = { {0} };
    for (size_t s = 0; s < t->steps; s++) {
        const Rebalanced *both[] = { stays, moved };
        snprintf(name[s], sizeof name[s], s == g.from ? "step %zu, blocks cost more" : "step %zu",
                 s);
        rows[s].what = name[s];
        for (size_t k = 0; k < 2; k++) {
            text_of(text[s][3 * k], both[k]->blocks[s], run->world->size);
            page_value(text[s][3 * k + 1] + 1, sizeof text[s][0] - 1,
                       (double)both[k]->timing[s].step, "ps");
            snprintf(text[s][3 * k + 2] + 1, sizeof text[s][0] - 1, "%.1f %%",
                     100 * both[k]->timing[s].idle_of_total);
            text[s][3 * k + 1][0] = text[s][3 * k + 2][0] = '=';
        }
        for (size_t k = 0; k < 6; k++) rows[s].cell[k] = text[s][k];
    }
    results(run, columns, rows);
    double *cost = host_alloc((t->model.layers + 2) * sizeof *cost);
    forward_times(t, (Growth){0}, 0, cost);
    say(run,
        "  GPipe's step: sum(f+b) + (m-1)(max f + max b), and messages. A block: f = %.3g us, b = "
        "2f. The",
        cost[1] / 1e6);
    say(run,
        "  head costs %.2f blocks, the embedding nothing; from step %zu on the first %zu blocks "
        "cost %zu times "
        "it.",
        cost[t->model.layers + 1] / cost[1], g.from, g.blocks, g.times);
    say(run, "  Costs 9 5 5 9 6 on 3 stages: the largest is 14 by min-max, 15 by the smallest max "
             "- min.");
    free(cost);
}

static void partition_costs(Run *run, const Training *t, Growth g, const Rebalanced *stays,
                            const Rebalanced *moved) {
    size_t p = run->world->size, i = run->world->rank, E = sizeof(real), last = t->steps - 1;
    CutSizes z = cut_sizes(&t->model, 1, 0);
    double messages[2] = {0}, bytes[2] = {0};              // predicted, measured; of all steps
    double sums = 0, said = 0;
    for (size_t s = 1; s < t->steps; s++) {
        for (size_t k = 0; k < t->model.layers; k++)
            if (stage_of(moved->blocks[s - 1], k) == i && stage_of(moved->blocks[s], k) != i) {
                messages[0] += 3;                          // weights and both moments
                bytes[0] += 3 * (double)(elements_block(&z) * E);
            }
        messages[1] += moved->moved[s].messages;
        bytes[1] += moved->moved[s].bytes;
        sums +=
            s % g.every ? 0 : ring_bytes(ALL_REDUCE_PASSES, p, t->model.layers + 2, sizeof(double));
        said += moved->moved[s].sum_bytes;
    }
    check_cost(run, "moved.calls", "blocks that move: messages sent", "calls", formula(messages[0]),
               NOT_PREDICTED, messages[1]);
    check_cost(run, "moved.bytes", "blocks that move: 3(12C^2+13C) elements each", "bytes",
               formula(bytes[0]), NOT_PREDICTED, bytes[1]);
    check_cost(run, "solve.bytes", "sums of the layers' costs", "bytes", formula(sums),
               NOT_PREDICTED, said);
    z.blocks = moved->blocks[last][i];
    z.first = i == 0;
    z.last = i + 1 == p;
    check_cost(run, "parameters", "parameters of my stage at the end", "bytes",
               formula(elements_stage(&z) * E), NOT_PREDICTED, moved->parameters);
    check_cost(run, "optimizer", "optimizer state of my stage at the end", "bytes",
               formula(2 * elements_stage(&z) * E), NOT_PREDICTED, moved->optimizer);
    if (clock_config()->simulated) {                       // real time differs from run to run
        time_lines(run, t, g, "blocks stay", stays, false);
        time_lines(run, t, g, "blocks move", moved, true);
    }
    table(run, t, g, stays, moved);
}

// ---------------------------------------------------------------- the lesson

static void partition(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, blocks[MOST_STAGES];
    REQUIRE(p <= sizes.layers && p <= MOST_STAGES,
            "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    partition_blocks(run, sizes.layers, blocks);
    Training t = {
        .model = sizes, .steps = STEPS, .sequences = MICRO, .micro_batches = MICRO, .clip = 0.25
    };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    cuts(run);
    Rebalanced moved = {0}, stays = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory want = training_unsplit(run, &t, 1), fixed = trajectory_new(run, &t),
                   got = trajectory_new(run, &t);
        t.recorded = false;
        train(run, &t, blocks, 0, &stays, &fixed);
        t.recorded = i == 1;
        train(run, &t, blocks, EVERY, &moved, &got);
        training_compare(run, "layers that stay = accumulation", &fixed, &want, 0);
        training_compare(run, "layers that move = accumulation", &got, &want, 0);
        trajectory_free(&want);
        trajectory_free(&fixed);
        trajectory_free(&got);
    }
    Growth growth = { GROWN_BLOCKS, GROWTH, GROWN, EVERY };
    partition_costs(run, &t, growth, &stays, &moved);
    partition_planner(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "blocks", "LIST", NULL,
      "of each stage in the beginning; without it: 3,4,3, or as equal as possible" },
    { "draw", "begin|end", "end", "whose step --svg and --trace write" },
    {0},
};
EXPERIMENT(partition, options);
