// ranks: 8
// level: extra
// question: Which way of sharing a layer keeps least, receives least and takes least time on the same ranks?
//
// The ways of this chapter train the same model on the same ranks, by their own functions:
//     1D        tensor_parallel        06   matrices by columns and rows; every rank has every token
//     1D + SP   sequence_parallel      07   and rows of the regions between, inputs gathered again in backward
//     2D        summa                  09   q x q blocks
//     2.5D      tesseract              10   d layers of them
//     3D        cube_parallel          11   q x q x q parts, gathered again in backward
//     ring      context_parallel       08   positions, zigzag; parameters whole, their gradients summed
// One step over each of the two links of --link. A way that the number of ranks does not allow is left out: 64 ranks
// allow all six. From sizes alone follow what a block of GPT-3's width costs on 64 ranks, and the crossover: from how
// many tokens on does 2D receive less than 1D?
#include "03_tensor_parallel/experiments/12_costs.h"
#include <stdio.h>

// ================================ the technique ================================

// The groups of a way, and who of them counts what.
typedef struct {
    TensorWay way;
    Comm *world;
    CommGrid grid;                                         // of 2D, 2.5D
    Cube cube;                                             // of 3D
} Compared;

static size_t root_of(size_t n, size_t power) {            // q with q^power = n, or 0
    for (size_t q = 1; q <= n; q++)
        if ((power == 2 ? q * q : q * q * q) == n) return q;
    return 0;
}
TensorWayShape tensor_ways_shape(TensorWay way, size_t ranks) {
    if (way == WAY_2D) return (TensorWayShape){ root_of(ranks, 2), 1 };
    if (way == WAY_3D) return (TensorWayShape){ root_of(ranks, 3), root_of(ranks, 3) };
    if (way != WAY_25D) return (TensorWayShape){ ranks, 1 };
    for (size_t d = ranks > 1 ? 2 : 1; d * d * d <= ranks; d++)        // the flattest that is not 2D
        if (ranks % d == 0 && root_of(ranks / d, 2)) return (TensorWayShape){ root_of(ranks / d, 2), d };
    return (TensorWayShape){ 0, 0 };
}

// Cuts a described model, and for the ring its data. This is all in which the ways differ; what they do is inside their
// layers.
static void cut(Compared *w, Model *m, Data *d) {
    Comm *world = w->world;
    const TensorWayShape shape = tensor_ways_shape(w->way, world->size);
    switch (w->way) {
    case WAY_1D: tensor_parallel(m, world); break;
    case WAY_SP: sequence_parallel(m, world, KEEP_SHARD); break;
    case WAY_2D: w->grid = comm_grid(world, shape.q, shape.q, 1); summa(m, &w->grid); break;
    case WAY_25D: w->grid = tesseract_grid(world, shape.depth); tesseract(m, &w->grid); break;
    case WAY_3D:
        w->cube = cube_new(world);
        w->cube.gather_again = true;
        cube_parallel(m, &w->cube);
        break;
    case WAY_RING: d->positions = context_parallel(m, world, &ring_attention_zigzag); break;
    case WAYS: break;
    }
}
static size_t groups(const Compared *w, Comm *group[6]) {
    const CommGrid *g = w->way == WAY_3D ? &w->cube.grid : &w->grid;
    size_t n = 0;
    group[n++] = w->world;
    if (g->in_row) group[n++] = g->in_row, group[n++] = g->in_col, group[n++] = g->in_depth;
    if (w->way == WAY_3D) group[n++] = w->cube.same_col, group[n++] = w->cube.same_row;
    return n;
}
static void uncut(Compared *w) {
    if (w->way == WAY_3D) cube_free(&w->cube);
    else if (w->grid.in_row) comm_grid_free(&w->grid);
}
const ClockLink *tensor_ways_link(int i) { return i ? &clock_config()->between : &clock_config()->link; }
// Is the loss that I got a part of the sum over all ranks? In 1D all have the same, on a grid the ranks of a row; in 3D
// it is 0 where another rank has the same tokens, and on the ring all have different tokens.
static bool counts(const Compared *w) {
    switch (w->way) {
        case WAY_1D: case WAY_SP:  return w->world->rank == 0;
        case WAY_2D: case WAY_25D: return w->grid.col == 0;
        default:                   return true;
    }
}

typedef struct { Compared *w; size_t step; TensorWayMeasured r; } Measuring;

static StepResult step(void *measuring, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measuring *x = measuring;
    Compared *w = x->w;
    Comm *group[6];
    const size_t n = groups(w, group);
    clock_set_link(tensor_ways_link((int)x->step));
    comm_all_reduce_doubles(w->world, &(double){0}, 1);            // all begin at once
    for (size_t i = 0; i < n; i++) comm_ledger_reset(group[i]);
    Picoseconds begin = clock_now();
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    x->r.activations = memory_peak(MEM_ACTIVATIONS);
    model_partial_sums(m);
    model_fold_tied(m);
    if (w->way == WAY_RING) comm_all_reduce(w->world, m->g);       // whole parameters: as in data parallelism
    x->r.received = 0;
    for (size_t i = 0; i < n; i++) x->r.received += comm_bytes_received(group[i]);
    if (!counts(w)) loss = 0;
    comm_all_reduce_doubles(w->world, &loss, 1);                   // all end at once
    x->r.time[x->step++] = clock_now() - begin;
    double norm = model_grad_norm(m, w->way == WAY_RING ? NULL : w->world);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    clock_set_link(NULL);
    return (StepResult){ loss, norm };
}

// ================================ the experiment ================================

static TensorWayMeasured train(Run *run, const Training *unsplit, TensorWay way, Trajectory *c) {
    Compared w = { .way = way, .world = run->world };
    Measuring measuring = { .w = &w };
    Training t = *unsplit;
    Model *m = model_describe(&t.model, model_layers(&t.model));
    cut(&w, m, &t.data);
    model_allocate(m);
    training_run(c, m, &t, 1, 0, step, &measuring);
    measuring.r.parameters = memory_now(MEM_PARAMETERS);
    model_free(m);
    uncut(&w);
    return measuring.r;
}

static void compare(Run *run) {
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = option_size(run, "context"),
                      .vocab = option_size(run, "vocab"), .dropout = option_real(run, "dropout"), .seed = run->seed };
    config_require(&c);
    require_one_link(run);
    const size_t n = run->world->size;
    REQUIRE(n <= c.heads && n <= c.context && n <= c.vocab, "%zu ranks need as many heads, positions and vocabulary "
            "entries: choose fewer ranks, or more --heads, --context and --vocab", n);
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = 2,
                   .sequences = option_size(run, "batch"), .micro_batches = 1, .optimizer = adamw(0.01) };
    Trajectory want = training_unsplit(run, &t, 1);
    TensorWayMeasured measured[WAYS] = {{0}};
    for (TensorWay way = 0; way < WAYS; way++) {
        if (tensor_ways_shape(way, n).q == 0) continue;
        Trajectory got = trajectory_new(run, &t);
        char what[40];
        snprintf(what, sizeof what, "split = unsplit, %s", tensor_ways_name[way]);
        measured[way] = train(run, &t, way, &got);
        training_compare(run, what, &got, &want, LIMIT_ROUNDING);
        tensor_ways_costs(run, &t, way, &measured[way]);
        trajectory_free(&got);
    }
    trajectory_free(&want);
    tensor_ways_results(run, &t, measured);
    tensor_ways_block(run);
    tensor_ways_plot(run);
    tensor_ways_crossover(run);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "32", "columns; a multiple of --heads" },
    { "heads", "N", "8", "attention heads; at least one a rank" },
    { "context", "N", "16", "positions of a sequence; at least one a rank" },
    { "vocab", "N", "64", "vocabulary entries; at least one a rank" },
    { "batch", "N", "8", "sequences of a step" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    { "link", "NAME[,NAME]", "fast,slow", "the two links that are compared; alpha and beta of each" },
    {0},
};
EXPERIMENT(compare, options);
