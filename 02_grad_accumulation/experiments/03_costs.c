// 03_costs.c: see 03_costs.h.
#include "01_data_parallel/data_parallel.h"
#include "02_grad_accumulation/experiments/03_costs.h"
#include <stdio.h>
#include <stdlib.h>
#include "01_data_parallel/experiments/experiments.h"
#include "common/model/costs.h"

// Micro-batch k of rank r: the batch is cut in N shards, and each shard in m.
static size_t micro_batch_size(const Training *t, size_t N, size_t r, size_t k) {
    return part_size(part_size(t->sequences, N, r), t->micro_batches, k);
}

// Its forward and backward, in ps.
static double computing(const Training *t, size_t N, size_t r, size_t k) {
    return work_model(&t->model, micro_batch_size(t, N, r, k)).time;
}

// Before its last micro-batch a rank computes all the others, and waits for nobody.
static BucketCosts forecast(const Training *t, size_t bucket, size_t N) {
    size_t m = t->micro_batches;
    LastBatch *batch = host_alloc(N * sizeof *batch);
    for (size_t r = 0; r < N; r++) {
        batch[r].sequences = micro_batch_size(t, N, r, m - 1);
        for (size_t k = 0; k + 1 < m; k++) batch[r].begin += computing(t, N, r, k);
    }
    BucketCosts costs = bucket_costs(&t->model, bucket, N, batch);
    free(batch);
    return costs;
}

// A step under the simulated clock. An all-reduce waits for the largest micro-batch, which is always rank 0's, and
// nothing hides it.
static void time_costs(Run *run, const Training *t, const BucketCosts *f, const Timing *once, const Timing *forgetful,
                       const Timing *early) {
    size_t N = run->world->size, m = t->micro_batches, Psi = config_parameters(&t->model);
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, sizeof(real));  // 2 (N-1) alpha + bytes / beta
    double slowest = 0;
    for (size_t k = 0; k < m; k++) slowest += computing(t, N, 0, k);
    cost(run, "no_sync: exposed, all ranks", "ps", (double)N * ring, (double)once->exposed);
    cost(run, "forgetful: exposed (m times)", "ps", (double)(N * m) * ring, (double)forgetful->exposed);
    cost(run, "no_sync: step", "ps", slowest + ring, (double)once->step);
    cost(run, "forgetful: step", "ps", slowest + (double)m * ring, (double)forgetful->step);
    cost(run, "overlapped: exposed, all ranks", "ps", f->exposed, (double)early->exposed);
    cost(run, "overlapped: hidden, all ranks", "ps", f->hidden, (double)early->hidden);
    cost(run, "overlapped: step", "ps", f->step, (double)early->step);
}

// The page's table. Communication is the mean of the ranks.
static void show(Run *run, size_t steps, const Timing *const way[3]) {
    char sent[3][40], exposed[3][32], hidden[3][32], calls[48], bytes[48];
    const char *const columns[] = { "no_sync", "forgetful", "overlapped", NULL };
    double N = (double)run->world->size;
    for (size_t i = 0; i < 3; i++) {
        snprintf(sent[i], sizeof sent[i], "%s: sent, 3 steps (%s)", columns[i], i == 1 ? "m times" : "no m");
        snprintf(exposed[i], sizeof exposed[i], "=%.2f ms", (double)way[i]->exposed / N / 1e9);
        snprintf(hidden[i], sizeof hidden[i], "=%.2f ms", (double)way[i]->hidden / N / 1e9);
    }
    snprintf(calls, sizeof calls, "all-reduces, %zu steps", steps);
    snprintf(bytes, sizeof bytes, "sent per rank, %zu steps", steps);
    const Result rows[] = {
        { calls, "per step: 1; m; a call per bucket",
          { "no_sync: all-reduces, 3 steps", "forgetful: all-reduces, 3 steps", "overlapped: all-reduces, 3 steps" } },
        { bytes, "2(N-1)/N Psi e per step; m times that", { sent[0], sent[1], sent[2] } },
        { "gradient buffers", "Psi + wte; 2 Psi + wte",
          { "no_sync: gradients (wte twice)", "forgetful: gradients, and the sum",
            "overlapped: gradients (wte twice)" } },
        { clock_config()->simulated ? "step" : NULL, "3F + R; 3F + mR; 3F + R - hidden (rank 0)",
          { "no_sync: step", "forgetful: step", "overlapped: step" } },
        { "exposed, mean of ranks", "R; mR; R - hidden", { exposed[0], exposed[1], exposed[2] } },
        { "hidden, mean of ranks", "in the last backward only", { hidden[0], hidden[1], hidden[2] } },
        {0}
    };
    results(run, columns, rows);
}

void no_sync_costs(Run *run, const Training *t, size_t bucket, const NoSyncMeasured *once,
                   const NoSyncMeasured *forgetful, const NoSyncMeasured *early) {
    const ModelConfig *c = &t->model;
    size_t V = c->vocab, T = c->context, C = c->width, e = sizeof(real), steps = t->steps, m = t->micro_batches;
    size_t N = run->world->size, Psi = config_parameters(c);
    double ring = ring_bytes(ALL_REDUCE_PASSES, N, Psi, e);            // one all-reduce of the gradient, per rank
    size_t largest = micro_batch_size(t, N, run->world->rank, 0);
    BucketCosts f = forecast(t, bucket, N);
    cost(run, "no_sync: all-reduces, 3 steps", "calls", (double)steps, (double)once->calls);
    cost(run, "no_sync: sent, 3 steps (no m)", "bytes", (double)steps * ring, (double)once->bytes);
    cost(run, "forgetful: all-reduces, 3 steps", "calls", (double)(steps * m), (double)forgetful->calls);
    cost(run, "forgetful: sent, 3 steps (m times)", "bytes", (double)(steps * m) * ring, (double)forgetful->bytes);
    cost(run, "overlapped: all-reduces, 3 steps", "calls", (double)(steps * f.buckets), (double)early->calls);
    cost(run, "overlapped: sent, 3 steps (no m)", "bytes", (double)steps * f.bytes, (double)early->bytes);
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)once->parameters);
    cost(run, "no_sync: gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)once->gradients);
    cost(run, "overlapped: gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)early->gradients);
    cost(run, "forgetful: gradients, and the sum", "bytes", (double)((2 * Psi + V * C) * e),
         (double)forgetful->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * Psi * e), (double)once->optimizer);
    cost(run, "activations, peak", "bytes", (double)(largest * T * kept_model(c) * e), (double)once->activations);
    if (clock_config()->simulated) time_costs(run, t, &f, &once->last, &forgetful->last, &early->last);
    const Timing *const way[] = { &once->last, &forgetful->last, &early->last };
    show(run, steps, way);
}
