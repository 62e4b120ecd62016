// compression_costs.c: predicts the costs of a compressed all-reduce from the sizes alone. Each
// unit of the model is a bucket: wte, wpe, blocks, the last norm.
#include "01_data_parallel/experiments/experiments.h"

// Returns the number of a rank's buckets: one per table of embedding and head, and one for the
// other tensors of each layer.
static size_t bucket_count(const CutSizes *z) { return stage_tables(z) + cut_layers(z); }
static size_t bucket_size(const CutSizes *z, size_t i) {
    return i < stage_tables(z) ? elements_wte(z) : elements_unit(z, i - stage_tables(z));
}
// Lists the matrices of bucket i in list, and returns the number of matrices. All other tensors of
// the bucket are vectors.
static size_t bucket_matrices(const CutSizes *z, size_t i, Shape list[4]) {
    const size_t C = z->C, queries = z->heads * z->D, keys = z->key_heads * z->D;
    const size_t block = stage_tables(z) + z->first;
    list[0] = tensor_shape(C, queries + 2 * keys, REALS);
    if (i < block)
        list[0] = i < stage_tables(z) ? tensor_shape(z->vocab, C, REALS)
                                      : tensor_shape(z->Tk, z->positions_width, REALS);
    list[1] = tensor_shape(queries, C, REALS);
    list[2] = tensor_shape(C, z->gates * z->hidden, REALS);
    list[3] = tensor_shape(z->hidden, C, REALS);
    if (i < block) return 1;
    return i < block + z->blocks ? 4 : 0;
}

// Returns the number of values in part r. n values of `bits` bits each are packed in `packed`
// reals, and the reals are cut in N parts.
static size_t values_in_part(size_t n, size_t bits, size_t packed, size_t N, size_t r) {
    size_t per = 8 * sizeof(real) / bits, lo = 0, hi;
    for (size_t k = 0; k < r; k++) lo += part_size(packed, N, k) * per;
    hi = lo + part_size(packed, N, r) * per;
    return (hi < n ? hi : n) - (lo < n ? lo : n);
}
// Returns the bytes sent per rank in the two halves of an all-reduce of packed elements. First the
// rank sends the other ranks' parts, then the rank takes part in an all-gather.
static double both_ways(size_t N, size_t r, size_t packed) {
    return (double)((packed - part_size(packed, N, r)) * sizeof(real)) +
           ring_bytes(ONE_PASS, N, packed, sizeof(real));
}

// Elements that PowerSGD sends for a bucket, and the time of its products.
typedef struct {
    size_t rest;     // uncompressed
    size_t p, q;     // every P, every Q
    double products; // picoseconds of G Q, G^T P and P Q^T
} Power;
static Power power_of(const CutSizes *z, const CompressionPlan *plan, size_t i) {
    Shape list[4];
    Power all = { .rest = bucket_size(z, i) };
    const size_t matrices = bucket_matrices(z, i, list), r = plan->rank;
    for (size_t k = 0; k < matrices; k++) {
        Shape m = list[k];
        if ((m.rows + m.cols) * r * plan->min_rate >= m.rows * m.cols) continue;
        all.p += m.rows * r;
        all.q += m.cols * r;
        all.rest -= m.rows * m.cols;
        all.products += 3 * work_product(m.rows, r, m.cols).time;
    }
    return all;
}
// Returns the costs of a bucket. A bucket has up to three all-reduces, of the uncompressed tensors,
// of all P's, and of all Q's.
static CompressionCosts power_sgd(const CutSizes *z, const CompressionPlan *plan, size_t i,
                                  size_t N) {
    const Power l = power_of(z, plan, i);
    const size_t n = bucket_size(z, i), length[3] = { l.rest, l.p, l.q };
    CompressionCosts costs = { .errors = n, .factors = l.q, .buffers = l.rest + l.p + l.q + n };
    for (size_t k = 0; k < 3; k++) {
        costs.sent += ring_bytes(ALL_REDUCE_PASSES, N, length[k], sizeof(real));
        costs.calls += length[k] > 0;
    }
    return costs;
}

static CompressionCosts of_bucket(const CutSizes *z, const CompressionPlan *plan, size_t i,
                                  size_t N, size_t r) {
    size_t n = bucket_size(z, i), e = sizeof(real), bits = plan->method == HALF ? 16 : 1;
    size_t packed = ceil_div(n * bits, 8 * e), w = part_size(packed, N, r);
    if (n == 0) return (CompressionCosts){ 0 }; // rotary positions: no wpe
    size_t own = values_in_part(n, bits, packed, N, r);
    // A message of top-k: k places of 4 bytes, then k values.
    size_t k = plan->one_of ? ceil_div(n, plan->one_of) : 0, message = ceil_div(4 * k, e) + k;
    switch (plan->method) {
    case HALF: // an all-reduce of one element, the maximum; then the two halves of an all-reduce
        return (CompressionCosts){ ring_bytes(ALL_REDUCE_PASSES, N, 1, e) + both_ways(N, r, packed),
                                   N + 1, 0, 0, n + 1 + packed + N * w + own + w };
    case TOP_K: // an all-gather of k places and values per rank
        return (CompressionCosts){ ring_bytes(ONE_PASS, N, N * message, e), 1, n, 0,
                                   N * message + n };
    case ONE_BIT: // signs both ways, twice N scales, server residuals
        return (CompressionCosts){ both_ways(N, r, packed) + 2 * ring_bytes(ONE_PASS, N, N, e),
                                   N + 2, n + own, 0, packed + N + n + N * w + w + own };
    default: return power_sgd(z, plan, i, N);
    }
}

CompressionCosts compression_costs(const CutSizes *z, const CompressionPlan *plan, size_t N,
                                   size_t r) {
    CompressionCosts all = { 0 };
    size_t most = 0; // the buffers of a bucket are freed before the next
    for (size_t i = 0; i < bucket_count(z); i++) {
        CompressionCosts one = of_bucket(z, plan, i, N, r);
        all.sent += one.sent;
        all.calls += one.calls;
        all.errors += one.errors;
        all.factors += one.factors;
        if (one.buffers > most) most = one.buffers;
    }
    all.buffers = all.factors + most;
    return all;
}

static double ring(size_t cards, size_t passes, size_t N, size_t count) {
    if (count == 0) return 0;
    return (double)clock_transfer(cards, passes * (N - 1),
                                  (size_t)ring_bytes(passes, N, count, sizeof(real)));
}
double compression_time(const CutSizes *z, const CompressionPlan *plan, size_t N, size_t cards) {
    double time = 0;
    for (size_t i = 0; i < bucket_count(z); i++) {
        const Power power = power_of(z, plan, i);
        const size_t k = plan->one_of ? ceil_div(bucket_size(z, i), plan->one_of) : 0;
        const size_t message = ceil_div(4 * k, sizeof(real)) + k;
        if (plan->method == TOP_K) time += ring(cards, ONE_PASS, N, N * message);
        else
            time += power.products + ring(cards, ALL_REDUCE_PASSES, N, power.rest) +
                    ring(cards, ALL_REDUCE_PASSES, N, power.p) +
                    ring(cards, ALL_REDUCE_PASSES, N, power.q);
    }
    return time;
}
