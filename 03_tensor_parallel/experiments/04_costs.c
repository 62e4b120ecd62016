// 04_costs.c: attention, cut by heads.
#include "03_tensor_parallel/experiments/costs.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include <stdio.h>

// The other cut is not run: each rank has D/t columns of every head. Scores q k^T and, in backward, dO v^T are sums
// over D, so both [B*H*T, T] would be added up over the ranks.
static void attention_results(Run *run, const AttentionSizes *z, double sent) {
    static const char *const columns[] = { "by heads", "inside heads (not run)", NULL };
    const size_t n = run->world->size;
    const double scores = 2 * ring_bytes(ALL_REDUCE_PASSES, n, z->B * z->H * z->T * z->T, sizeof(real));
    char heads[40], added[40], all[40];
    snprintf(heads, sizeof heads, "=%zu..%zu", z->H / n, ceil_div(z->H, n));
    snprintf(added, sizeof added, "=%.2f kB", scores / 1000);
    snprintf(all, sizeof all, "=%.2f kB", (sent + scores) / 1000);
    const Result rows[] = {
        { "heads per rank", "H/t; D/t columns of all", { heads, "=parts of all" } },
        { "weights and biases", "4 C C/t + 3 C/t + C", { "W_qkv, b_qkv, W_O, b_O" } },
        { "kept for backward", "M C + 4 M C/t + 2 B H/t T T", { "kept for backward" } },
        { "all-reduces per step", "Y, dX; and q k^T, dO v^T", { "all-reduces a step", "=4" } },
        { "sent between W_qkv and W_O", "2 · 2 (t-1) ceil(B H T T/t)", { "=0 B", added } },
        { "sent per rank and step", "and 2 · 2 (t-1) ceil(M C/t)", { "sent a step", all } }, {0} };
    results(run, columns, rows);
    say(run,
        "  B = %zu sequences of T = %zu, M = B T; H = %zu heads of D = %zu, C = H D; t = %zu, %zu bytes per element",
        z->B, z->T, z->H, z->D, n, sizeof(real));
}

// All is cut but b_O. Kept: X whole; q|k|v, the probabilities before and after dropout, and mix of my heads.
void attention_costs(Run *run, const AttentionSizes *z, const TrialResult *r) {
    const Comm *tp = run->world;
    const size_t heads = range_size(shard_range(z->H, tp->size, tp->rank)), A = heads * z->D, e = sizeof(real);
    const size_t C = z->H * z->D, M = z->B * z->T;
    const size_t parameters = (C + 1) * 3 * A + A * C + C, kept = M * C + M * 4 * A + 2 * z->B * heads * z->T * z->T;
    cost(run, "W_qkv, b_qkv, W_O, b_O", "bytes", (double)(parameters * e), (double)r->parameters);
    cost(run, "gradients", "bytes", (double)(parameters * e), (double)r->gradients);
    cost(run, "SGD's state", "bytes", 0, (double)r->optimizer);
    cost(run, "kept for backward", "bytes", (double)(kept * e), (double)r->activations);
    cost(run, "all-reduces a step", "calls", 2, r->calls);                                     // Y, and dX
    cost(run, "sent a step", "bytes", 2 * ring_bytes(ALL_REDUCE_PASSES, tp->size, M * C, e), r->bytes);
    picture_show(run, "attention over its ranks, last step", PICTURE_CHART);
    attention_results(run, z, r->bytes);
}
