// zero_costs.c: see zero_costs.h.
#include "06_zero/experiments/zero_costs.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include <stdio.h>

// ---------------------------------------------------------------- what the predictions are made of

// Some units of a model, cut over n ranks.
typedef struct {
    size_t units;
    size_t whole, mine;                            // their elements; those in this rank's parts, about whole / n
    size_t largest, largest_part;                  // of the largest unit
    double bytes, time;                            // of one pass over the parameters: each goes round a ring once, as a
                                                   // reduce-scatter or an all-gather; sent by each rank, picoseconds
} Share;

static void add(Share *s, size_t size, size_t n, size_t rank) {
    size_t part = range_size(shard_range(size, n, rank));
    s->units++;
    s->whole += size;
    s->mine += part;
    s->bytes += ring_bytes(ONE_PASS, n, size, sizeof(real));           // (n-1)/n of it, rounded up
    s->time += ring_time(ONE_PASS, n, size, sizeof(real));
    if (size <= s->largest) return;
    s->largest = size;
    s->largest_part = part;
}
// The table that both ends of a step use.
static Share share_of_wte(const ModelConfig *c, size_t n, size_t rank) {
    CutSizes z = cut_sizes(c, 1, 0);
    Share s = {0};
    add(&s, elements_wte(&z), n, rank);
    return s;
}
// wpe, a unit of every block, the last norm.
static Share share_of_others(const ModelConfig *c, size_t n, size_t rank) {
    CutSizes z = cut_sizes(c, 1, 0);
    Share s = {0};
    for (size_t i = 0; i < cut_layers(&z); i++) add(&s, elements_unit(&z, i), n, rank);
    return s;
}

// Micro-batch k of a rank.
size_t zero_sequences(const Training *t, size_t n, size_t rank, size_t k) {
    return range_size(shard_range(range_size(shard_range(t->sequences, n, rank)), t->micro_batches, k));
}
// Most elements that forward keeps for backward on this rank: of the largest micro-batch, between the two.
size_t zero_activations(const Training *t, size_t n, size_t rank) {
    return zero_sequences(t, n, rank, 0) * t->model.context * kept_model(&t->model);
}
// The all-reduces of the loss and of the squares for the norm.
double zero_scalars_bytes(const ModelConfig *c, size_t n) {
    return ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)) +
           ring_bytes(ALL_REDUCE_PASSES, n, 1, sizeof(double));
}
static double scalars_time(const ModelConfig *c, size_t n) {
    return ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)) +
           ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double));
}

// A cost of a training in m micro-batches.
void zero_cost(Run *run, size_t m, const char *name, const char *unit, double predicted, double measured) {
    char line[96];
    snprintf(line, sizeof line, "m = %zu: %s", m, name);
    cost(run, line, unit, predicted, measured);
}

// Of the recorded step: FLOPs, and under the simulated clock how long it took, and how much of that was communication.
// traffic: picoseconds of its reduce-scatters and all-gathers. Every call waits for its result, so all of it is
// exposed, and the step is what the busiest rank computes, and then all calls one after the other.
static void costs_in_time(Run *run, const Training *t, double traffic) {
    size_t N = run->world->size, m = t->micro_batches;
    Timing is = picture_timing(run);
    double computing = 0, communicating = traffic + scalars_time(&t->model, N);
    double flops = work_model(&t->model, t->sequences).flops;
    zero_cost(run, m, "FLOPs of all ranks: 3 forwards", "FLOPs", flops, is.flops);
    if (!clock_config()->simulated) return;            // real time is as it is
    // Rank 0 has most sequences, in each micro-batch: the others wait for it.
    for (size_t k = 0; k < m; k++) computing += work_model(&t->model, zero_sequences(t, N, 0, k)).time;
    zero_cost(run, m, "exposed: every ring, on every rank", "ps", (double)N * communicating, (double)is.exposed);
    zero_cost(run, m, "hidden: nothing", "ps", 0, (double)is.hidden);
    zero_cost(run, m, "step: computing, and every ring", "ps", computing + communicating, (double)is.step);
}

// ---------------------------------------------------------------- stage 1

void zero1_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank), others = share_of_others(&t->model, N, dp->rank);
    // Psi: the parameters, the tied one once; about Psi / N, to the element; what a ring sends of the whole model, once
    double e = sizeof(real), all = (double)(wte.whole + others.whole), mine = (double)(wte.mine + others.mine);
    double second_use = (double)wte.whole, units = (double)(wte.units + others.units), unit = wte.bytes + others.bytes;
    zero_cost(run, m, "weights: 4 bytes a parameter in fp32", "bytes", all * e, (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients: 4 (and the head's use of wte)", "bytes", (all + second_use) * e,
              (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "m and v: 8 / N", "bytes", 2 * mine * e, (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "all state: 8 + 8 / N (and that use of wte)", "bytes", (2 * all + 2 * mine + second_use) * e,
              (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) + memory_now(MEM_OPTIMIZER)));
    zero_cost(run, m, "in flight: nothing, at any time", "bytes", 0, (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "activations, peak", "bytes", (double)zero_activations(t, N, dp->rank) * e,
              (double)memory_peak(MEM_ACTIVATIONS));
    zero_cost(run, m, "reduce-scatter calls, one a unit", "calls", units,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter: 1 pass over the parameters", "bytes", unit,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "all-gather calls, one a unit", "calls", units, (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather: 1 pass over the parameters", "bytes", unit,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "all-reduce of loss and norm", "bytes", zero_scalars_bytes(&t->model, N),
              (double)dp->ledger[COMM_ALL_REDUCE].bytes);
    zero_cost(run, m, "all traffic: 2 units, loss and norm", "bytes", 2 * unit + zero_scalars_bytes(&t->model, N),
              (double)comm_bytes_sent(dp));
    costs_in_time(run, t, 2 * (wte.time + others.time));
}

// ---------------------------------------------------------------- stage 2

void zero2_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank), others = share_of_others(&t->model, N, dp->rank);
    double e = sizeof(real), mine = (double)(wte.mine + others.mine);      // about Psi / N, to the element
    double all = (double)(wte.whole + others.whole), units = (double)others.units, M = (double)m;
    zero_cost(run, m, "weights: 4 bytes a parameter in fp32", "bytes", all * e, (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients between steps: 4 / N", "bytes", mine * e, (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "m and v: 8 / N", "bytes", 2 * mine * e, (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "all state between steps: 4 + 12 / N", "bytes", (all + 3 * mine) * e,
              (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) + memory_now(MEM_OPTIMIZER)));
    // whole, on its way; and the part that arrives, where it must be added to another
    double in_flight = (double)(others.largest + (m > 1 ? others.largest_part : 0));
    zero_cost(run, m, "in flight: 2 wte + the largest unit", "bytes", (2 * (double)wte.whole + in_flight) * e,
              (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "in flight between steps: nothing", "bytes", 0, (double)memory_now(MEM_COMMUNICATION));
    zero_cost(run, m, "activations, peak", "bytes", (double)zero_activations(t, N, dp->rank) * e,
              (double)memory_peak(MEM_ACTIVATIONS));
    zero_cost(run, m, "reduce-scatter calls: m a unit, wte once", "calls", M * units + 1,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter: m passes over the parameters", "bytes", M * others.bytes + wte.bytes,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "all-gather calls, one a unit", "calls", units + 1, (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather: 1 pass over the parameters", "bytes", others.bytes + wte.bytes,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "all traffic: m + 1 units (wte 2), loss and norm", "bytes",
              (M + 1) * others.bytes + 2 * wte.bytes + zero_scalars_bytes(&t->model, N), (double)comm_bytes_sent(dp));
    costs_in_time(run, t, (M + 1) * others.time + 2 * wte.time);
}

// ---------------------------------------------------------------- stage 3

void zero3_costs(Run *run, Comm *dp, const Training *t) {
    size_t N = dp->size, m = t->micro_batches;
    Share wte = share_of_wte(&t->model, N, dp->rank), others = share_of_others(&t->model, N, dp->rank);
    double e = sizeof(real), mine = (double)(wte.mine + others.mine);      // about Psi / N, to the element
    double units = (double)others.units, M = (double)m;
    zero_cost(run, m, "weights between steps: 4 / N", "bytes", mine * e, (double)memory_now(MEM_PARAMETERS));
    zero_cost(run, m, "gradients between steps: 4 / N", "bytes", mine * e, (double)memory_now(MEM_GRADIENTS));
    zero_cost(run, m, "m and v: 8 / N", "bytes", 2 * mine * e, (double)memory_now(MEM_OPTIMIZER));
    zero_cost(run, m, "all state between steps: 16 / N", "bytes", 4 * mine * e,
              (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) + memory_now(MEM_OPTIMIZER)));
    // weights, gradient; and the part that arrives, where it must be added to another
    double in_flight = (double)(2 * others.largest + (m > 1 ? others.largest_part : 0));
    zero_cost(run, m, "in flight: 3 wte + twice the largest unit", "bytes", (3 * (double)wte.whole + in_flight) * e,
              (double)memory_peak(MEM_COMMUNICATION));
    zero_cost(run, m, "in flight between steps: nothing", "bytes", 0, (double)memory_now(MEM_COMMUNICATION));
    zero_cost(run, m, "activations, peak", "bytes", (double)zero_activations(t, N, dp->rank) * e,
              (double)memory_peak(MEM_ACTIVATIONS));
    zero_cost(run, m, "all-gather calls: 2m a unit, wte once", "calls", 2 * M * units + 1,
              (double)dp->ledger[COMM_ALL_GATHER].calls);
    zero_cost(run, m, "all-gather: 2m passes over the parameters", "bytes", 2 * M * others.bytes + wte.bytes,
              (double)dp->ledger[COMM_ALL_GATHER].bytes);
    zero_cost(run, m, "reduce-scatter calls: m a unit, wte once", "calls", M * units + 1,
              (double)dp->ledger[COMM_REDUCE_SCATTER].calls);
    zero_cost(run, m, "reduce-scatter: m passes over the parameters", "bytes", M * others.bytes + wte.bytes,
              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes);
    zero_cost(run, m, "all traffic: 3m units (wte 2), loss and norm", "bytes",
              3 * M * others.bytes + 2 * wte.bytes + zero_scalars_bytes(&t->model, N), (double)comm_bytes_sent(dp));
    costs_in_time(run, t, 3 * M * others.time + 2 * wte.time);
}
