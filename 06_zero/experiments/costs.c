// costs.c: computes the sizes of units, and predicts the costs of a step of ZeRO from sizes alone.
#include "06_zero/experiments/experiments.h"

// ---------------------------------------------------------------- sizes

static void add(Share *s, const ModelConfig *c, size_t size, size_t n, size_t rank) {
    size_t part = range_size(shard_range(size, n, rank));
    s->whole += size;
    s->part += part;
    // A rank sends n - 1 chunks. A chunk is 1/n of the unit, rounded up to whole elements.
    s->reduce_bytes += ring_bytes(ONE_PASS, n, size, gradient_bytes(c));
    s->reduce_time += ring_time(ONE_PASS, n, size, gradient_bytes(c));
    s->gather_bytes += ring_bytes(ONE_PASS, n, size, weight_bytes(c));
    s->gather_time += ring_time(ONE_PASS, n, size, weight_bytes(c));
    if (size <= s->largest) return;
    s->largest = size;
    s->largest_part = part;
}
Share share_of_wte(const ModelConfig *c, size_t n, size_t rank) {
    CutSizes z = cut_sizes(c, 1, 0);
    Share s = { 0 };
    for (size_t i = 0; i < stage_tables(&z); i++) add(&s, c, elements_wte(&z), n, rank);
    return s;
}
Share share_of_others(const ModelConfig *c, size_t n, size_t rank) {
    CutSizes z = cut_sizes(c, 1, 0);
    Share s = { 0 };
    for (size_t i = 0; i < cut_layers(&z); i++) add(&s, c, elements_unit(&z, i), n, rank);
    return s;
}
size_t zero_sequences(const Training *t, size_t n, size_t rank, size_t k) {
    return part_size(part_size(t->sequences, n, rank), t->micro_batches, k);
}

void zero_check(Run *run, const Training *t, const CostRow *row) {
    check_costs(run, page_text(run, "m%zu.%%s", t->micro_batches),
                page_text(run, "m = %zu: %%s", t->micro_batches), row);
}

// ---------------------------------------------------------------- the costs of a step

// Predicts the costs of a step of m micro-batches, and checks the measurements. The table has the
// elements that a rank holds in each stage, and the passes over the parameters per step. Psi counts
// a tied wte once, but embedding and head have a gradient of wte each. `own` is about Psi / N. wte
// always has one gather and one reduction per step. `unit` is the largest unit besides wte. If
// m > 1, the reduced part of the unit's gradient, [unit/N], is in flight until it is added to
// own_g. With 16-bit weights a rank also has the masters of its own part.
//
//             weights  gradients  moments  in flight                          gathers  reductions
//     ZeRO-1  Psi      Psi + wte  2 own    nothing                            1        1
//     ZeRO-2  Psi      own        2 own    gradients: 2 wte + unit [+ unit/N] 1        m
//     ZeRO-3  own      own        2 own    the same, and weights: wte + unit  2m       m
//
// Every call waits for its result, so all communication is exposed. Rank 0 has the most sequences
// in each micro-batch. So the time of a step is the computation of rank 0 plus the times of all
// calls.
void zero_costs(Run *run, Comm *dp, const Training *t, size_t stage, const ZeroMeasured *seen) {
    const ModelConfig *c = &t->model;
    const size_t m = t->micro_batches, N = dp->size;
    Share wte = share_of_wte(c, N, dp->rank), others = share_of_others(c, N, dp->rank);
    const CutSizes whole = cut_sizes(c, 1, 0);
    double w = (double)weight_bytes(c), g = (double)gradient_bytes(c);
    double own = (double)(wte.part + others.part), psi = (double)(wte.whole + others.whole);
    // Each use of a table has a gradient of its own.
    double uses = (double)(stage_table_gradients(&whole) * elements_wte(&whole));
    double weights = (stage == 3 ? own : psi) * w;
    double gradients = (stage == 1 ? (double)elements_gradients(&whole) : own) * g;
    double moments = own * (double)adamw_bytes(c);
    double unit = (double)others.largest, part = m > 1 ? (double)others.largest_part : 0;
    double in_flight = stage == 1 ? 0 : (uses + unit + part) * g;
    if (stage == 3) in_flight += ((double)wte.whole + unit) * w;

    double gathers = stage == 3 ? 2 * (double)m : 1, reductions = stage == 1 ? 1 : (double)m;
    double calls = gathers * others.gather_time + reductions * others.reduce_time +
                   wte.gather_time + wte.reduce_time +
                   ring_time(ALL_REDUCE_PASSES, N, 1, sizeof(double)) +
                   ring_time(ALL_REDUCE_PASSES, N, config_tensors(c), sizeof(double));
    double computing = 0;
    for (size_t k = 0; k < m; k++) computing += work_model(c, zero_sequences(t, N, 0, k)).time;
    const CostRow row[] = {
        { "weights", "weights between steps", "bytes", BY_FORMULA(weights),
          seen->row[ZERO_WEIGHTS] },
        { "gradients", "gradients between steps", "bytes", BY_FORMULA(gradients),
          seen->row[ZERO_GRADIENTS] },
        { "moments", "m and v: 8 / N", "bytes", BY_FORMULA(moments), seen->row[ZERO_MOMENTS] },
        { "state", "all state between steps", "bytes", BY_FORMULA(weights + gradients + moments),
          seen->row[ZERO_STATE] },
        { "in-flight", "in flight: the units in use", "bytes", BY_FORMULA(in_flight),
          seen->row[ZERO_IN_FLIGHT] },
        { "flops", "FLOPs of all ranks: 3 forwards", "FLOPs",
          BY_FORMULA(work_model(c, t->sequences).flops), seen->timing.flops },
        // With the wall clock the table ends here, because real time is not predicted.
        { clock_config()->simulated ? "exposed" : NULL, "exposed: every ring, on every rank", "ps",
          BY_FORMULA((double)N * calls), (double)seen->timing.exposed },
        { "step", "step: computing, and every ring", "ps", BY_FORMULA(computing + calls),
          seen->row[ZERO_STEP] },
        { 0 }
    };
    zero_costs_sent(run, dp, t, gathers, reductions);
    zero_check(run, t, row);
}

void zero_costs_sent(Run *run, Comm *dp, const Training *t, double gathers, double reductions) {
    size_t N = dp->size;
    Share wte = share_of_wte(&t->model, N, 0), others = share_of_others(&t->model, N, 0);
    double scalars = ring_bytes(ALL_REDUCE_PASSES, N, config_tensors(&t->model), sizeof(double)) +
                     ring_bytes(ALL_REDUCE_PASSES, N, 1, sizeof(double));
    const CostRow row[] = { { "in-flight.between", "nothing in flight between steps", "bytes",
                              BY_FORMULA(0), (double)memory_now(MEM_COMMUNICATION) },
                            { "gathered", "all-gather: passes over the parameters", "bytes",
                              BY_FORMULA(gathers * others.gather_bytes + wte.gather_bytes),
                              (double)dp->ledger[COMM_ALL_GATHER].bytes },
                            { "reduced", "reduce-scatter: passes over the parameters", "bytes",
                              BY_FORMULA(reductions * others.reduce_bytes + wte.reduce_bytes),
                              (double)dp->ledger[COMM_REDUCE_SCATTER].bytes },
                            { "sent", "all traffic: the passes, loss and norm", "bytes",
                              BY_FORMULA(gathers * others.gather_bytes + wte.gather_bytes +
                                         reductions * others.reduce_bytes + wte.reduce_bytes +
                                         scalars),
                              (double)comm_bytes_sent(dp) },
                            { 0 } };
    zero_check(run, t, row);
}
