// Experiment of 12_compare.c. One model is trained in six ways on the same ranks and compared with
// the unsplit one: one step over each of the two links of --link. Two tables follow from sizes
// alone: a block of GPT-3's width on 64 ranks, and the batch from which 2D is better than 1D. A way
// that the number of ranks does not allow is left out: 64 ranks allow all six.
#include <stdio.h>
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/way_costs.h"
#include "judge/draw/picture.h"
#include "judge/draw/plot.h"

static const char *const way_name[WAYS] = { "1D", "1D + SP", "2D", "2.5D", "3D", "ring" };
static const char *const way_id[WAYS] = { "1d", "sp", "2d", "25d", "3d", "ring" };
static const ClockLink *link_of(int i) {
    return i ? &clock_config()->between : &clock_config()->link;
}

// ---------------------------------------------------------------- one training in one of the ways

// Measured on one rank: bytes of the last step; ps over the first link and over the second.
typedef struct { size_t parameters, activations, received; Picoseconds time[2]; } Measured;
// The groups of a way.
typedef struct {
    TensorWay way;
    Comm *world;
    CommGrid grid;                                         // of 2D, 2.5D
    Cube cube;                                             // of 3D
} Compared;

// Cuts a described model, and for the ring its data. All else of a way is inside its layers.
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
// The communicators whose bytes are counted.
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
// Whether this rank's loss enters the sum over all ranks. In 1D all ranks have the same loss, on a
// grid the ranks of a row have it. In 3D the layer already sets copies to 0. On the ring each rank
// has tokens of its own.
static bool loss_counts(const Compared *w) {
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
    comm_all_reduce_doubles(w->world, &(double){0}, 1);            // all ranks begin together
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
    if (!loss_counts(w)) loss = 0;
    comm_all_reduce_doubles(w->world, &loss, 1);                   // all ranks end together
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

// ---------------------------------------------------------------- costs

static void check_way(Run *run, TensorWay way, const char *id, const char *what, const char *unit,
                      double predicted, double measured) {
    char text[48], name[96];
    snprintf(text, sizeof text, "%s.%s", id, way_id[way]);
    snprintf(name, sizeof name, "%s: %s", way_name[way], what);
    check_cost(run, text, name, unit, formula(predicted), NOT_PREDICTED, measured);
}
// Unequal blocks of a grid, and unequal chunks of a ring, make ranks wait: no prediction of time.
static bool time_predicted(TensorWay way, const Training *t, size_t n) {
    const TensorWayShape s = tensor_way_shape(way, n);
    const GridPlace at = grid_place_of(&t->model, s.q, s.depth, 0);
    if (way == WAY_2D || way == WAY_25D) return grid_even(&at, t->sequences);
    return way != WAY_RING || t->model.context % (2 * n) == 0;
}
static void costs(Run *run, const Training *t, TensorWay way, const Measured *r) {
    const size_t n = run->world->size;
    const RankShare s = way_share(way, &t->model, t->sequences, n, run->world->rank);
    check_way(run, way, "parameters", "parameters", "bytes", s.parameters * sizeof(real),
              (double)r->parameters);
    check_way(run, way, "kept", "activations, peak", "bytes", s.kept * sizeof(real),
              (double)r->activations);
    check_way(run, way, "received", "received a step", "bytes", s.received, (double)r->received);
    if (!clock_config()->simulated || !time_predicted(way, t, n)) return;
    for (int i = 0; i < 2; i++) {
        char what[40];
        snprintf(what, sizeof what, "step, link %s", link_of(i)->name);
        clock_set_link(link_of(i));
        double loss = ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double));
        check_way(run, way, i ? "step.second" : "step.first", what, "ps",
                  way_share(way, &t->model, t->sequences, n, 0).time + loss, (double)r->time[i]);
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
static const char *const columns[WAYS + 1] = { "1D", "1D + SP", "2D", "2.5D", "3D", "ring attn",
                                             NULL };

// A table with the columns of the ways that n ranks allow.
static void possible_results(Run *run, size_t n, const Result *rows) {
    enum { ROWS = 8 };
    const char *names[WAYS + 1] = { NULL };
    Result some[ROWS] = {{0}};
    for (size_t i = 0; rows[i].what && i + 1 < ROWS; i++) {
        some[i] = (Result){ .what = rows[i].what };
        size_t column = 0;
        for (TensorWay way = 0; way < WAYS; way++) {
            if (tensor_way_shape(way, n).q == 0) continue;
            names[column] = columns[way];
            some[i].cell[column++] = rows[i].cell[way];
        }
    }
    results(run, names, some);
}

static void table(Run *run, const Measured measured[WAYS]) {
    const size_t n = run->world->size;
    const bool simulated = clock_config()->simulated;
    Cells shape, parameters, kept, received, time[2];
    char name[2][40];
    for (TensorWay way = 0; way < WAYS; way++) {
        const TensorWayShape s = tensor_way_shape(way, n);
        const bool on_grid = way == WAY_2D || way == WAY_25D || way == WAY_3D;
        Cells *all[] = { &shape, &parameters, &kept, &received, &time[0], &time[1] };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) snprintf((*all[i])[way], 40, "=-");
        if (s.q == 0) continue;
        if (on_grid && s.depth > 1) snprintf(shape[way], 40, "=%zu x %zu x %zu", s.q, s.q, s.depth);
        else if (on_grid) snprintf(shape[way], 40, "=%zu x %zu", s.q, s.q);
        else snprintf(shape[way], 40, "=%zu", n);
        snprintf(parameters[way], 40, "parameters.%s", way_id[way]);
        snprintf(kept[way], 40, "kept.%s", way_id[way]);
        snprintf(received[way], 40, "received.%s", way_id[way]);
        for (int i = 0; i < 2; i++)
            snprintf(time[i][way], 40, "=%.2f ms", (double)measured[way].time[i] / 1e9);
    }
    for (int i = 0; i < 2; i++) snprintf(name[i], 40, "step, link %s", link_of(i)->name);
    const Result rows[] = { row("ranks", shape), row("parameters", parameters),
                            row("activations, peak", kept), row("received per step", received),
                            row(simulated ? name[0] : NULL, time[0]),
                            row(simulated ? name[1] : NULL, time[1]), {0} };
    possible_results(run, n, rows);
    if (!tensor_way_shape(WAY_2D, n).q || !tensor_way_shape(WAY_25D, n).q ||
        !tensor_way_shape(WAY_3D, n).q)
        say(run, "  2D needs q x q ranks, 2.5D q x q x d, 3D q x q x q: ways that %zu ranks do not "
                 "allow are left out", n);
}

// The share of one more block.
static RankShare block_share(TensorWay way, ModelConfig c, size_t B, size_t n) {
    c.layers = 1;
    RankShare one = way_share(way, &c, B, n, 0);
    c.layers = 2;
    RankShare two = way_share(way, &c, B, n, 0);
    return (RankShare){ two.parameters - one.parameters, two.kept - one.kept,
                        (two.received - one.received) / sizeof(real), 0 };
}

static const ModelConfig wide = { .layers = 1, .width = 12288, .heads = 128, .context = 2048,
                                  .vocab = 51200, .dropout = 0.1 };
enum { RANKS = 64, SEQUENCES = 16 };

static void block_table(Run *run) {
    Cells parameters, kept, received;
    for (TensorWay way = 0; way < WAYS; way++) {
        const RankShare s = block_share(way, wide, SEQUENCES, RANKS);
        snprintf(parameters[way], 40, "=%.0f", s.parameters / 1e6);
        snprintf(kept[way], 40, "=%.0f", s.kept / 1e6);
        snprintf(received[way], 40, "=%.0f", s.received / 1e6);
    }
    const Result rows[] = { row("parameters", parameters), row("activations", kept),
                            row("received per step", received), {0} };
    say(run, "%s", "");
    say(run, "Computed for one block of GPT-3's width on %d ranks, in millions of elements per "
             "rank: %d sequences", RANKS, SEQUENCES);
    say(run, "of %zu tokens, %zu heads (%d ranks cannot share GPT-3's 96 equally), 2.5D on "
             "4 x 4 x 4.", wide.context, wide.heads, RANKS);
    results(run, columns, rows);
}

// Received elements of a block against the tokens of a step, both relative to the width.
static void plot(Run *run) {
    enum { POINTS = 9, FIRST = 192 };            // positions: 16 sequences of 192 are C / 4 tokens
    double x[POINTS], y[WAYS][POINTS];
    PlotLine lines[WAYS];
    for (TensorWay way = 0; way < WAYS; way++) {
        for (size_t i = 0; i < POINTS; i++) {
            ModelConfig c = wide;
            c.context = (size_t)FIRST << i;
            const double C = (double)c.width;
            x[i] = (double)(SEQUENCES * c.context) / C;
            y[way][i] = block_share(way, c, SEQUENCES, RANKS).received / (C * C);
        }
        lines[way] = (PlotLine){ way_name[way], y[way] };
    }
    plot_show(run, &(Plot){ "received by a rank for a block, forward and backward, 64 ranks",
                            "tokens / C", "elements / C^2", x, POINTS, lines, WAYS, true, true },
              PICTURE_DETAIL);
}

static void crossover_table(Run *run) {
    enum { CASES = 4 };
    static const size_t q[CASES] = { 2, 3, 4, 8 };
    static const char *const what[CROSSOVERS] = { "in bytes received",
                                                  "in time (latency ignored)" };
    double tokens[CROSSOVERS][CASES], want[CASES];
    char cell[CROSSOVERS][CASES][40];
    for (size_t i = 0; i < CASES; i++) {
        want[i] = tensor_way_crossover(WAY_2D, WAY_1D, q[i] * q[i]);     // 36 / (8q - 13)
        for (Crossover by = 0; by < CROSSOVERS; by++) {
            tokens[by][i] = way_crossover(q[i], by);
            if (tokens[by][i] > 0)
                snprintf(cell[by][i], 40, "=%.*f C", tokens[by][i] < 9.95, tokens[by][i]);
            else snprintf(cell[by][i], 40, "=never");
        }
    }
    // 2e-3: the exact volumes of the lessons contain vectors, too.
    check_numbers(run, "crossover of 1D and 2D", "36/(8q-13)", tokens[BY_BYTES], want, CASES,
                  2e-3);
    Result rows[CROSSOVERS + 1] = {{0}};
    for (Crossover by = 0; by < CROSSOVERS; by++)
        rows[by] = (Result){ what[by], NULL,
                             { cell[by][0], cell[by][1], cell[by][2], cell[by][3] } };
    say(run, "%s", "");
    say(run, "From how many tokens per step does 2D win over 1D? (C: width)");
    results(run, (const char *const[]){ "2 x 2 ranks", "3 x 3", "4 x 4", "8 x 8", NULL }, rows);
}

// ---------------------------------------------------------------- the answer

// The way with the smallest value among those that n ranks allow.
static TensorWay least(const double value[WAYS], size_t n) {
    TensorWay best = WAY_1D;
    for (TensorWay way = WAY_SP; way < WAYS; way++)
        if (tensor_way_shape(way, n).q > 0 && value[way] < value[best]) best = way;
    return best;
}

static void ending(Run *run, const Measured measured[WAYS]) {
    const size_t n = run->world->size;
    double kept[WAYS], bytes[WAYS], time[2][WAYS];
    for (TensorWay way = 0; way < WAYS; way++) {
        kept[way] = (double)measured[way].activations;
        bytes[way] = (double)measured[way].received;
        for (int i = 0; i < 2; i++) time[i][way] = (double)measured[way].time[i];
    }
    const TensorWay fewest = least(kept, n), quiet = least(bytes, n);
    const TensorWay fast = least(time[0], n), second = least(time[1], n);
    char text[4][24], weights[24], all[48] = "", speed[160] = "";
    page_value(weights, sizeof weights, (double)measured[fewest].parameters, "bytes");
    if (fewest == WAY_RING) snprintf(all, sizeof all, " but all weights (%s)", weights);
    page_value(text[0], sizeof text[0], kept[fewest], "bytes");
    page_value(text[1], sizeof text[1], bytes[quiet], "bytes");
    page_value(text[2], sizeof text[2], time[0][fast], "ps");
    page_value(text[3], sizeof text[3], time[1][second], "ps");
    if (clock_config()->simulated && fast == second)
        snprintf(speed, sizeof speed, " %s is fastest: %s over link %s, %s over link %s.",
                 way_name[fast], text[2], link_of(0)->name, text[3], link_of(1)->name);
    else if (clock_config()->simulated)
        snprintf(speed, sizeof speed,
                 " The fastest way is %s over link %s (%s), %s over link %s (%s).", way_name[fast],
                 link_of(0)->name, text[2], way_name[second], link_of(1)->name, text[3]);
    if (n == 1)
        say_answer(run, "None: on 1 rank no way cuts anything, and none receives a byte.");
    else
        say_answer(run, "%s keeps the fewest activations (%s)%s, %s receives least (%s).%s%s",
                   fewest == WAY_RING ? "Ring attention" : way_name[fewest], text[0], all,
                   way_name[quiet], text[1], speed,
                   fewest == WAY_RING ? " Ring stores no attention scores; with "
                                        "FlashAttention 1D + SP keeps as little."
                                      : "");
    say_cost(run, "1D and SP receive activations; the other ways also weights or their "
                  "gradients.");
    say_use_when(run, "1D with SP inside a node, pipeline or data parallelism between, as in "
                      "Megatron-LM. 2.5D, 3D: one layer needs more ranks than a node has. Ring: "
                      "long contexts.");
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
    REQUIRE(n <= c.heads && n <= c.context && n <= c.vocab,
            "%zu ranks need as many heads, positions and vocabulary entries: choose fewer ranks, "
            "or more --heads, --context and --vocab", n);
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = 2,
                   .sequences = option_size(run, "batch"), .micro_batches = 1,
                   .optimizer = adamw(0.01) };
    say(run, "1D: tensor parallelism. SP: sequence parallelism. 2D, 2.5D, 3D: grids (03.09 to "
             "03.11). ring attn:");
    say(run, "positions are cut, no weights. Per rank: %zu blocks of width %zu, %zu sequences of "
             "%zu tokens.", c.layers, c.width, t.sequences, c.context);
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
    table(run, measured);
    block_table(run);
    plot(run);
    crossover_table(run);
    ending(run, measured);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "32", "columns; a multiple of --heads" },
    { "heads", "N", "8", "attention heads; at least one per rank" },
    { "context", "N", "16", "positions of a sequence; at least one per rank" },
    { "vocab", "N", "64", "vocabulary entries; at least one per rank" },
    { "batch", "N", "8", "sequences per step" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    { "link", "NAME[,NAME]", "fast,slow",
      "the two links that are compared; alpha and beta of each" },
    {0},
};
EXPERIMENT(compare, options);
