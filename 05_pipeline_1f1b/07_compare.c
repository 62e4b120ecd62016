// ranks: 4
// level: extra
// question: Seven ways to run a pipeline: what does each cost in time, memory, messages and old gradients?
//
// Holds: rank i has stage i: activations of 1 (naive), m (GPipe), p - i (1F1B, PipeDream, 2BW) or p
//     (ZB-H1) micro-batches; one version of the weights, p - i (PipeDream) or 2 (2BW).
// Sends: y forward and dx back, [B*T, C] per micro-batch and boundary. Interleaved has pv - 1
//     boundaries.
// Saves: idle shares, without messages: naive 1-1/p, GPipe and 1F1B (p-1)/(m+p-1), interleaved
//     (p-1)/(vm+p-1), ZB-H1 (p-1)(F+B-W)/step, PipeDream and 2BW 0.
// Costs: the first five give the bits of one device; PipeDream and 2BW use gradients of old
//     weights.
// Each way runs the list of its lesson: 04.02, 04.03, 05.02 to 05.06.
// Left out: recomputation, data and tensor parallelism, which combine with all of them (07, 08).
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// Return the lists of one batch.
static Schedule naive(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_naive(p, m, i);
}
static Schedule gpipe(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_gpipe(p, m, i);
}
static Schedule one_f_one_b(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_1f1b(p, m, i);
}
static Schedule interleaved(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_interleaved(p, m, p == 1 ? 1 : COMPARE_CHUNKS, i);
}
static Schedule zero_bubble(size_t p, size_t m, size_t batches, size_t i) {
    (void)batches;
    return schedule_zb_h1(p, m, i);
}
// Return the lists of several batches. The pipeline never runs empty between two batches. PipeDream
// updates after every micro-batch.
static Schedule pipedream(size_t p, size_t m, size_t batches, size_t i) {
    return schedule_pipedream(WEIGHT_STASHING, p, batches * m, i);
}
static Schedule two_bw(size_t p, size_t m, size_t batches, size_t i) {
    return schedule_2bw(p, m, batches, i);
}

const PipelineWay pipeline_ways[PIPELINE_WAYS] = {
    { "naive", WAY_FLUSH, 1, naive },      // 04.02: a micro-batch there and back, then the next
    { "GPipe", WAY_FLUSH, 1, gpipe },      // 04.03: all forwards, all backwards
    { "1F1B", WAY_FLUSH, 1, one_f_one_b }, // 05.02: a forward, a backward
    { "interleaved", WAY_FLUSH, COMPARE_CHUNKS, interleaved }, // 05.03: two chunks per stage
    { "ZB-H1", WAY_FLUSH, 1, zero_bubble }, // 05.06: a half of each backward fills the bubble
    // 05.04: no flush, an update after every micro-batch
    { "PipeDream", WAY_PIPEDREAM, 1, pipedream },
    { "2BW", WAY_2BW, 1, two_bw }, // 05.05: no flush; one update per batch, one late
};

PipelineResult pipeline_way_run(const PipelineWay *way, Comm *pp, Comm *tied, Model *model,
                                Optimizer *o, const Batch *batch, size_t m, size_t batches) {
    size_t p = pp->size, i = pp->rank, older = pipedream_older(WEIGHT_STASHING, p, i);
    Schedule list = way->list(p, m, batches, i);
    PipelineResult r = { 0 };
    switch (way->kind) {
    case WAY_FLUSH: r = zero_bubble_run(pp, model, &list, batch, m); break;
    case WAY_PIPEDREAM:
        r = pipeline_pipedream(pp, model, o, &list, older, batch, batches * m, NULL);
        break;
    case WAY_2BW: r = pipeline_2bw(pp, tied, model, o, &list, batch, batches * m, NULL); break;
    }
    schedule_free(&list);
    return r;
}
