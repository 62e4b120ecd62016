// ranks: 4
// level: extra
// question: Seven ways to run a pipeline: what does each cost in time, memory, messages and late gradients?
//
// Holds: rank i has stage i.
//     Micro-batches in flight, m >= p: naive 1, GPipe m, ZB-H1 p; 1F1B, PipeDream and 2BW p - i.
//     Versions of the weights: PipeDream p - i, 2BW 2, all others 1.
// Sends: y forward and dx back, [B*T, C] per micro-batch and boundary between parts. There are
//     p-1 boundaries, with interleaved stages pv-1.
// Saves: idle shares if messages take no time: naive 1-1/p, GPipe and 1F1B (p-1)/(m+p-1),
//     interleaved (p-1)/(vm+p-1), ZB-H1 (p-1)(F+B-W)/step (m >= p, W <= F, W <= B), PipeDream and
//     2BW 0.
// Costs: PipeDream and 2BW use gradients of old weights. The other five ways give the bits of one
//     device.
// Each way runs the list of its lesson: 04.02, 04.03, 05.02 to 05.06.
// Left out: recomputation, data and tensor parallelism (chapters 07 and 08).
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// In a way with a flush every batch is a step of its own, so the list has one batch.
Schedule pipeline_way_list(PipelineWay way, size_t p, size_t m, size_t v, size_t batches,
                           size_t i) {
    switch (way) {
    case WAY_NAIVE: return schedule_naive(p, m, i);
    case WAY_GPIPE: return schedule_gpipe(p, m, i);
    case WAY_1F1B: return schedule_1f1b(p, m, i);
    case WAY_INTERLEAVED: return schedule_interleaved(p, m, v, i);
    case WAY_ZB_H1: return schedule_zb_h1(p, m, i);
    // PipeDream updates after every micro-batch, 2BW after every batch.
    case WAY_PIPEDREAM: return schedule_pipedream(WEIGHT_STASHING, p, batches * m, i);
    case WAY_2BW: return schedule_2bw(p, m, batches, i);
    case PIPELINE_WAYS: break;
    }
    fault("there is no way %d to run a pipeline", (int)way);
}

PipelineResult pipeline_way_run(PipelineWay way, Comm *pp, Comm *tied, Model *model, Optimizer *o,
                                const Batch *batch, size_t m, size_t batches) {
    size_t p = pp->size, i = pp->rank, n = batches * m;
    Schedule list = pipeline_way_list(way, p, m, model_chunks(model), batches, i);
    PipelineResult r;
    if (way == WAY_PIPEDREAM) {
        size_t older = pipedream_older(WEIGHT_STASHING, p, i);
        r = pipeline_pipedream(pp, model, o, &list, older, batch, n, NULL);
    } else if (way == WAY_2BW) r = pipeline_2bw(pp, tied, model, o, &list, batch, n, NULL);
    else r = zero_bubble_run(pp, model, &list, batch, m); // one batch
    schedule_free(&list);
    return r;
}
