// 03_costs.c: the MLP, A cut by columns and B by rows.
#include "03_tensor_parallel/experiments/costs.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include <stdio.h>

// All is cut but b; kept are X and, of my hidden columns, what goes in and out of GELU. Two all-reduces of [M, C]: Y
// and dX. Nothing is computed meanwhile, and rank 0, which has most hidden columns, sets the pace.
void mlp_costs(Run *run, size_t M, size_t C, size_t F, const TrialResult *r) {
    const size_t n = run->world->size, f = range_size(shard_range(F, n, run->world->rank)), e = sizeof(real);
    const size_t parameters = (C * f + f + f * C + C) * e;
    cost(run, "A, a, B, b", "bytes", (double)parameters, (double)r->parameters);
    cost(run, "gradients", "bytes", (double)parameters, (double)r->gradients);
    cost(run, "SGD's state", "bytes", 0, (double)r->optimizer);
    cost(run, "kept for backward", "bytes", (double)(M * (C + 2 * f) * e), (double)r->activations);
    cost(run, "all-reduces a step", "calls", 2, r->calls);
    cost(run, "sent a step", "bytes", 2 * ring_bytes(ALL_REDUCE_PASSES, n, M * C, e), r->bytes);

    Timing t = picture_timing(run);
    Work mine = work_product(M, range_size(shard_range(F, n, 0)), C);      // two products forward, four backward
    double communication = 2 * ring_time(ALL_REDUCE_PASSES, n, M * C, e);
    cost(run, "matrix products of all ranks", "FLOPs", 6 * work_product(M, F, C).flops, t.flops);
    if (clock_config()->simulated) {
        cost(run, "step", "ps", 6 * mine.time + communication, (double)t.step);
        cost(run, "exposed communication of all ranks", "ps", (double)n * communication, (double)t.exposed);
    }
    picture_show(run, "the MLP over its ranks, last step", PICTURE_CHART);
    picture_summary(run, &t);
}

// A cut by rows: an all-reduce of [M, F] before GELU.
void mlp_rows_first_costs(Run *run, size_t M, size_t F, double bytes) {
    cost(run, "A by rows instead: sent before GELU", "bytes",
         ring_bytes(ALL_REDUCE_PASSES, run->world->size, M * F, sizeof(real)), bytes);
}

void mlp_results(Run *run, const TrialResult *r) {
    static const char *const columns[] = { "A by columns, B by rows", "A by rows", NULL };
    char forward[24];
    snprintf(forward, sizeof forward, "=%.0f B", r->bytes / 2);            // one of two equal all-reduces
    const Result rows[] = {
        { "A, a, B, b, per rank", "2 C F/t + F/t + C", { "A, a, B, b" } },
        { "kept for backward", "M (C + 2 F/t)", { "kept for backward" } },
        { "all-reduces per step", "of Y forward, of dX backward", { "all-reduces a step" } },
        { "sent forward, per rank", "2 (t-1) ceil(MC/t); 2 (t-1) ceil(MF/t)",
          { forward, "A by rows instead: sent before GELU" } },
        { "sent per step", "twice: Y and dX", { "sent a step" } },
        { clock_config()->simulated ? "time of a step" : NULL, "12 M C F/t FLOPs, two all-reduces", { "step" } }, {0} };
    results(run, columns, rows);
}
