// 02_costs.c: one linear layer, cut by columns or by rows.
#include <stdio.h>
#include "03_tensor_parallel/experiments/costs.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"

// elements of W and b, elements kept for backward, elements that the one all-reduce is over
static void linear_costs(Run *run, const char *cut, size_t elements, size_t kept, size_t reduced,
                         const TrialResult *r) {
    const size_t e = sizeof(real);
    char what[48];
    snprintf(what, sizeof what, "%ss: W and b", cut);
    cost(run, what, "bytes", (double)(elements * e), (double)r->parameters);
    snprintf(what, sizeof what, "%ss: gradients", cut);
    cost(run, what, "bytes", (double)(elements * e), (double)r->gradients);
    snprintf(what, sizeof what, "%ss: SGD's state", cut);
    cost(run, what, "bytes", 0, (double)r->optimizer);
    snprintf(what, sizeof what, "%ss: X, kept for backward", cut);
    cost(run, what, "bytes", (double)(kept * e), (double)r->activations);
    // A ring sends every chunk twice, n-1 hops each.
    snprintf(what, sizeof what, "%ss: all-reduces a step", cut);
    cost(run, what, "calls", 1, r->calls);
    snprintf(what, sizeof what, "%ss: sent a step", cut);
    cost(run, what, "bytes", ring_bytes(ALL_REDUCE_PASSES, run->world->size, reduced, e), r->bytes);
}

// K*N/tp + N/tp, and all of X. The all-reduce is of dX [M, K], in backward.
void linear_column_costs(Run *run, size_t M, size_t K, size_t N, const TrialResult *r) {
    size_t cols = range_size(shard_range(N, run->world->size, run->world->rank));
    linear_costs(run, "column", (K + 1) * cols, M * K, M * K, r);
    picture_show(run, "W by columns, one step", PICTURE_CHART);
}

// K*N/tp + N, as the bias is whole, and my columns of X. The all-reduce is of Y [M, N], in forward.
void linear_row_costs(Run *run, size_t M, size_t K, size_t N, const TrialResult *r) {
    size_t rows = range_size(shard_range(K, run->world->size, run->world->rank));
    linear_costs(run, "row", rows * N + N, M * rows, M * N, r);
    picture_show(run, "W by rows, one step", PICTURE_NO_FILES);
    // Who has fewer rows is done with a backward sooner (two products), and starts the next forward at once.
    const size_t n = run->world->size, most = ceil_div(K, n);
    if (!clock_config()->simulated || K % n == 0) return;
    double step = 3 * work_product(M, N, most).time + ring_time(ALL_REDUCE_PASSES, n, M * N, sizeof(real));
    say(run, "By rows: rank %zu has %zu row%s, rank 0 has %zu. It finished its last backward %.2f us sooner, so its F",
        n - 1, most - 1, most == 2 ? "" : "s", most, 2 * work_product(M, N, 1).time / 1e6);
    say(run, "starts first; from step to step it is %.2f us.", step / 1e6);
}

// An all-gather of equal parts, each as large as the largest.
void linear_gather_costs(Run *run, size_t M, size_t N, double bytes) {
    size_t n = run->world->size, padded = n * M * ceil_div(N, n);
    cost(run, "columns: sent to gather Y", "bytes", ring_bytes(ONE_PASS, n, padded, sizeof(real)), bytes);
}

void linear_results(Run *run, size_t M, size_t K, size_t N) {
    static const char *const columns[] = { "W by columns", "W by rows", NULL };
    static const Result rows[] = {
        { "W and b, per rank", "(K+1) N/t; K N/t + N", { "columns: W and b", "rows: W and b" } },
        { "X, kept for backward", "M K; M K/t", { "columns: X, kept for backward", "rows: X, kept for backward" } },
        { "all-reduces per step", "of dX backward; of Y forward",
          { "columns: all-reduces a step", "rows: all-reduces a step" } },
        { "sent per rank and step", "2 (t-1) ceil(MK/t); 2 (t-1) ceil(MN/t)",
          { "columns: sent a step", "rows: sent a step" } },
        { "sent to have Y whole", "(t-1) M ceil(N/t); it is whole", { "columns: sent to gather Y", "=0 B" } }, {0} };
    results(run, columns, rows);
    say(run, "  Y = X W + b: X is M x K = %zu x %zu, W is K x N = %zu x %zu; t = %zu ranks, %zu bytes per element",
        M, K, K, N, run->world->size, sizeof(real));
}
