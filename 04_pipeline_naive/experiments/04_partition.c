// 04_partition.c (experiment): checks that a training whose blocks move between stages equals
// gradient accumulation in every bit. Also checks that the slowest stage is as fast as in the best
// cut.
#include "04_pipeline_naive/experiments/experiments.h"
#include <stdlib.h>
#include <string.h>

// The head has 331 vocabulary entries, so the head costs about as much as two blocks. A micro-batch
// has one sequence.
static const ModelConfig sizes = {
    .layers = 10, .width = 12, .heads = 3, .context = 10, .vocab = 331, .dropout = 0.1
};
enum { MICRO = 6 };

// ------------------------------------------------------- training while layers cost more, and move

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

static const char *blocks_text(Run *run, const size_t *blocks) {
    const char *text = page_text(run, "%zu", blocks[0]);
    for (size_t i = 1; i < run->world->size; i++) text = page_text(run, "%s-%zu", text, blocks[i]);
    return text;
}

// Trains by GPipe. r->blocks[0] holds the first cut. Blocks may move before the steps `every`, 2
// `every`, and so on. If `every` is 0, blocks stay.
static void train(Run *run, const Training *t, size_t every, Rebalanced *r, Trajectory *out) {
    Comm *pp = run->world;
    size_t p = pp->size, n = partition_items(&t->model);
    PipelineRank rank = {
        .pp = pp, .tied = pipeline_tied_group(pp), .clip = t->clip, .schedule = schedule_gpipe
    };
    Optimizer o = t->optimizer;
    double *cost = host_alloc(n * sizeof *cost);
    Model *m = stage_model(t, pp, r->blocks[0], cost);
    for (size_t s = 0; s < t->steps; s++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = training_batches(t, &tokens, s, 1, 0);
        if (s > 0) memcpy(r->blocks[s], r->blocks[s - 1], p * sizeof(size_t));
        comm_ledger_reset(pp);
        if (every && s > 0 && s % every == 0) { // `cost` has the times of the step before
            partition_solve(pp, &t->model, 1, cost, r->blocks[s]);
            Model *next = stage_model(t, pp, r->blocks[s], cost);
            pipeline_migrate(pp, &o, m, r->blocks[s - 1], next, r->blocks[s]);
            model_free(m);
            m = next;
        }
        r->moved_bytes[s] = pp->ledger[COMM_SEND].bytes;
        double done = 0;
        comm_all_reduce_doubles(pp, &done, 1); // waits until every block has arrived
        memset(cost, 0, n * sizeof *cost);
        picture_begin(run, MEM_ACTIVATIONS);
        StepResult seen = pipeline_step(&rank, m, &o, batch, t->micro_batches);
        picture_end(run);
        r->timing[s] = picture_timing(run);
        trajectory_record(out, s, m, seen.loss, seen.norm);
        if (every && (s == 0 || s + 1 == t->steps)) {
            bool file = !strcmp(option_text(run, "draw"), s ? "end" : "begin");
            picture_show(run,
                         page_text(run, "Moving cut, step %zu: %s", s,
                                   blocks_text(run, r->blocks[s])),
                         file ? PICTURE_CHART : PICTURE_NO_FILES);
        }
        free(batch);
        arena_free(&tokens);
    }
    free(cost);
    model_free(m);
    if (rank.tied) comm_free(rank.tied);
}

// Reads the blocks of each stage from --blocks. The default for three stages is 3, 4, 3 of the ten
// blocks. For other numbers of stages the default is as equal as possible.
static void partition_blocks(Run *run, size_t layers, size_t *blocks) {
    size_t p = run->world->size, sum = 0;
    for (size_t i = 0; i < p; i++)
        blocks[i] = p != 3 ? range_size(shard_range(layers, p, i)) : i == 1 ? layers - 6 : 3;
    if (!option_given(run, "blocks")) return;
    const char *text = option_text(run, "blocks");
    bool valid = true;
    for (size_t i = 0; i < p && valid; i++) {
        char *end;
        blocks[i] = strtoul(text, &end, 10);
        valid = blocks[i] >= 1 && blocks[i] <= layers && *end == (i + 1 < p ? ',' : 0);
        sum += blocks[i];
        text = end + 1;
    }
    REQUIRE(valid && sum == layers,
            "--blocks %s: give the blocks of each stage as %zu numbers, 1 or more, with commas "
            "between them, such as 3,4,3; their sum must be the %zu blocks of the model",
            option_text(run, "blocks"), p, layers);
}

// ---------------------------------------------------------------- the page

static void table(Run *run, const Training *t, const Rebalanced *stays, const Rebalanced *moved) {
    enum { SHOWN = 4 };
    static const size_t step[SHOWN] = { 0, MOVE_EVERY, GROWN, PARTITION_STEPS - 1 };
    static const char *const columns[] = { "fixed: cut", "step", "idle", "moving: cut",
                                           "step",       "idle", NULL };
    const Rebalanced *both[] = { stays, moved };
    Result rows[SHOWN + 1] = { { 0 } };
    for (size_t i = 0; i < SHOWN; i++) {
        rows[i].what = page_text(run, "step %zu", step[i]);
        for (size_t k = 0; k < 2; k++) {
            const Timing *timing = &both[k]->timing[step[i]];
            const char **cell = &rows[i].cell[3 * k];
            cell[0] = page_text(run, "=%s", blocks_text(run, both[k]->blocks[step[i]]));
            cell[1] = value_cell(run, (double)timing->step, "ps");
            cell[2] = page_text(run, "=%.1f %%", 100 * timing->idle_of_total);
        }
    }
    results(run, columns, rows);
    say(run,
        "  Step: sum(f+b) + (m-1)(max f + max b) + messages; m = %zu. f, b: of a stage. A: as in "
        "04.02.",
        t->micro_batches);
}

static void answer(Run *run, const Rebalanced *stays, const Rebalanced *moved) {
    enum { LAST = PARTITION_STEPS - 1 };
    const char *cut = blocks_text(run, moved->blocks[MOVE_EVERY]);
    const char *last = blocks_text(run, moved->blocks[LAST]);
    const char *first = blocks_text(run, stays->blocks[0]);
    if (run->world->size == 1) {
        say_answer(run, "One stage has all %s blocks, so there is nothing to cut.", cut);
        say_cost(run, "nothing is sent.");
    } else if (clock_config()->simulated) {
        const char *time[PARTITION_STEPS], *fixed[PARTITION_STEPS];
        for (size_t s = 0; s < PARTITION_STEPS; s++) {
            time[s] = value_text(run, (double)moved->timing[s].step, "ps");
            fixed[s] = value_text(run, (double)stays->timing[s].step, "ps");
        }
        say_answer(run,
                   "The cut whose slowest stage costs least: a step takes %s with %s, %s with %s. "
                   "With changed costs %s takes %s, and %s takes %s.",
                   time[MOVE_EVERY], cut, fixed[MOVE_EVERY], first, last, time[LAST], first,
                   fixed[LAST]);
        say_cost(run,
                 "%s sent per rank for moved blocks, in all moves together. A new cut comes late, "
                 "after a measured step: step %d takes %s, with the fixed cut %s.",
                 cost_text(run, "moved.bytes"), GROWN, time[GROWN], fixed[GROWN]);
    } else {
        say_answer(run,
                   "The cut whose slowest stage costs least: %s, and %s with changed costs. Times "
                   "need the simulated clock.",
                   cut, last);
        say_cost(run, "%s sent per rank for moved blocks, in all moves together.",
                 cost_text(run, "moved.bytes"));
    }
    say_use_when(run, "stages are unequal. Move blocks only if costs change during training.");
}

// ---------------------------------------------------------------- the lesson

static void partition(Run *run) {
    require_one_link(run);
    size_t p = run->world->size;
    REQUIRE(p <= sizes.layers && p <= PARTITION_STAGES,
            "%zu stages need at least as many blocks: start at most %zu ranks", p, sizes.layers);
    Rebalanced moved = { 0 };
    partition_blocks(run, sizes.layers, moved.blocks[0]);
    Rebalanced stays = moved;
    Training t = { .model = sizes,
                   .steps = PARTITION_STEPS,
                   .sequences = MICRO,
                   .micro_batches = MICRO,
                   .optimizer = adamw(0.01),
                   .clip = 0.25 };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    training_store(run, &t);
    partition_cuts(run);
    CutSizes z = cut_sizes(&t.model, 1, 0);
    say(run,
        "A cut: blocks per stage, %zu in all. The head costs %.2f blocks. From step %d on, blocks "
        "0 to %d take %d\n"
        "times as long. Moving cut: before steps %d, %d, ... blocks move to the best cut for the "
        "latest costs.",
        t.model.layers, work_head(&z, 1).time / work_block(&z, 1).time, GROWN, GROWN_BLOCKS - 1,
        GROWTH, MOVE_EVERY, 2 * MOVE_EVERY);
    Trajectory want = training_unsplit(run, &t, 1);
    Trajectory fixed = trajectory_new(run, &t), got = trajectory_new(run, &t);
    train(run, &t, 0, &stays, &fixed);
    train(run, &t, MOVE_EVERY, &moved, &got);
    training_compare(run, "layers that stay = accumulation", &fixed, &want, 0);
    training_compare(run, "layers that move = accumulation", &got, &want, 0);
    trajectory_free(&want);
    trajectory_free(&fixed);
    trajectory_free(&got);
    partition_check_costs(run, &t, &stays, &moved);
    table(run, &t, &stays, &moved);
    answer(run, &stays, &moved);
    data_free(&t.data);
}

static const Option options[] = {
    { "blocks", "LIST", NULL,
      "blocks of each stage in step 0; default: 3,4,3, or as equal as possible" },
    { "draw", "begin|end", "end", "the step that --svg and --trace write: the first or the last" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(partition, options);
