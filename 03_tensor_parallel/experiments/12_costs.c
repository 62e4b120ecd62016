// 12_costs.c: see 12_costs.h. The predictions are those of lessons 06 to 11.
#include "03_tensor_parallel/experiments/12_costs.h"
#include <math.h>
#include <stdio.h>
#include "03_tensor_parallel/experiments/08_costs.h"
#include "03_tensor_parallel/experiments/grid_costs.h"
#include "judge/draw/plot.h"
#include "common/model/costs.h"

const char *const tensor_ways_name[WAYS] = { "1D", "1D + SP", "2D", "2.5D", "3D", "ring" };

// ---------------------------------------------------------------- what a rank has and receives

static TensorShare columns_and_rows(const ModelConfig *c, size_t B, size_t n, size_t rank, bool sequence) {
    CutSizes z = cut_sizes(c, n, rank);
    if (sequence) z = cut_sequence(z, false);
    const SequenceTraffic rows = traffic_sequence_parallel(&z, B, false);
    const Traffic whole = traffic_tensor_parallel(&z, n, B, false), sums = traffic_partial_sums(&z);
    return (TensorShare){ (double)elements_stage(&z), (double)activations_stage(&z, B),
                          sequence ? rows.bytes + sums.bytes : whole.bytes,
                          3 * work_stage(&z, B).time + (sequence ? rows.time + sums.time : whole.time) };
}
static TensorShare grid(const ModelConfig *c, size_t B, TensorWayShape s, size_t rank) {
    const GridPlace at = grid_place_of(c, s.q, s.depth, rank);
    const CutSizes whole = cut_sizes(c, 1, 0), z = grid_sizes(&at);
    const GridTraffic layers = grid_stage(&at, &whole, B, false);
    const GridTraffic tables = grid_table_sums(&at, &whole), units = grid_unit_sums(&at, &whole);
    return (TensorShare){ (double)grid_elements_stage(&at, &whole),
                          (double)(grid_sequences(&at, B) * c->context * kept_stage(&z)),
                          layers.row.received + layers.col.received + tables.depth.received + units.depth.received,
                          layers.products.time + layers.transfers + tables.transfers + units.transfers };
}
// One product of attention, of a head and sequence: n queries with n keys, or a triangle of them; by tiles, in a
// triangle's row by row, as each is rounded to a picosecond.
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
// The attention of a block on the ring, in picoseconds, where context / 2n is whole: zigzag then gives every rank the
// same work, so all take each step together. In step 0 a rank has w0 to compute, a triangle; in each other one w, half
// a block: 2 products of it forward, 5 in backward. A hop of k | v takes alpha + 2 bsh/n e / beta.
static double ring_attention_time(const ModelConfig *c, size_t B, size_t n) {
    const size_t chunk = c->context / (2 * n), D = c->width / c->heads;
    const double heads = (double)(B * c->heads), square = heads * pairs_time(chunk, D, false);
    const double w0 = 2 * heads * pairs_time(chunk, D, true) + square, w = 2 * square;
    const double hop = send_time(2 * B * 2 * chunk * c->width * sizeof(real)), products = w0 + (double)(n - 1) * w;
    return (2 + 5) * products + context_ring_waits(n, 2 * w0, 2 * w, hop, false)
                              + context_ring_waits(n, 5 * w0, 5 * w, hop, true);
}
// All else works on my positions, three times (forward, and two products in backward); then the all-reduce of whole
// gradients, after the last backward.
static double ring_step_time(const ModelConfig *c, const CutSizes *whole, size_t B, size_t n) {
    const size_t M = B * c->context / n, h = c->width;
    const double block = work_product(M, 3 * h, h).time + work_product(M, h, h).time
                       + work_product(M, 4 * h, h).time + work_product(M, h, 4 * h).time;
    return 3 * ((double)c->layers * block + work_product(M, c->vocab, h).time)
         + (double)c->layers * ring_attention_time(c, B, n)
         + ring_time(ALL_REDUCE_PASSES, n, elements_stage(whole), sizeof(real));
}
// Keys and values of all other positions, twice; the gradients of all; and the sum of the gradients of parameters.
static TensorShare ring(const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const CutSizes whole = cut_sizes(c, 1, 0);
    CutSizes z = whole;
    z.T = part_size(c->context, 2 * n, rank) + part_size(c->context, 2 * n, 2 * n - 1 - rank);
    z.online = true;
    size_t elements = n > 1 ? (4 * (c->context - z.T) + 2 * c->context) * B * c->width * c->layers : 0;
    double sums = ring_bytes(ALL_REDUCE_PASSES, n, elements_stage(&whole), sizeof(real));
    return (TensorShare){ (double)elements_stage(&whole), (double)(B * z.T * kept_stage(&z)),
                          (double)(elements * sizeof(real)) + sums, ring_step_time(c, &whole, B, n) };
}
static TensorShare share(TensorWay way, const ModelConfig *c, size_t B, size_t n, size_t rank) {
    const TensorWayShape s = tensor_ways_shape(way, n);
    if (way == WAY_1D || way == WAY_SP) return columns_and_rows(c, B, n, rank, way == WAY_SP);
    if (way == WAY_RING) return ring(c, B, n, rank);
    return way == WAY_3D ? cube_share(c, B, s.q, rank, true) : grid(c, B, s, rank);
}

// ---------------------------------------------------------------- costs

static void line(Run *run, TensorWay way, const char *what, const char *unit, double predicted, double measured) {
    char name[96];
    snprintf(name, sizeof name, "%s: %s", tensor_ways_name[way], what);
    cost(run, name, unit, predicted, measured);
}
// On a grid with unequal blocks, and on a ring with unequal chunks, ranks wait for each other.
static bool time_follows(TensorWay way, const Training *t, size_t n) {
    const TensorWayShape s = tensor_ways_shape(way, n);
    const GridPlace at = grid_place_of(&t->model, s.q, s.depth, 0);
    if (way == WAY_2D || way == WAY_25D) return grid_even(&at, t->sequences);
    return way != WAY_RING || t->model.context % (2 * n) == 0;
}
void tensor_ways_costs(Run *run, const Training *t, TensorWay way, const TensorWayMeasured *r) {
    const size_t n = run->world->size;
    const TensorShare s = share(way, &t->model, t->sequences, n, run->world->rank);
    line(run, way, "parameters", "bytes", s.parameters * sizeof(real), (double)r->parameters);
    line(run, way, "activations, peak", "bytes", s.kept * sizeof(real), (double)r->activations);
    line(run, way, "received a step", "bytes", s.received, (double)r->received);
    if (!clock_config()->simulated || !time_follows(way, t, n)) return;
    for (int i = 0; i < 2; i++) {
        char what[40];
        snprintf(what, sizeof what, "step, link %s", tensor_ways_link(i)->name);
        clock_set_link(tensor_ways_link(i));
        double loss = ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double));
        line(run, way, what, "ps", share(way, &t->model, t->sequences, n, 0).time + loss, (double)r->time[i]);
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

void tensor_ways_results(Run *run, const Training *t, const TensorWayMeasured measured[WAYS]) {
    const size_t n = run->world->size;
    Cells shape, parameters, kept, received, time[2];
    char name[2][40];
    for (TensorWay way = 0; way < WAYS; way++) {
        const TensorWayShape s = tensor_ways_shape(way, n);
        const bool grid = way == WAY_2D || way == WAY_25D || way == WAY_3D;
        Cells *all[] = { &shape, &parameters, &kept, &received, &time[0], &time[1] };
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) snprintf((*all[i])[way], 40, "=-");
        if (s.q == 0) continue;
        if (grid && s.depth > 1) snprintf(shape[way], 40, "=%zu x %zu x %zu", s.q, s.q, s.depth);
        else if (grid) snprintf(shape[way], 40, "=%zu x %zu", s.q, s.q);
        else snprintf(shape[way], 40, "=%zu", n);
        snprintf(parameters[way], 40, "%s: parameters", tensor_ways_name[way]);
        snprintf(kept[way], 40, "%s: activations, peak", tensor_ways_name[way]);
        snprintf(received[way], 40, "%s: received a step", tensor_ways_name[way]);
        for (int i = 0; i < 2; i++) snprintf(time[i][way], 40, "=%.2f ms", (double)measured[way].time[i] / 1e9);
    }
    for (int i = 0; i < 2; i++) snprintf(name[i], 40, "step, link %s", tensor_ways_link(i)->name);
    const bool simulated = clock_config()->simulated;
    const Result rows[] = { row("ranks", shape), row("parameters", parameters), row("activations, peak", kept),
                            row("received per step", received), row(simulated ? name[0] : NULL, time[0]),
                            row(simulated ? name[1] : NULL, time[1]), {0} };
    results(run, columns, rows);
    const ModelConfig *c = &t->model;
    say(run, "  measured: L = %zu, h = %zu, a = %zu, s = %zu, b = %zu, V = %zu; %zu-byte elements; "
        "-: not on %zu ranks", c->layers, c->width, c->heads, c->context, t->sequences, c->vocab, sizeof(real), n);
}

// Of one more block.
static TensorShare block_share(TensorWay way, ModelConfig c, size_t B, size_t n) {
    c.layers = 1;
    TensorShare one = share(way, &c, B, n, 0);
    c.layers = 2;
    TensorShare two = share(way, &c, B, n, 0);
    return (TensorShare){ two.parameters - one.parameters, two.kept - one.kept,
                          (two.received - one.received) / sizeof(real), 0 };
}

static const ModelConfig wide = { .layers = 1, .width = 12288, .heads = 128, .context = 2048, .vocab = 51200,
                                  .dropout = 0.1 };
enum { RANKS = 64, SEQUENCES = 16 };

void tensor_ways_block(Run *run) {
    Cells parameters, kept, received;
    for (TensorWay way = 0; way < WAYS; way++) {
        const TensorShare s = block_share(way, wide, SEQUENCES, RANKS);
        snprintf(parameters[way], 40, "=%.1f M", s.parameters / 1e6);
        snprintf(kept[way], 40, "=%.0f M", s.kept / 1e6);
        snprintf(received[way], 40, "=%.0f M", s.received / 1e6);
    }
    const Result rows[] = { row("parameters", parameters), row("kept", kept), row("received", received), {0} };
    results(run, columns, rows);
    say(run, "  by sizes: elements of a block on 64 ranks; h = %zu, a = %zu, s = %zu, b = %d; "
        "bs = %.2f h", wide.width, wide.heads, wide.context, SEQUENCES,
        (double)(SEQUENCES * wide.context) / (double)wide.width);
}

// What a rank receives for a block against its tokens, both relative to the width.
void tensor_ways_plot(Run *run) {
    enum { POINTS = 9, FIRST = 192 };                      // positions: 16 sequences of them are h / 4 tokens
    double x[POINTS], y[WAYS][POINTS];
    PlotLine lines[WAYS];
    for (TensorWay way = 0; way < WAYS; way++) {
        for (size_t i = 0; i < POINTS; i++) {
            ModelConfig c = wide;
            c.context = (size_t)FIRST << i;
            x[i] = (double)(SEQUENCES * c.context) / (double)c.width;
            y[way][i] = block_share(way, c, SEQUENCES, RANKS).received / ((double)c.width * (double)c.width);
        }
        lines[way] = (PlotLine){ tensor_ways_name[way], y[way] };
    }
    plot_show(run, &(Plot){ "received by a rank for a block, forward and backward, 64 ranks", "tokens / h",
                            "elements / h^2", x, POINTS, lines, WAYS, true, true }, PICTURE_DETAIL);
}

// ---------------------------------------------------------------- the crossover of 1D and 2D

// Both grow with the tokens, 1D from 0, 2D from the bytes of the weights. From how many tokens on is 2D below? In
// units of h; 0: never.
typedef struct { double one, two; } Volume;
static double crossover(Volume few, Volume many, double tokens, double h) {
    const double one = (many.one - few.one) / tokens, two = (many.two - few.two) / tokens;
    if (one - two < 1e-9 * one) return 0;
    return ((few.two - two * tokens) - (few.one - one * tokens)) / (one - two) / h;
}
enum { BYTES, CLOCK, TREES, MEASURES };
static Volume volume(const ModelConfig *c, size_t q, size_t B, int measure) {
    CutSizes z = cut_sizes(c, q * q, 0);
    const size_t h = c->width, M = B * c->context, K[] = { h, h, h, 4 * h }, N[] = { 3 * h, h, 4 * h, h };
    const GridPlace at = grid_place_of(c, q, 1, 0);
    Volume v = {0};
    z.first = z.last = false;
    const Traffic all_reduces = traffic_tensor_parallel(&z, q * q, B, false);
    v.one = measure == BYTES ? all_reduces.bytes : all_reduces.time;
    for (size_t i = 0; i < 4; i++) {
        const GridTraffic f = grid_linear_forward(&at, M, K[i], N[i]), b = grid_linear_backward(&at, M, K[i], N[i]);
        v.two += measure == BYTES ? f.row.received + f.col.received + b.row.received + b.col.received
                                  : f.transfers + b.transfers;
    }
    if (measure == TREES) v.two *= ceil(log2((double)q));  // each level passes whole blocks on, after the one before
    return v;
}

void tensor_ways_crossover(Run *run) {
    enum { CASES = 4 };
    static const size_t q[CASES] = { 2, 3, 4, 8 };
    // Everything divides by 2, 3, 4 and 8, squared; vectors are small beside the matrices.
    const ModelConfig c = { .layers = 1, .width = 4608, .heads = 576, .context = 1, .vocab = 64 };
    const size_t few = 576, many = 2 * few;
    const ClockLink plain = { .name = "bytes", .alpha = 0, .beta = 1e12 };        // a byte per picosecond
    double at[MEASURES + 1][CASES], want[CASES];
    char cell[MEASURES + 1][CASES][40];
    clock_set_link(&plain);
    for (size_t i = 0; i < CASES; i++) {
        const double Q = (double)q[i], p = Q * Q, tree = log2(Q) / Q;
        for (int m = 0; m < MEASURES; m++)
            at[m][i] = crossover(volume(&c, q[i], few, m), volume(&c, q[i], many, m), (double)few, (double)c.width);
        const double gain = 12 * (p - 1) / p - 28 * tree;  // of bsh: Megatron's 4 + 8, and four times Optimus' 7
        at[MEASURES][i] = gain > 0 ? 48 * tree / gain : 0;
        want[i] = 36 / (8 * Q - 13);
        for (int m = 0; m <= MEASURES; m++)
            if (at[m][i] > 0) snprintf(cell[m][i], 40, "=%.*f h", at[m][i] < 9.95, at[m][i]);
            else snprintf(cell[m][i], 40, "=never");
    }
    clock_set_link(NULL);
    check_numbers(run, "crossover of 1D and 2D", "36/(8q-13)", at[BYTES], want, CASES, 2e-3);      // vectors apart
    static const char *const what[MEASURES + 1] = { "by bytes received", "by this clock: broadcasts of S last S/beta",
                                                    "by trees: each level lasts S/beta", "by Optimus' own formulas" };
    Result rows[MEASURES + 2] = {{0}};
    for (int m = 0; m <= MEASURES; m++)
        rows[m] = (Result){ what[m], NULL, { cell[m][0], cell[m][1], cell[m][2], cell[m][3] } };
    results(run, (const char *const[]){ "q = 2", "3", "4", "8", NULL }, rows);
    say(run, "  from how many tokens bs on does a block cost less in 2D than in 1D? Latency is left out.");
}
