// Experiment of 12_compare.c: the six ways train one model on the same ranks, by the functions of
// their lessons, against the unsplit one: one step over each of the two links of --link. From sizes
// alone follow a block of GPT-3's width on 64 ranks, what a rank receives against the tokens, and
// from how many tokens on 2D receives less than 1D. A way that the number of ranks does not allow
// is left out: 64 ranks allow all six.
#include <math.h>
#include <stdio.h>
#include "03_tensor_parallel/compare.h"
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/08_costs.h"
#include "03_tensor_parallel/experiments/grids.h"
#include "judge/draw/picture.h"
#include "judge/draw/plot.h"

static const char *const way_name[WAYS] = { "1D", "1D + SP", "2D", "2.5D", "3D", "ring" };
static const char *const way_id[WAYS] = { "1d", "sp", "2d", "25d", "3d", "ring" };
static const ClockLink *link_of(int i) {
    return i ? &clock_config()->between : &clock_config()->link;
}

// ---------------------------------------------------------------- one training in one of the ways

// What one rank measured: bytes of the last step; ps over the first link and over the second.
typedef struct { size_t parameters, activations, received; Picoseconds time[2]; } Measured;
// The groups of a way.
typedef struct {
    TensorWay way;
    Comm *world;
    CommGrid grid;                                         // of 2D, 2.5D
    Cube cube;                                             // of 3D
} Compared;

// Cuts a described model, and for the ring its data. The ways differ in nothing else; what they do
// is inside their layers.
static void cut(Compared *w, Model *m, Data *d) {
    Comm *world = w->world;
    const TensorWayShape shape = tensor_way_shape(w->way, world->size);
    switch (w->way) {
    case WAY_1D: tensor_parallel(m, world); break;
    case WAY_SP: sequence_parallel(m, world, KEEP_SHARD); break;
    case WAY_2D:
        w->grid = comm_grid(world, shape.q, shape.q, 1);
        summa(m, &w->grid);
        break;
    case WAY_25D:
        w->grid = tesseract_grid(world, shape.depth);
        tesseract(m, &w->grid);
        break;
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
    if (g->in_row) {
        group[n++] = g->in_row;
        group[n++] = g->in_col;
        group[n++] = g->in_depth;
    }
    if (w->way == WAY_3D) {
        group[n++] = w->cube.same_col;
        group[n++] = w->cube.same_row;
    }
    return n;
}
static void uncut(Compared *w) {
    if (w->way == WAY_3D) cube_free(&w->cube);
    else if (w->grid.in_row) comm_grid_free(&w->grid);
}
// Is this rank's loss a part of the sum over all ranks? In 1D all have the same, on a grid the
// ranks of a row; in 3D it is 0 where another rank has the same tokens, and on the ring all have
// other tokens.
static bool counts(const Compared *w) {
    switch (w->way) {
        case WAY_1D: case WAY_SP:  return w->world->rank == 0;
        case WAY_2D: case WAY_25D: return w->grid.col == 0;
        default:                   return true;
    }
}

typedef struct { Compared *w; size_t step; Measured r; } Measuring;

static StepResult step(void *measuring, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measuring *x = measuring;
    Compared *w = x->w;
    Comm *group[6];
    const size_t n = groups(w, group);
    clock_set_link(link_of((int)x->step));
    comm_all_reduce_doubles(w->world, &(double){0}, 1);            // all begin at once
    for (size_t i = 0; i < n; i++) comm_ledger_reset(group[i]);
    Picoseconds begin = clock_now();
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;
    x->r.activations = memory_peak(MEM_ACTIVATIONS);
    model_partial_sums(m);
    model_fold_tied(m);
    if (w->way == WAY_RING) comm_all_reduce(w->world, m->g);   // as in data parallelism
    x->r.received = 0;
    for (size_t i = 0; i < n; i++) x->r.received += comm_bytes_received(group[i]);
    if (!counts(w)) loss = 0;
    comm_all_reduce_doubles(w->world, &loss, 1);                   // all end at once
    x->r.time[x->step] = clock_now() - begin;
    x->step++;
    double norm = model_grad_norm(m, w->way == WAY_RING ? NULL : w->world);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    clock_set_link(NULL);
    return (StepResult){ loss, norm };
}

static Measured train(Run *run, const Training *unsplit, TensorWay way, Trajectory *c) {
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

// ---------------------------------------------------------------- what a rank has and receives

static RankShare columns_and_rows(const ModelConfig *c, size_t B, size_t n, size_t rank,
                                  bool sequence) {
    CutSizes z = cut_sizes(c, n, rank);
    if (sequence) z = cut_sequence(z, false);
    const SequenceTraffic rows = traffic_sequence_parallel(&z, B, false);
    const Traffic whole = traffic_tensor_parallel(&z, n, B, false), sums = traffic_partial_sums(&z);
    return (RankShare){ (double)elements_stage(&z), (double)activations_stage(&z, B),
                          sequence ? rows.bytes + sums.bytes : whole.bytes,
                          3 * work_stage(&z, B).time + (sequence ? rows.time + sums.time
                                                        : whole.time) };
}
static RankShare grid(const ModelConfig *c, size_t B, TensorWayShape s, size_t rank) {
    const GridPlace at = grid_place_of(c, s.q, s.depth, rank);
    const CutSizes whole = cut_sizes(c, 1, 0), z = grid_sizes(&at);
    const GridTraffic layers = grid_stage(&at, &whole, B, false);
    const GridTraffic tables = grid_table_sums(&at, &whole), units = grid_unit_sums(&at, &whole);
    const double sums = tables.depth.received + units.depth.received;
    const double sent = layers.transfers + tables.transfers + units.transfers;
    const double time = layers.products.time + sent;
    return (RankShare){ (double)grid_elements_stage(&at, &whole),
                          (double)(grid_sequences(&at, B) * c->context * kept_stage(&z)),
                        layers.row.received + layers.col.received + sums, time };
}
// One product of attention, of a head and sequence: n queries with n keys, or a triangle of them;
// by tiles, in a triangle's row by row, as each is rounded to a picosecond.
static double pairs_time(size_t n, size_t D, bool triangle) {
    double time = 0;
    for (size_t i = 0; i < n; i += ATTENTION_TILE)
        for (size_t j = 0; j < (triangle ? i + 1 : n); j += ATTENTION_TILE) {
            size_t rows = n - i < ATTENTION_TILE ? n - i : ATTENTION_TILE;
            size_t cols = n - j < ATTENTION_TILE ? n - j : ATTENTION_TILE;
            bool diagonal = triangle && i == j;
            for (size_t r = 1; diagonal && r <= rows; r++) time += work_product(1, r, D).time;
            if (!diagonal) time += work_product(rows, cols, D).time;
        }
    return time;
}
// The attention of a block on the ring, in picoseconds, where context / 2n is whole: zigzag then
// gives every rank the same work, so all take each step together. In step 0 a rank has w0 to
// compute, a triangle; in each other one w, half a block: 2 products of it forward, 5 in backward.
// A hop of k | v takes alpha + 2 bsh/n e / beta.
static double ring_attention_time(const ModelConfig *c, size_t B, size_t n) {
    const size_t chunk = c->context / (2 * n), D = c->width / c->heads;
    const double heads = (double)(B * c->heads), square = heads * pairs_time(chunk, D, false);
    const double w0 = 2 * heads * pairs_time(chunk, D, true) + square, w = 2 * square;
    const double hop = send_time(2 * B * 2 * chunk * c->width * sizeof(real));
    const double products = w0 + (double)(n - 1) * w;
    return (2 + 5) * products + context_ring_waits(n, 2 * w0, 2 * w, hop, false)
                              + context_ring_waits(n, 5 * w0, 5 * w, hop, true);
}
// All else works on my positions, three times (forward, and two products in backward); then the
// all-reduce of whole gradients, after the last backward.
static double ring_step_time(const ModelConfig *c, const CutSizes *whole, size_t B, size_t n) {
    const size_t M = B * c->context / n, h = c->width;
    const double block = work_product(M, 3 * h, h).time + work_product(M, h, h).time
                       + work_product(M, 4 * h, h).time + work_product(M, h, 4 * h).time;
    return 3 * ((double)c->layers * block + work_product(M, c->vocab, h).time)
         + (double)c->layers * ring_attention_time(c, B, n)
         + ring_time(ALL_REDUCE_PASSES, n, elements_stage(whole), sizeof(real));
}
// Keys and values of all other positions, twice; the gradients of all; and the sum of the gradients
// of parameters.
static RankShare ring(const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const CutSizes whole = cut_sizes(c, 1, 0);
    CutSizes z = whole;
    z.T = part_size(c->context, 2 * n, rank) + part_size(c->context, 2 * n, 2 * n - 1 - rank);
    z.online = true;
    size_t elements = n > 1 ? (4 * (c->context - z.T) + 2
                               * c->context) * B * c->width * c->layers : 0;
    double sums = ring_bytes(ALL_REDUCE_PASSES, n, elements_stage(&whole), sizeof(real));
    return (RankShare){ (double)elements_stage(&whole), (double)(B * z.T * kept_stage(&z)),
                          (double)(elements * sizeof(real)) + sums,
                              ring_step_time(c, &whole, B, n) };
}
static RankShare share(TensorWay way, const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const TensorWayShape s = tensor_way_shape(way, n);
    if (way == WAY_1D || way == WAY_SP) return columns_and_rows(c, B, n, rank, way == WAY_SP);
    if (way == WAY_RING) return ring(c, B, n, rank);
    return way == WAY_3D ? cube_rank_share(c, B, s.q, rank, true) : grid(c, B, s, rank);
}

// ---------------------------------------------------------------- costs

static void check_way(Run *run, TensorWay way, const char *id, const char *what, const char *unit,
                      double predicted, double measured) {
    char text[48], name[96];
    snprintf(text, sizeof text, "%s.%s", id, way_id[way]);
    snprintf(name, sizeof name, "%s: %s", way_name[way], what);
    check_cost(run, text, name, unit, formula(predicted), NOT_PREDICTED, measured);
}
// On a grid with unequal blocks, and on a ring with unequal chunks, ranks wait for each other.
static bool time_follows(TensorWay way, const Training *t, size_t n) {
    const TensorWayShape s = tensor_way_shape(way, n);
    const GridPlace at = grid_place_of(&t->model, s.q, s.depth, 0);
    if (way == WAY_2D || way == WAY_25D) return grid_even(&at, t->sequences);
    return way != WAY_RING || t->model.context % (2 * n) == 0;
}
static void costs(Run *run, const Training *t, TensorWay way, const Measured *r) {
    const size_t n = run->world->size;
    const RankShare s = share(way, &t->model, t->sequences, n, run->world->rank);
    check_way(run, way, "parameters", "parameters", "bytes", s.parameters * sizeof(real),
              (double)r->parameters);
    check_way(run, way, "kept", "activations, peak", "bytes", s.kept * sizeof(real),
              (double)r->activations);
    check_way(run, way, "received", "received a step", "bytes", s.received, (double)r->received);
    if (!clock_config()->simulated || !time_follows(way, t, n)) return;
    for (int i = 0; i < 2; i++) {
        char what[40];
        snprintf(what, sizeof what, "step, link %s", link_of(i)->name);
        clock_set_link(link_of(i));
        double loss = ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double));
        check_way(run, way, i ? "step.second" : "step.first", what, "ps",
                  share(way, &t->model, t->sequences, n, 0).time + loss, (double)r->time[i]);
    }
    clock_set_link(NULL);
}

// ---------------------------------------------------------------- tables

typedef char Cells[WAYS][40];
static Result row(const char *what, Cells cell) {
    Result r = { .what = what };
    for (size_t i = 0; i < WAYS; i++) r.cell[i] = cell[i];
    return r;
}
static const char *const columns[WAYS + 1] = { "1D", "1D + SP", "2D", "2.5D", "3D", "ring", NULL };

static void table(Run *run, const Training *t, const Measured measured[WAYS]) {
    const size_t n = run->world->size;
    Cells shape, parameters, kept, received, time[2];
    char name[2][40];
    for (TensorWay way = 0; way < WAYS; way++) {
        const TensorWayShape s = tensor_way_shape(way, n);
        const bool grid = way == WAY_2D || way == WAY_25D || way == WAY_3D;
        Cells *all[] = { &shape, &parameters, &kept, &received, &time[0], &time[1] };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) snprintf((*all[i])[way], 40, "=-");
        if (s.q == 0) continue;
        if (grid && s.depth > 1) snprintf(shape[way], 40, "=%zu x %zu x %zu", s.q, s.q, s.depth);
        else if (grid) snprintf(shape[way], 40, "=%zu x %zu", s.q, s.q);
        else snprintf(shape[way], 40, "=%zu", n);
        snprintf(parameters[way], 40, "parameters.%s", way_id[way]);
        snprintf(kept[way], 40, "kept.%s", way_id[way]);
        snprintf(received[way], 40, "received.%s", way_id[way]);
        for (int i = 0; i < 2; i++)
            snprintf(time[i][way], 40, "=%.2f ms", (double)measured[way].time[i] / 1e9);
    }
    for (int i = 0; i < 2; i++)
        snprintf(name[i], 40, "step, link %s", link_of(i)->name);
    const bool simulated = clock_config()->simulated;
    const Result rows[] = { row("ranks", shape), row("parameters", parameters),
                            row("activations, peak", kept),
                            row("received per step", received),
                                row(simulated ? name[0] : NULL, time[0]),
                            row(simulated ? name[1] : NULL, time[1]), {0} };
    results(run, columns, rows);
    const ModelConfig *c = &t->model;
    say(run, "  measured: L = %zu, h = %zu, a = %zu, s = %zu, b = %zu, V = %zu; %zu-byte elements; "
        "-: not on %zu ranks", c->layers, c->width, c->heads, c->context, t->sequences, c->vocab,
            sizeof(real), n);
}

// Of one more block.
static RankShare block_share(TensorWay way, ModelConfig c, size_t B, size_t n) {
    c.layers = 1;
    RankShare one = share(way, &c, B, n, 0);
    c.layers = 2;
    RankShare two = share(way, &c, B, n, 0);
    return (RankShare){ two.parameters - one.parameters, two.kept - one.kept,
                          (two.received - one.received) / sizeof(real), 0 };
}

static const ModelConfig wide = { .layers = 1, .width = 12288, .heads = 128, .context = 2048,
                                  .vocab = 51200,
                                  .dropout = 0.1 };
enum { RANKS = 64, SEQUENCES = 16 };

static void block_table(Run *run) {
    Cells parameters, kept, received;
    for (TensorWay way = 0; way < WAYS; way++) {
        const RankShare s = block_share(way, wide, SEQUENCES, RANKS);
        snprintf(parameters[way], 40, "=%.1f M", s.parameters / 1e6);
        snprintf(kept[way], 40, "=%.0f M", s.kept / 1e6);
        snprintf(received[way], 40, "=%.0f M", s.received / 1e6);
    }
    const Result rows[] = { row("parameters", parameters), row("kept", kept),
                            row("received", received), {0} };
    results(run, columns, rows);
    say(run, "  by sizes: elements of a block on 64 ranks; h = %zu, a = %zu, s = %zu, b = %d; "
        "bs = %.2f h", wide.width, wide.heads, wide.context, SEQUENCES,
        (double)(SEQUENCES * wide.context) / (double)wide.width);
}

// What a rank receives for a block against its tokens, both relative to the width.
static void plot(Run *run) {
    enum { POINTS = 9, FIRST = 192 };            // positions: 16 sequences of them are h / 4 tokens
    double x[POINTS], y[WAYS][POINTS];
    PlotLine lines[WAYS];
    for (TensorWay way = 0; way < WAYS; way++) {
        for (size_t i = 0; i < POINTS; i++) {
            ModelConfig c = wide;
            c.context = (size_t)FIRST << i;
            x[i] = (double)(SEQUENCES * c.context) / (double)c.width;
            y[way][i] = block_share(way, c, SEQUENCES,
                                    RANKS).received / ((double)c.width * (double)c.width);
        }
        lines[way] = (PlotLine){ way_name[way], y[way] };
    }
    plot_show(run, &(Plot){ "received by a rank for a block, forward and backward, 64 ranks",
                            "tokens / h",
                            "elements / h^2", x, POINTS, lines, WAYS, true, true }, PICTURE_DETAIL);
}

// ---------------------------------------------------------------- the crossover of 1D and 2D

// Both grow with the tokens, 1D from 0, 2D from the bytes of the weights. From how many tokens on
// is 2D below? In units of h; 0: never.
typedef struct { double one, two; } Volume;
static double crossover(Volume few, Volume many, double tokens, double h) {
    const double one = (many.one - few.one) / tokens, two = (many.two - few.two) / tokens;
    if (one - two < 1e-9 * one) return 0;
    return ((few.two - two * tokens) - (few.one - one * tokens)) / (one - two) / h;
}
enum { BYTES, CLOCK, TREES, MEASURES };
static Volume volume(const ModelConfig *c, size_t q, size_t B, int measure) {
    CutSizes z = cut_sizes(c, q * q, 0);
    const size_t h = c->width, M = B * c->context, K[] = { h, h, h, 4 * h };
    const size_t N[] = { 3 * h, h, 4 * h, h };
    const GridPlace at = grid_place_of(c, q, 1, 0);
    Volume v = {0};
    z.first = z.last = false;
    const Traffic all_reduces = traffic_tensor_parallel(&z, q * q, B, false);
    v.one = measure == BYTES ? all_reduces.bytes : all_reduces.time;
    for (size_t i = 0; i < 4; i++) {
        const GridTraffic f = grid_linear_forward(&at, M, K[i], N[i]);
        const GridTraffic b = grid_linear_backward(&at, M, K[i], N[i]);
        const double row = f.row.received + b.row.received, col = f.col.received + b.col.received;
        v.two += measure == BYTES ? row + col : f.transfers + b.transfers;
    }
    // Each level of a tree passes whole blocks on, after the one before.
    if (measure == TREES) v.two *= ceil(log2((double)q));
    return v;
}

static void crossover_table(Run *run) {
    enum { CASES = 4 };
    static const size_t q[CASES] = { 2, 3, 4, 8 };
    // Everything divides by 2, 3, 4 and 8, squared; vectors are small beside the matrices.
    const ModelConfig c = { .layers = 1, .width = 4608, .heads = 576, .context = 1, .vocab = 64 };
    const size_t few = 576, many = 2 * few;
    const ClockLink plain = { .name = "bytes", .alpha = 0, .beta = 1e12 };  // a byte per picosecond
    double at[MEASURES + 1][CASES], want[CASES];
    char cell[MEASURES + 1][CASES][40];
    clock_set_link(&plain);
    for (size_t i = 0; i < CASES; i++) {
        const double Q = (double)q[i], p = Q * Q, tree = log2(Q) / Q;
        for (int m = 0; m < MEASURES; m++)
            at[m][i] = crossover(volume(&c, q[i], few, m), volume(&c, q[i], many, m), (double)few,
                                 (double)c.width);
        // Of bsh: Megatron's 4 + 8, and four times Optimus' 7.
        const double gain = 12 * (p - 1) / p - 28 * tree;
        at[MEASURES][i] = gain > 0 ? 48 * tree / gain : 0;
        want[i] = tensor_way_crossover(WAY_2D, WAY_1D, q[i] * q[i]);     // 36 / (8q - 13)
        for (int m = 0; m <= MEASURES; m++)
            if (at[m][i] > 0) snprintf(cell[m][i], 40, "=%.*f h", at[m][i] < 9.95, at[m][i]);
            else snprintf(cell[m][i], 40, "=never");
    }
    clock_set_link(NULL);
    // 2e-3: the lessons' exact volumes have vectors, too.
    check_numbers(run, "crossover of 1D and 2D", "36/(8q-13)", at[BYTES], want, CASES, 2e-3);
    static const char *const what[MEASURES + 1] = {
        "by bytes received", "by this clock: broadcasts of S last S/beta",
        "by trees: each level lasts S/beta", "by Optimus' own formulas",
    };
    Result rows[MEASURES + 2] = {{0}};
    for (int m = 0; m <= MEASURES; m++)
        rows[m] = (Result){ what[m], NULL, { cell[m][0], cell[m][1], cell[m][2], cell[m][3] } };
    results(run, (const char *const[]){ "q = 2", "3", "4", "8", NULL }, rows);
    say(run, "  from how many tokens bs on does a block cost less in 2D than in 1D? Latency is "
             "left out.");
}

// ---------------------------------------------------------------- the run

static void compare(Run *run) {
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = option_size(run, "context"),
                      .vocab = option_size(run, "vocab"), .dropout = option_real(run, "dropout"),
                          .seed = run->seed };
    config_require(&c);
    require_one_link(run);
    const size_t n = run->world->size;
    REQUIRE(n <= c.heads && n <= c.context && n <= c.vocab, "%zu ranks need as many heads, "
                                                            "positions and vocabulary "
            "entries: choose fewer ranks, or more --heads, --context and --vocab", n);
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = 2,
                   .sequences = option_size(run, "batch"), .micro_batches = 1,
                       .optimizer = adamw(0.01) };
    Trajectory want = training_unsplit(run, &t, 1);
    Measured measured[WAYS] = {{0}};
    for (TensorWay way = 0; way < WAYS; way++) {
        if (tensor_way_shape(way, n).q == 0) continue;
        Trajectory got = trajectory_new(run, &t);
        char what[40];
        snprintf(what, sizeof what, "split = unsplit, %s", way_name[way]);
        measured[way] = train(run, &t, way, &got);
        training_compare(run, what, &got, &want, LIMIT_ROUNDING);
        costs(run, &t, way, &measured[way]);
        trajectory_free(&got);
    }
    trajectory_free(&want);
    table(run, &t, measured);
    block_table(run);
    plot(run);
    crossover_table(run);
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
    { "link", "NAME[,NAME]", "fast,slow",
      "the two links that are compared; alpha and beta of each" },
    {0},
};
EXPERIMENT(compare, options);
