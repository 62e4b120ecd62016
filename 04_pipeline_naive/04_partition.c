// ranks: 3
// level: extra
// question: Which blocks should each stage have, and what if that changes during training?
// vary: MICRO 5..8, layers 10..12, width 18|24, context 7..13, vocab 200..400
//
// A pipeline goes at the pace of its slowest stage. So the layers are cut into stages whose largest cost is as small as
// possible (min-max); the head is one of the costs, the embedding another. The best cut is found by dynamic
// programming. Costs may change while a model is trained (frozen layers, routed tokens, a device that gets slower).
// Then the layers' times are measured, the cut is solved anew, and between two steps layers move to their new stages,
// with all that training knows about them: weights and AdamW's two moments (DynMo, Wahib et al. 2025). Nothing is drawn
// or summed by a rank's number, so a training whose layers move has the bits of one whose layers stay.
// Left out: stages with several replicas each (PipeDream's planner: a table, experiments/04_planner.c).
#include "04_pipeline_naive/pipeline.h"
#include "04_pipeline_naive/experiments/04_costs.h"
#include "04_pipeline_naive/experiments/costs.h"
#include "common/device/device.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ================================ the technique ================================

// cost [n], in model order, is cut into p stages of neighbours, none empty: stage i has layers first[i], ...,
// first[i+1] - 1. Returns the largest cost of a stage, the smallest possible one.
// best[k][j]: of the first j layers on k stages. The last of these stages has layers i, ..., j-1, for some i:
//     best[k][j] = min over i of max(best[k-1][i], cost of i, ..., j-1)
double partition_min_max(const double *cost, size_t n, size_t p, size_t *first) {
    double *best = host_alloc((p + 1) * (n + 1) * sizeof *best);
    size_t *from = host_alloc((p + 1) * (n + 1) * sizeof *from);           // the i of best[k][j]
    for (size_t i = 0; i <= p; i++) first[i] = i < p ? shard_range(n, p, i).lo : n;        // equal counts, at first
    // EXERCISE 04.04a (4 points): the best cut. best[k * (n+1) + j] is the largest stage of the first j layers on k
    // stages, from[k * (n+1) + j] the first layer of the last of these. For k = 0 it is 0 of no layer and INFINITY of
    // any others; so it is for every k of fewer than k layers. Then first[p-1], ..., first[0] are read off backwards:
    // the last stage ends at n. Among equal cuts take the one whose last stage begins earliest.
    for (size_t k = 0; k <= p; k++)
        for (size_t j = 0; j <= n; j++) {
            double last = 0, *here = &best[k * (n + 1) + j];
            *here = k == 0 && j == 0 ? 0 : INFINITY;
            for (size_t i = j; k > 0 && i-- > k - 1;) {                    // the k-th stage: i, ..., j-1
                double before = best[(k - 1) * (n + 1) + i];
                last += cost[i];
                if ((before > last ? before : last) > *here) continue;
                *here = before > last ? before : last;
                from[k * (n + 1) + j] = i;
            }
        }
    for (size_t k = p; k > 0; k--) first[k - 1] = from[k * (n + 1) + first[k]];
    // END
    double most = best[p * (n + 1) + n];
    free(best);
    free(from);
    return most;
}

// ---- what each layer costs: a layer around each that reads the clock before and after ----

static double moment(void) {
    if (!clock_config()->simulated) device_synchronize();  // a GPU may still be at work on what is queued
    return (double)clock_now();
}
static void timed_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    double begin = moment();
    layer_forward(l->inner, b, x, y, s);
    *(double *)l->technique += moment() - begin;
}
static void timed_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    double begin = moment();
    layer_backward(l->inner, b, x, dy, dx, s);
    *(double *)l->technique += moment() - begin;
}
static void timed_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    double begin = moment();
    layer_backward_inputs(l->inner, b, x, dy, dx, s);
    *(double *)l->technique += moment() - begin;
}
static void timed_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s) {
    double begin = moment();
    layer_backward_weights(l->inner, b, x, s);
    *(double *)l->technique += moment() - begin;
}
static const LayerKind timed = {
    .name = "timed", .forward = timed_forward, .backward = timed_backward,
    .backward_inputs = timed_backward_inputs, .backward_weights = timed_backward_weights,
};

// The costs that are cut: the embedding, the blocks, the head with the loss. A step adds to cost[L+2] what this stage's
// layers take, in picoseconds.
size_t partition_items(const ModelConfig *c) { return c->layers + 2; }
void partition_time_layers(Model *m, double *cost) {
    for (size_t i = 0; i < m->n_layers; i++) {
        size_t number = m->layers[i].number;
        layer_wrap(&m->layers[i], &timed, NULL);
        m->layers[i].technique = &cost[number <= m->config.layers ? number : m->config.layers + 1];
    }
}

// blocks [p v], of v chunks a stage, <- the best cut for what all have measured. cost becomes that of all layers.
void partition_solve(Comm *pp, const ModelConfig *c, size_t v, double *cost, size_t *blocks) {
    size_t n = partition_items(c), p = pp->size * v, *first = host_alloc((p + 1) * sizeof *first);
    comm_all_reduce_doubles(pp, cost, n);                  // L + 2 doubles: a layer's from its stage, zeros from others
    partition_min_max(cost, n, p, first);
    for (size_t i = 0; i < p; i++) blocks[i] = first[i + 1] - first[i] - (i == 0) - (i + 1 == p);
    free(first);
}

// ---- layers move ----

static size_t stage_of_block(const Comm *pp, const size_t *blocks, size_t k) {
    size_t i = 0;
    for (; k >= blocks[i]; i++) k -= blocks[i];
    return i % pp->size;                                   // where stages have several chunks, they go round (05.03)
}
static const Unit *block_of(const Model *m, size_t k) {    // NULL: not on this stage
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].number == k + 1) return m->layers[i].units[0];
    return NULL;
}
// Whole weights; or this replica's part of them, where ZeRO-3 keeps no more.
static Tensor weights_of(const Unit *u) { return u->w.data ? u->w : u->own_w; }
static void copy_state(const Unit *to, const Unit *from, const Optimizer *o) {
    tensor_copy(weights_of(to), weights_of(from));
    if (o->kind != ADAMW) return;
    tensor_copy(to->m, from->m);
    tensor_copy(to->v, from->v);
}

// Between two steps: block by block, in model order on all stages, so that no two of them wait for each other. `from`
// has before[i] blocks on stage i; `to`, described, allocated and with its optimizer state, after[i].
void pipeline_migrate(Comm *pp, const Optimizer *o, const Model *from, const size_t *before, Model *to,
                      const size_t *after) {
    comm_connect(pp, COMM_EVERYBODY);
    for (size_t k = 0; k < to->config.layers; k++) {
        size_t old = stage_of_block(pp, before, k), new = stage_of_block(pp, after, k);
        const Unit *mine = block_of(from, k), *its = block_of(to, k);
        // EXERCISE 04.04b (3 points): a block moves. Block k goes from stage `old` to stage `new` of pp, which may be
        // the same. mine: its unit on this stage until now, its: from now on; NULL where it was not, or will not be.
        // weights_of(its unit), and with AdamW (o->kind) the moments m and v. Calls: comm_send, comm_recv, copy_state.
        if (old == new) {
            if (mine) copy_state(its, mine, o);
        } else if (pp->rank == old) {
            comm_send(pp, weights_of(mine), new);          // 12C^2 + 13C elements, and twice as many with AdamW
            if (o->kind == ADAMW) comm_send(pp, mine->m, new);
            if (o->kind == ADAMW) comm_send(pp, mine->v, new);
        } else if (pp->rank == new) {
            comm_recv(pp, weights_of(its), old);
            if (o->kind == ADAMW) comm_recv(pp, its->m, old);
            if (o->kind == ADAMW) comm_recv(pp, its->v, old);
        }
        // END
    }
    // Embedding and head stay on the first and the last stage.
    for (size_t i = 0; i < from->n_layers; i++) {
        const Layer *l = &from->layers[i];
        if (l->number > 0 && l->number <= to->config.layers) continue;
        for (size_t k = 0; k < to->n_layers; k++)
            for (size_t u = 0; u < l->n_units && to->layers[k].number == l->number; u++)
                if (!l->units[u]->tied_to) copy_state(to->layers[k].units[u], l->units[u], o);
    }
}

// ================================ the experiment ================================

// The head of 331 vocabulary entries costs as much as two blocks. From step GROWN on, the first three blocks cost three
// times as much: their FLOPs are charged to the clock again. Micro-batches are of one sequence.
static const ModelConfig sizes = { .layers = 10, .width = 12, .heads = 3, .context = 10, .vocab = 331, .dropout = 0.1 };
enum { MICRO = 6, STEPS = 6, EVERY = 2, GROWN = 3, GROWN_BLOCKS = 3, GROWTH = 3 };

// ---------------------------------------------------------------- cuts alone

static void cuts(Run *run) {
    // DeepSpeed's criterion is the smallest difference between the largest and the smallest stage.
    static const double example[] = { 9, 5, 5, 9, 6 };
    size_t first[4];
    double got[] = { partition_min_max(example, 5, 3, first), partition_max_min(example, 5, 3) }, want[] = { 14, 15 };
    check_numbers(run, "cuts", "costs 9 5 5 9 6 on 3 stages: min-max 14, max - min 15", got, want, 2, 0);
    enum { CASES = 200 };
    double best[CASES], every[CASES], sum[CASES];
    for (size_t k = 0; k < CASES; k++) {
        double cost[12];
        size_t n = 1 + random_key(run->seed, k) % 12, p = 1 + random_key(run->seed + 1, k) % n, at[13];
        for (size_t i = 0; i < n; i++) cost[i] = (double)(random_key(random_key(run->seed, k), i) % 20);
        best[k] = partition_min_max(cost, n, p, at);
        every[k] = partition_exhaustive(cost, n, p);
        sum[k] = partition_largest(cost, p, at);           // what the cut that was returned comes to
    }
    check_numbers(run, "cuts", "200 random ones: the smallest of all cuts", best, every, CASES, 0);
    check_numbers(run, "cuts", "200 random ones: the cut has that cost", sum, every, CASES, 0);
}

// ---------------------------------------------------------------- training while layers cost more, and move

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
static const LayerKind grown = { .name = "grown", .forward = grown_forward, .backward = grown_backward };

static Model *stage_of(const Training *t, Comm *pp, const size_t *blocks, double *cost) {
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, blocks, pp->size, pp->rank));
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
static void train(Run *run, const Training *t, const size_t *blocks, size_t every, Rebalanced *r, Trajectory *out) {
    Comm *pp = run->world;
    size_t p = pp->size, n = partition_items(&t->model);
    PipelineRank me = { .pp = pp, .tied = pipeline_tied_group(pp), .schedule = schedule_gpipe };
    Optimizer o = t->optimizer;
    double *cost = host_alloc(n * sizeof *cost);
    for (size_t i = 0; i < p; i++) r->blocks[0][i] = blocks[i];
    Model *m = stage_of(t, pp, blocks, cost);
    for (size_t s = 0; s < t->steps; s++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = training_batches(t, &tokens, s, 1, 0);
        if (s > 0) memcpy(r->blocks[s], r->blocks[s - 1], p * sizeof(size_t));
        comm_ledger_reset(pp);
        if (every && s > 0 && s % every == 0) {            // the costs are those of the step before
            partition_solve(pp, &t->model, 1, cost, r->blocks[s]);
            Model *next = stage_of(t, pp, r->blocks[s], cost);
            pipeline_migrate(pp, &o, m, r->blocks[s - 1], next, r->blocks[s]);
            model_free(m);
            m = next;
        }
        r->moved[s] = (Moved){ pp->ledger[COMM_SEND].calls, pp->ledger[COMM_SEND].bytes,
                               pp->ledger[COMM_ALL_REDUCE].bytes };
        double done = 0;
        comm_all_reduce_doubles(pp, &done, 1);             // until every layer has arrived: then the step begins
        memset(cost, 0, n * sizeof *cost);
        picture_begin(run, MEM_ACTIVATIONS);
        StepResult seen = pipeline_step(&me, m, &o, t, batch);
        picture_end(run);
        r->timing[s] = picture_timing(run);
        trajectory_record(out, s, m, seen.loss, seen.norm);
        if (t->recorded && (s == 0 || s + 1 == t->steps)) {
            char title[48];
            snprintf(title, sizeof title, "step %zu, %s", s, s ? "rebalanced twice" : "as it begins");
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

static void partition(Run *run) {
    require_one_link(run);
    size_t p = run->world->size, blocks[MOST_STAGES];
    REQUIRE(p <= sizes.layers && p <= MOST_STAGES, "%zu stages need at least as many blocks: start at most %zu ranks",
            p, sizes.layers);
    partition_blocks(run, sizes.layers, blocks);
    Training t = { .model = sizes, .steps = STEPS, .sequences = MICRO, .micro_batches = MICRO, .clip = 0.25 };
    t.data = data_synthetic(sizes.vocab, sizes.context, run->seed);
    t.model.seed = run->seed;
    cuts(run);
    Rebalanced moved = {0}, stays = {0};
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        Trajectory want = training_unsplit(run, &t, 1), fixed = trajectory_new(run, &t), got = trajectory_new(run, &t);
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
    partition_cost_lines(run, &t, growth, &stays, &moved);
    planner(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "blocks", "LIST", NULL, "of each stage in the beginning; without it: 3,4,3, or as equal as possible" },
    { "draw", "begin|end", "end", "whose step --svg and --trace write" },
    {0},
};
EXPERIMENT(partition, options);
