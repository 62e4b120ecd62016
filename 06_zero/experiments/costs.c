// costs.c: sizes of units, and the predicted costs that have one formula for all stages of ZeRO.
#include "06_zero/experiments/experiments.h"
#include <stdio.h>

static void add(Share *s, const ModelConfig *c, size_t size, size_t n, size_t rank) {
    size_t part = range_size(shard_range(size, n, rank));
    s->units++;
    s->whole += size;
    s->part += part;
    // (n-1)/n of the unit, rounded up
    s->scatter_bytes += ring_bytes(ONE_PASS, n, size, gradient_bytes(c));
    s->scatter_time += ring_time(ONE_PASS, n, size, gradient_bytes(c));
    s->gather_bytes += ring_bytes(ONE_PASS, n, size, weight_bytes(c));
    s->gather_time += ring_time(ONE_PASS, n, size, weight_bytes(c));
    if (size <= s->largest) return;
    s->largest = size;
    s->largest_part = part;
}
Share share_of_wte(const ModelConfig *c, size_t n, size_t rank) {
    CutSizes z = cut_sizes(c, 1, 0);
    Share s = { 0 };
    add(&s, c, elements_wte(&z), n, rank);
    return s;
}
Share share_of_others(const ModelConfig *c, size_t n, size_t rank) {
    CutSizes z = cut_sizes(c, 1, 0);
    Share s = { 0 };
    for (size_t i = 0; i < cut_layers(&z); i++) add(&s, c, elements_unit(&z, i), n, rank);
    return s;
}

size_t zero_sequences(const Training *t, size_t n, size_t rank, size_t k) {
    return range_size(
        shard_range(range_size(shard_range(t->sequences, n, rank)), t->micro_batches, k));
}
double zero_scalars_bytes(const ModelConfig *c, size_t n) {
    return ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)) +
           ring_bytes(ALL_REDUCE_PASSES, n, 1, sizeof(double));
}
static double scalars_time(const ModelConfig *c, size_t n) {
    return ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)) +
           ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double));
}

static void line(Run *run, size_t m, const char *id, const char *name, const char *unit,
                 Predicted by_formula, Predicted by_play, double measured) {
    char full_id[48], full_name[96];
    snprintf(full_id, sizeof full_id, "m%zu.%s", m, id);
    snprintf(full_name, sizeof full_name, "m = %zu: %s", m, name);
    check_cost(run, full_id, full_name, unit, by_formula, by_play, measured);
}
void zero_cost(Run *run, size_t m, const char *id, const char *name, const char *unit,
               double predicted, double measured) {
    line(run, m, id, name, unit, formula(predicted), NOT_PREDICTED, measured);
}
void zero_cost_played(Run *run, size_t m, const char *id, const char *name, const char *unit,
                      double predicted, double measured) {
    line(run, m, id, name, unit, NOT_PREDICTED, played(predicted), measured);
}

double zero_state_now(void) {
    return (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) +
                    memory_now(MEM_OPTIMIZER));
}

// The peak is reached between forward and backward of the first micro-batch, because it is the
// largest.
void zero_cost_activations(Run *run, Comm *dp, const Training *t) {
    const CutSizes whole = cut_sizes(&t->model, 1, 0);
    size_t bytes = activations_bytes(&whole, zero_sequences(t, dp->size, dp->rank, 0));
    zero_cost(run, t->micro_batches, "activations", "activations, peak", "bytes", (double)bytes,
              (double)memory_peak(MEM_ACTIVATIONS));
}

// Every call waits for its result, so all communication is exposed. The step is the computation of
// the busiest rank, and then all calls one after the other.
void zero_costs_in_time(Run *run, const Training *t, double traffic) {
    size_t N = run->world->size, m = t->micro_batches;
    Timing timing = picture_timing(run);
    double flops = work_model(&t->model, t->sequences).flops;
    zero_cost(run, m, "flops", "FLOPs of all ranks: 3 forwards", "FLOPs", flops, timing.flops);
    if (!clock_config()->simulated) return; // real time is not predicted
    double communicating = traffic + scalars_time(&t->model, N), computing = 0;
    // Rank 0 has the most sequences in each micro-batch, so the other ranks wait for it.
    for (size_t k = 0; k < m; k++)
        computing += work_model(&t->model, zero_sequences(t, N, 0, k)).time;
    zero_cost(run, m, "exposed", "exposed: every ring, on every rank", "ps",
              (double)N * communicating, (double)timing.exposed);
    zero_cost(run, m, "hidden", "hidden: nothing", "ps", 0, (double)timing.hidden);
    zero_cost(run, m, "step", "step: computing, and every ring", "ps", computing + communicating,
              (double)timing.step);
}
