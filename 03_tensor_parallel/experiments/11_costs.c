// 11_costs.c: 3D tensor parallelism: bytes along each axis, memory, and the time of a step.
#include <math.h>
#include <stdio.h>
#include "03_tensor_parallel/experiments/costs.h"
#include "common/model/model.h"
#include "judge/draw/picture.h"

// ---------------------------------------------------------------- the costs

static const char *const axis_name[CUBE_AXES] = { "along the row", "along the column", "along the depth" };
static const CutSizes *whole_stage(const ModelConfig *c, CutSizes *z) {
    *z = cut_sizes(c, 1, 0);
    return z;
}
TensorShare cube_share(const ModelConfig *c, size_t sequences, size_t q, size_t rank, bool again) {
    const CubePlace at = cube_place_of(c, q, rank, again);
    CutSizes z;
    const CutSizes *all = whole_stage(c, &z);
    const CubeTraffic s = cube_stage(&at, all, sequences, false), sums = cube_plane_sums(&at, all);
    return (TensorShare){ (double)cube_elements_stage(&at, all), (double)cube_kept_stage(&at, all, sequences),
                          cube_bytes(&s) + sums.bytes[0],
                          3 * cube_work(&at, all, sequences).time + s.time + sums.time };
}

// Under a name of its own for both ways: "kept: " or "gathered again: ".
static void costs(Run *run, bool again, const char *what, const char *unit, double predicted, double measured) {
    char name[96];
    snprintf(name, sizeof name, "%s: %s", again ? "gathered again" : "kept", what);
    cost(run, name, unit, predicted, measured);
}

// One linear layer with its q^3 equal parts: 2 (q-1)/q^3 (|x| + |w| + |y|) elements are received, forward and backward.
static void linear_cost(Run *run, const char *name, const CubeTraffic *predicted, const double got[CUBE_AXES], size_t q,
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
    const size_t q = g->rows, K = part_size(s.K, q, g->col), N = part_size(s.N, q, g->row);
    const size_t wide = part_size(s.N, q, g->row), out = part_size(s.K, q, g->col);
    const CubePlace at = cube_place_of(NULL, q, run->world->rank, false);
    const CubeTraffic y = cube_linear(&at, s.B, s.T, false, K, N), z = cube_linear(&at, s.B, s.T, true, wide, out);
    linear_cost(run, "Y = X V", &y, first, q, s);
    linear_cost(run, "Z = Y W", &z, second, q, s);
}

// Where everything divides, what was asserted is the form of the page, to the last element.
static void closed_form(Run *run, bool again, const char *what, double general, double closed) {
    char name[96];
    snprintf(name, sizeof name, "%s: the closed form of a block", again ? "gathered again" : "kept");
    say_detail(run, "%s: %.0f %s, by the closed form %.2f", name, general, what, closed);
    check_true(run, name, what, fabs(general - closed) < 1e-6);
}
static void closed_forms(Run *run, const CubePlace *at, size_t sequences) {
    const ModelConfig *c = at->c;
    const size_t r = at->q, linears = r * r;
    if (c->heads % r || c->width % linears || sequences % linears) return;
    const double q = (double)r, h = (double)c->width, s = (double)c->context, bs = (double)sequences * s, bsh = bs * h;
    const double scores = (c->dropout > 0 ? 2 : 1) * (double)c->heads * s / h, p = q * q * q;
    const bool again = at->gather_again;
    const CutSizes block = { .blocks = 1 };
    const CubeTraffic t = cube_stage(at, &block, sequences, false);
    double products = (q - 1) / p * (again ? 39 * bsh + 36 * h * h : 32 * bsh + 24 * h * h);
    closed_form(run, again, "elements sent", cube_bytes(&t) / sizeof(real), products + 16 * bs * (q - 1) / p);
    closed_form(run, again, "parameters", (double)cube_elements_block(at), 12 * h * h / p + 13 * h / q);
    double items = bsh * ((again ? 16 : 9) + scores) / p + 4 * bs / (q * q);
    closed_form(run, again, "elements kept for backward",
                (double)(cube_kept_block(at, sequences) + cube_message(at, sequences)),
                again ? items : items + (7 * bsh + 12 * h * h) / (q * q));
}

void cube_costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, bool again,
                const CubeMeasured *r) {
    const size_t q = g->rows, e = sizeof(real), n = run->world->size;
    const CubePlace at = cube_place_of(c, q, run->world->rank, again);
    CutSizes z;
    const CutSizes *all = whole_stage(c, &z);
    const CubeTraffic layers = cube_stage(&at, all, sequences, false), sums = cube_plane_sums(&at, all);
    const double numbers = ring_bytes(ALL_REDUCE_PASSES, n, 1, sizeof(double))
                         + ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    const size_t parameters = cube_elements_stage(&at, all);
    char text[96];
    for (size_t i = 0; i < CUBE_AXES; i++) {
        snprintf(text, sizeof text, "sent %s, a step", axis_name[i]);
        costs(run, again, text, "bytes", layers.bytes[i], r->sent[i]);
    }
    costs(run, again, "sent in the layers, a step", "bytes", cube_bytes(&layers),
          r->sent[CUBE_ROW] + r->sent[CUBE_COL] + r->sent[CUBE_DEPTH]);
    costs(run, again, "sent for gradients of vectors, a step", "bytes", sums.bytes[0], (double)r->planes);
    costs(run, again, "sent for loss and norm, a step", "bytes", numbers, (double)r->numbers);
    costs(run, again, "parameters of a block", "bytes", (double)(cube_elements_block(&at) * e), (double)r->block);
    costs(run, again, "parameters", "bytes", (double)(parameters * e), (double)r->parameters);
    costs(run, again, "gradients (wte twice)", "bytes", (double)((parameters + cube_elements_wte(&at)) * e),
          (double)r->gradients);
    costs(run, again, "AdamW's m and v", "bytes", (double)(2 * parameters * e), (double)r->optimizer);
    costs(run, again, "activations, peak", "bytes", (double)(cube_kept_stage(&at, all, sequences) * e),
          (double)r->activations);

    // Rank 0 has the largest part of everything, so the others wait for it.
    Timing timing = picture_timing(run);
    double scalars = ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double))
                   + ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    if (clock_config()->simulated)
        costs(run, again, "step", "ps", cube_share(c, sequences, q, 0, again).time + scalars, (double)timing.step);
    closed_forms(run, &at, sequences);
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
                                                "2 (q-1)/q³ of all; 3 of X, W", NULL };
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
    say(run, "  b = %zu, s = %zu, h = %zu, a = %zu, L = %zu, V = %zu. A block keeps "
        "bsh (16 + %sas/h)/q³ + 4bs/q²;", sequences, c->context, c->width, c->heads, c->layers, c->vocab,
        c->dropout > 0 ? "2" : "");
    say(run, "  where X and W are kept as they were gathered, 7 bsh/q² and 12 h²/q² in place of 7 bsh/q³.");
}
