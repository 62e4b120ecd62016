// 06_costs.c: see 06_costs.h. Each unit of the model is a bucket: wte, wpe, blocks, the last norm.
#include "01_data_parallel/support/06_costs.h"
#include <stdio.h>
#include "common/lesson/lesson.h"
#include "common/model/costs.h"


static size_t bucket_size(const ModelConfig *c, size_t i) {
    CutSizes z = cut_sizes(c, 1, 0);
    return i == 0 ? elements_wte(&z) : elements_unit(&z, i - 1);
}
// The matrices of bucket i; all else in it are vectors.
static size_t bucket_matrices(const ModelConfig *c, size_t i, Shape list[4]) {
    size_t C = c->width;
    list[0] = (Shape){ i == 0 ? c->vocab : i == 1 ? c->context : C, i < 2 ? C : 3 * C };
    list[1] = (Shape){ C, C };
    list[2] = (Shape){ C, 4 * C };
    list[3] = (Shape){ 4 * C, C };
    return i < 2 ? 1 : i < 2 + c->layers ? 4 : 0;
}

// How many of n values of `bits` bits lie in part r, where N parts are cut between reals.
static size_t values_in_part(size_t n, size_t bits, size_t packed, size_t N, size_t r) {
    size_t per = 8 * sizeof(real) / bits, lo = 0, hi;
    for (size_t k = 0; k < r; k++) lo += part_size(packed, N, k) * per;
    hi = lo + part_size(packed, N, r) * per;
    return (hi < n ? hi : n) - (lo < n ? lo : n);
}
// To every other rank its part of the packed elements, and the ring of an all-gather back.
static double both_ways(size_t N, size_t r, size_t packed) {
    return (double)((packed - part_size(packed, N, r)) * sizeof(real)) + ring_bytes(ONE_PASS, N, packed, sizeof(real));
}

// Three all-reduces: of what is sent as it is, of all P's, of all Q's.
static CompressionCosts power_sgd(const ModelConfig *c, const CompressionPlan *plan, size_t i, size_t N) {
    Shape list[4];
    size_t n = bucket_size(c, i), rest = n, p = 0, q = 0, matrices = bucket_matrices(c, i, list);
    for (size_t k = 0; k < matrices; k++) {
        Shape m = list[k];
        if ((m.rows + m.cols) * plan->rank * plan->min_rate >= m.rows * m.cols) continue;
        p += m.rows * plan->rank;
        q += m.cols * plan->rank;
        rest -= m.rows * m.cols;
    }
    CompressionCosts costs = { .errors = n, .factors = q, .buffers = rest + p + q + n };
    size_t length[3] = { rest, p, q };
    for (size_t k = 0; k < 3; k++) {
        costs.sent += ring_bytes(ALL_REDUCE_PASSES, N, length[k], sizeof(real));
        costs.calls += length[k] > 0;
    }
    return costs;
}

static CompressionCosts of_bucket(const ModelConfig *c, const CompressionPlan *plan, size_t i, size_t N, size_t r) {
    size_t n = bucket_size(c, i), e = sizeof(real), bits = plan->method == HALF ? 16 : 1;
    size_t packed = ceil_div(n * bits, 8 * e), w = part_size(packed, N, r);
    size_t mine = values_in_part(n, bits, packed, N, r);
    size_t k = plan->one_of ? ceil_div(n, plan->one_of) : 0, message = ceil_div(4 * k, e) + k;     // places, values
    switch (plan->method) {
    case HALF:                                 // a maximum of one element, and the two halves
        return (CompressionCosts){ ring_bytes(ALL_REDUCE_PASSES, N, 1, e) + both_ways(N, r, packed), N + 1, 0, 0,
                                   n + 1 + packed + N * w + mine + w };
    case TOP_K:                                // everybody's k places and values to everybody
        return (CompressionCosts){ ring_bytes(ONE_PASS, N, N * message, e), 1, n, 0, N * message + n };
    case ONE_BIT:                              // signs both ways, and twice N scales; as a server I have errors, too
        return (CompressionCosts){ both_ways(N, r, packed) + 2 * ring_bytes(ONE_PASS, N, N, e), N + 2, n + mine, 0,
                                   packed + N + n + N * w + w + mine };
    default: return power_sgd(c, plan, i, N);
    }
}

CompressionCosts compression_costs(const ModelConfig *c, const CompressionPlan *plan, size_t N, size_t r) {
    CompressionCosts all = {0};
    size_t most = 0;                           // buffers of a bucket are given back before the next one
    for (size_t i = 0; i < c->layers + 3; i++) {
        CompressionCosts one = of_bucket(c, plan, i, N, r);
        all.sent += one.sent;
        all.calls += one.calls;
        all.errors += one.errors;
        all.factors += one.factors;
        if (one.buffers > most) most = one.buffers;
    }
    all.buffers = all.factors + most;
    return all;
}

void compression_compare_costs(Run *run, const ModelConfig *c, const CompressionPlan *plan, const char *name,
                               size_t steps, const CompressionSeen *is) {
    size_t N = run->world->size, e = sizeof(real), Psi = config_parameters(c), wte = c->vocab * c->width;
    CompressionCosts want = compression_costs(c, plan, N, run->world->rank);
    char line[5][64];
    snprintf(line[0], sizeof *line, "%s: sent a step", name);
    snprintf(line[1], sizeof *line, "%s: calls a step", name);
    snprintf(line[2], sizeof *line, "%s: gradients and errors", name);
    snprintf(line[3], sizeof *line, "%s: buffers between steps", name);
    snprintf(line[4], sizeof *line, "%s: buffers, peak", name);
    cost(run, line[0], "bytes", want.sent, (double)is->sent / (double)steps);
    cost(run, line[1], "calls", (double)want.calls, (double)is->calls / (double)steps);
    cost(run, line[2], "bytes", (double)((Psi + wte + want.errors) * e), (double)is->gradients);      // wte twice
    cost(run, line[3], "bytes", (double)(want.factors * e), (double)is->kept);
    cost(run, line[4], "bytes", (double)(want.buffers * e), (double)is->buffers);
}
