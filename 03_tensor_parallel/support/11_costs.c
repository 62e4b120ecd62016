// 11_costs.c: 3D tensor parallelism: bytes along each axis, memory, and the time of a step.
#include <math.h>
#include <stdio.h>
#include "03_tensor_parallel/support/costs.h"
#include "common/model/costs.h"
#include "common/model/model.h"
#include "common/lesson/picture.h"

// ---------------------------------------------------------------- sizes of one rank

typedef struct {
    size_t q, T, D, layers, world;
    size_t B;                                              // sequences of my layer of ranks
    size_t straight, swapped;                              // and mine of them, at the two layouts
    size_t C, heads, A, F, V;                              // my columns; my heads, their columns, the MLP's, entries
    size_t layer;
    bool dropout;
} Sizes;
static Sizes sizes(const ModelConfig *c, size_t sequences, size_t q, size_t row, size_t col, size_t layer) {
    Sizes z = { .q = q, .T = c->context, .D = c->width / c->heads, .layers = c->layers, .world = q * q * q,
                .B = part_size(sequences, q, layer), .layer = layer, .dropout = c->dropout > 0 };
    z.straight = part_size(z.B, q, row);
    z.swapped = part_size(z.B, q, col);
    z.C = part_size(c->width, q, col);
    z.heads = part_size(c->heads, q, row);
    z.A = z.heads * z.D;
    z.F = part_size(4 * c->width, q, row);
    z.V = part_size(c->vocab, q, row);
    return z;
}

// ---------------------------------------------------------------- traffic: what a rank sends, and how long that takes

typedef struct { double bytes[CUBE_AXES], time; } Sent;
// One all-gather or reduce-scatter over q ranks of n rows (or sequences) of `row` elements each, cut between rows.
static void pass(Sent *s, const Sizes *z, size_t axis, size_t n, size_t row) {
    const size_t padded = ceil_div(n, z->q) * z->q * row;
    s->bytes[axis] += ring_bytes(ONE_PASS, z->q, padded, sizeof(real));
    s->time += ring_time(ONE_PASS, z->q, padded, sizeof(real));
}
static void all_reduce(Sent *s, size_t ranks, size_t axis, size_t count, size_t size) {
    s->bytes[axis] += ring_bytes(ALL_REDUCE_PASSES, ranks, count, size);
    s->time += ring_time(ALL_REDUCE_PASSES, ranks, count, size);
}
// Forward and backward of y = x w: x, w and y pass once each way. x's rows are cut along rows, its columns along cols.
static void linear_layer(Sent *s, const Sizes *z, size_t rows, size_t cols, size_t K, size_t N, bool again) {
    for (int times = 0; times < 2 + again; times++) {
        pass(s, z, rows, z->B, z->T * K);
        pass(s, z, CUBE_DEPTH, K, N);
    }
    for (int times = 0; times < 2; times++) pass(s, z, cols, z->B, z->T * N);
}
static Sent traffic(const Sizes *z, bool again) {
    Sent s = {0};
    for (size_t i = 0; i < z->layers; i++) {
        linear_layer(&s, z, CUBE_COL, CUBE_ROW, z->C, 3 * z->A, again);        // q, k, v
        linear_layer(&s, z, CUBE_ROW, CUBE_COL, z->A, z->C, again);            // projection
        linear_layer(&s, z, CUBE_COL, CUBE_ROW, z->C, z->F, again);
        linear_layer(&s, z, CUBE_ROW, CUBE_COL, z->F, z->C, again);
    }
    for (size_t i = 0; i < 2 * (2 * z->layers + 1); i++)                       // norms, forward and backward
        all_reduce(&s, z->q, CUBE_ROW, z->straight * z->T * 2, sizeof(real));
    for (int times = 0; times < 2; times++) {                                  // embedding: x is everywhere
        pass(&s, z, CUBE_DEPTH, z->V, z->C);
        pass(&s, z, CUBE_COL, z->B, z->T * z->C);
    }
    for (int times = 0; times < 2 + again; times++) {                          // head: its w is wte^T, cut by rows
        pass(&s, z, CUBE_COL, z->B, z->T * z->C);
        pass(&s, z, CUBE_DEPTH, z->V, z->C);
    }
    for (int times = 0; times < 2; times++) pass(&s, z, CUBE_ROW, z->B, z->T * z->V);
    for (int times = 0; times < 3; times++) all_reduce(&s, z->q, CUBE_COL, z->swapped * z->T, sizeof(real));   // loss
    return s;
}
// Gradients of vectors, over the q^2 ranks of a plane; of those that lie side by side in one all-reduce.
static Sent planes(const Sizes *z) {
    Sent s = {0};
    const size_t C = z->C, of_block[] = { 2 * C, 3 * z->A, 3 * C, z->F, C };   // norm; qkv; proj, norm; fc; out
    const size_t plane = z->q * z->q;
    for (size_t i = 0; i < z->layers; i++)
        for (size_t k = 0; k < sizeof of_block / sizeof *of_block; k++)
            all_reduce(&s, plane, 0, of_block[k], sizeof(real));
    all_reduce(&s, plane, 0, z->T * C, sizeof(real));                          // wpe
    all_reduce(&s, plane, 0, 2 * C, sizeof(real));                             // the last norm
    return s;
}
static Sent numbers(const Sizes *z, size_t tensors) {
    Sent s = {0};
    all_reduce(&s, z->world, 0, 1, sizeof(double));
    all_reduce(&s, z->world, 0, tensors, sizeof(double));
    return s;
}

// ---------------------------------------------------------------- memory, in elements

static size_t of_depth(const Sizes *z, size_t rows, size_t cols) { return part_size(rows, z->q, z->layer) * cols; }
static size_t block_parameters(const Sizes *z) {
    return of_depth(z, z->C, 3 * z->A) + of_depth(z, z->A, z->C) + of_depth(z, z->C, z->F) + of_depth(z, z->F, z->C)
         + 6 * z->C + 3 * z->A + z->F;                     // vectors: 4 of norms, 2 of row-cut matrices; qkv's and fc's
}
static size_t table(const Sizes *z) { return of_depth(z, z->V, z->C); }
static size_t parameters(const Sizes *z) {
    return table(z) + z->T * z->C + z->layers * block_parameters(z) + 2 * z->C;
}
// What backward reads of a block, and its output.
static size_t block_kept(const Sizes *z, bool again) {
    const size_t M = z->straight * z->T, N = z->swapped * z->T, gathered = z->B * z->T;
    const size_t columns = z->C + z->A + z->C + z->F, weights = z->C * 3 * z->A + z->A * z->C + 2 * z->C * z->F;
    const size_t operands = again ? M * 2 * z->C + N * (z->A + z->F) : gathered * columns + weights;
    return operands + M * (2 * z->C + 4) + N * (3 * z->A + z->F) + N * z->heads * z->T * (z->dropout ? 2 : 1);
}
static size_t kept(const Sizes *z, bool again) {
    const size_t M = z->straight * z->T, N = z->swapped * z->T;
    const size_t head = again ? M * z->C : z->B * z->T * z->C + z->V * z->C;
    return M * z->C + z->layers * block_kept(z, again) + head + 2 * M + N * (z->V + 1);
}

// ---------------------------------------------------------------- products

static Work products(const Sizes *z) {                     // forward
    const size_t M = z->B * z->T;                          // gathered rows
    Work heads = work_times((double)(2 * z->swapped * z->heads), work_product(z->T, z->T, z->D));
    Work block = work_sum(work_sum(work_product(M, 3 * z->A, z->C), work_product(M, z->C, z->A)),
                          work_sum(work_product(M, z->F, z->C), work_product(M, z->C, z->F)));
    return work_sum(work_times((double)z->layers, work_sum(block, heads)), work_product(M, z->V, z->C));
}

// ---------------------------------------------------------------- the costs

static const char *const axis_name[CUBE_AXES] = { "along the row", "along the column", "along the depth" };

TensorShare cube_share(const ModelConfig *c, size_t sequences, size_t q, size_t rank, bool again) {
    const Sizes z = sizes(c, sequences, q, rank / q % q, rank % q, rank / (q * q));
    const Sent s = traffic(&z, again), sums = planes(&z);
    return (TensorShare){ (double)parameters(&z), (double)kept(&z, again),
                          s.bytes[CUBE_ROW] + s.bytes[CUBE_COL] + s.bytes[CUBE_DEPTH] + sums.bytes[0],
                          3 * products(&z).time + s.time + sums.time };
}

// Under a name of its own for both ways: "kept: " or "gathered again: ".
static void costs(Run *run, bool again, const char *what, const char *unit, double predicted, double measured) {
    char name[96];
    snprintf(name, sizeof name, "%s: %s", again ? "gathered again" : "kept", what);
    cost(run, name, unit, predicted, measured);
}

// One linear layer with its q^3 equal parts: 2 (q-1)/q^3 (|x| + |w| + |y|) elements are received, forward and backward.
static void linear_cost(Run *run, const char *name, const Sent *predicted, const double got[CUBE_AXES], size_t q,
                        CubeSizes z) {
    char text[96];
    double all = 0;
    for (size_t i = 0; i < CUBE_AXES; i++) {
        snprintf(text, sizeof text, "%s, B = %zu, %s", name, z.B, axis_name[i]);
        cost(run, text, "bytes", predicted->bytes[i], got[i]);
        all += got[i];
    }
    if (z.B % (q * q) || z.K % (q * q) || z.N % (q * q)) return;
    double elements = (double)(z.B * z.T * z.K + z.K * z.N + z.B * z.T * z.N);
    snprintf(text, sizeof text, "%s: 2(q-1)/q^3 (|x| + |w| + |y|)", name);
    cost(run, text, "bytes", 2 * (double)(q - 1) / (double)(q * q * q) * elements * sizeof(real), all);
}
void cube_linear_costs(Run *run, const CommGrid *g, CubeSizes s, const double first[CUBE_AXES],
                       const double second[CUBE_AXES]) {
    Sizes z = { .q = g->rows, .T = s.T, .B = part_size(s.B, g->depth, g->layer) };
    Sent x = {0}, y = {0};
    linear_layer(&x, &z, CUBE_COL, CUBE_ROW, part_size(s.K, z.q, g->col), part_size(s.N, z.q, g->row), false);
    linear_layer(&y, &z, CUBE_ROW, CUBE_COL, part_size(s.N, z.q, g->row), part_size(s.K, z.q, g->col), false);
    linear_cost(run, "Y = X V", &x, first, z.q, s);
    linear_cost(run, "Z = Y W", &y, second, z.q, s);
}

// Where everything divides, what was asserted is the form of the page, to the last element.
static void closed_form(Run *run, bool again, const char *what, double general, double closed) {
    char name[96];
    snprintf(name, sizeof name, "%s: the closed form of a block", again ? "gathered again" : "kept");
    say_detail(run, "%s: %.0f %s, by the closed form %.2f", name, general, what, closed);
    check_true(run, name, what, fabs(general - closed) < 1e-6);
}
static void closed_forms(Run *run, const ModelConfig *c, size_t sequences, const Sizes *z, bool again) {
    const size_t r = z->q, linears = r * r;
    if (c->heads % r || c->width % linears || sequences % linears) return;
    const double q = (double)r, h = (double)c->width, s = (double)c->context, bs = (double)sequences * s, bsh = bs * h;
    const double scores = (z->dropout ? 2 : 1) * (double)c->heads * s / h, p = q * q * q;
    Sizes one = *z, none = *z;
    one.layers = 1;
    none.layers = 0;
    Sent with = traffic(&one, again), without = traffic(&none, again);
    double all = 0;
    for (size_t i = 0; i < CUBE_AXES; i++) all += (with.bytes[i] - without.bytes[i]) / sizeof(real);
    double products = (q - 1) / p * (again ? 39 * bsh + 36 * h * h : 32 * bsh + 24 * h * h);
    closed_form(run, again, "elements sent", all, products + 16 * bs * (q - 1) / p);
    closed_form(run, again, "parameters", (double)block_parameters(z), 12 * h * h / p + 13 * h / q);
    double items = bsh * ((again ? 16 : 9) + scores) / p + 4 * bs / (q * q);
    closed_form(run, again, "elements kept for backward", (double)block_kept(z, again),
                again ? items : items + (7 * bsh + 12 * h * h) / (q * q));
}

void cube_costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, bool again,
                const CubeMeasured *r) {
    const size_t q = g->rows;
    const Sizes z = sizes(c, sequences, q, g->row, g->col, g->layer), first = sizes(c, sequences, q, 0, 0, 0);
    const size_t e = sizeof(real);
    Sent layers = traffic(&z, again);
    char text[96];
    double all = 0;
    for (size_t i = 0; i < CUBE_AXES; i++) {
        snprintf(text, sizeof text, "sent %s, a step", axis_name[i]);
        costs(run, again, text, "bytes", layers.bytes[i], r->sent[i]);
        all += r->sent[i];
    }
    costs(run, again, "sent in the layers, a step", "bytes",
          layers.bytes[CUBE_ROW] + layers.bytes[CUBE_COL] + layers.bytes[CUBE_DEPTH], all);
    costs(run, again, "sent for gradients of vectors, a step", "bytes", planes(&z).bytes[0], (double)r->planes);
    costs(run, again, "sent for loss and norm, a step", "bytes", numbers(&z, config_tensors(c)).bytes[0],
          (double)r->numbers);
    costs(run, again, "parameters of a block", "bytes", (double)(block_parameters(&z) * e), (double)r->block);
    costs(run, again, "parameters", "bytes", (double)(parameters(&z) * e), (double)r->parameters);
    costs(run, again, "gradients (wte twice)", "bytes", (double)((parameters(&z) + table(&z)) * e),
          (double)r->gradients);
    costs(run, again, "AdamW's m and v", "bytes", (double)(2 * parameters(&z) * e), (double)r->optimizer);
    costs(run, again, "activations, peak", "bytes", (double)(kept(&z, again) * e), (double)r->activations);

    // Rank 0 has the largest part of everything, so the others wait for it.
    Timing timing = picture_timing(run);
    double communication = traffic(&first, again).time + planes(&first).time + numbers(&first, config_tensors(c)).time;
    if (clock_config()->simulated)
        costs(run, again, "step", "ps", 3 * products(&first).time + communication, (double)timing.step);
    closed_forms(run, c, sequences, &z, again);
    picture_show(run, again ? "last step, gathered again" : "last step, kept", PICTURE_DETAIL | PICTURE_NO_FILES);
}

// ---------------------------------------------------------------- the page

static void kilobytes(char text[40], double elements) {
    snprintf(text, 40, "=%.1f kB", elements * sizeof(real) / 1000);
}
typedef struct { char text[2][80]; } Names;
static Names both(const char *what) {
    Names n;
    snprintf(n.text[0], sizeof n.text[0], "kept: %s", what);
    snprintf(n.text[1], sizeof n.text[1], "gathered again: %s", what);
    return n;
}

void cube_results(Run *run, const ModelConfig *c, size_t sequences, size_t q) {
    enum { LINES = 8 };
    static const char *const label[LINES] = { "parameters of a block", "parameters", "activations, peak",
                                              "sent along the row", "sent along the column", "sent along the depth",
                                              "sent in the layers", "time of a step" };
    static const char *const costs[LINES] = { "parameters of a block", "parameters", "activations, peak",
                                              "sent along the row, a step", "sent along the column, a step",
                                              "sent along the depth, a step", "sent in the layers, a step", "step" };
    static const char *const formula[LINES] = { "12 h²/q³ + 13 h/q", "L blocks, V h/q³, (s + 2) h/q",
                                                "L blocks, ends: see below", "sums of Y; every second X",
                                                "X; every second sum of Y", "W, and the sums of dW",
                                                "2 (q-1)/q³ of all, or 3 of X, W", NULL };
    const CutSizes whole = cut_sizes(c, 1, 0);
    char ranks[40], alone[LINES][40];
    Names name[LINES];
    Result rows[LINES + 1] = {{0}};
    for (size_t i = 0; i < LINES; i++) {
        name[i] = both(costs[i]);
        snprintf(alone[i], sizeof alone[i], "=0 kB");
        rows[i] = (Result){ label[i], formula[i], { alone[i], name[i].text[0], name[i].text[1] } };
    }
    kilobytes(alone[0], (double)elements_block(&whole));
    kilobytes(alone[1], (double)elements_stage(&whole));
    kilobytes(alone[2], (double)(sequences * c->context * kept_model(c)));
    snprintf(alone[LINES - 1], sizeof *alone, "=%.2f ms", work_model(c, sequences).time / 1e9);
    if (!clock_config()->simulated) rows[LINES - 1] = (Result){0};
    snprintf(ranks, sizeof ranks, "each of %zu, kept", q * q * q);
    const char *const columns[] = { "one device", ranks, "gathered again", NULL };
    results(run, columns, rows);
    say(run, "  b = %zu, s = %zu, h = %zu, a = %zu, L = %zu, V = %zu. Activations of a block: "
        "bsh (16 + %sas/h)/q³ + 4bs/q²;", sequences, c->context, c->width, c->heads, c->layers, c->vocab,
        c->dropout > 0 ? "2" : "");
    say(run, "  where X and W are kept as they were gathered, 7 bsh/q² and 12 h²/q² in place of 7 bsh/q³.");
}
