// plan_bound.c computes lower bounds of a layout's step and memory, from sizes alone. With these
// bounds plan_search.c can leave out layouts that cannot be the best of their mesh.
#include "08_3d/plan_player.h"
#include <math.h>

// The times of one layer of each kind, with communication (all) and without (alone): [forward or
// backward][kind].
typedef struct {
    double all[2][PLAN_LAYER_KINDS], alone[2][PLAN_LAYER_KINDS];
} LayerTimes;
static LayerTimes layer_times(const PlanTask *t, const PlanLayout *l, size_t i) {
    PlanStage stage = plan_chunk(t, l, 0, i, 0);
    LayerTimes times = { 0 };
    // A lower bound leaves out waits that some ranks do not have. Ranks of an unequal ring wait at
    // different times. With ZeRO 2 the slowest group does not slow the forwards of other replicas.
    // Communication over dp may be hidden.
    const bool ring = plan_ring_players(t, l) == 1;
    const bool units = plan_alike(t, l) && !plan_is_layered(t, l);
    for (int what = 0; what < 2; what++)
        for (PlanLayerKind kind = 0; kind < PLAN_LAYER_KINDS; kind++) {
            stage.z.first = kind == PLAN_EMBEDDING;
            stage.z.last = kind == PLAN_HEAD;
            stage.z.blocks = kind == PLAN_BLOCK;
            PlanOp op = plan_op(t, l, &stage, what == 0, l->micro_batch);
            double alone = op.products + op.rest;
            times.alone[what][kind] = alone;
            const double tp = ring || l->zero != 2 || what == 1 ? op.tp : 0;
            times.all[what][kind] = alone + tp + (ring ? op.cp : 0) + (units ? op.dp : 0);
        }
    return times;
}
// Returns the time of a forward or backward of chunk k of stage i.
static double chunk_time(const PlanTask *t, const PlanLayout *l,
                         const double layer[PLAN_LAYER_KINDS], size_t i, size_t k) {
    size_t part = k * l->n.pp + i, parts = l->n.pp * l->chunks;
    double time = (double)plan_part_blocks(t, l, part) * layer[PLAN_BLOCK];
    if (part == 0) time += layer[PLAN_EMBEDDING];
    return part + 1 == parts ? time + layer[PLAN_HEAD] : time;
}

// Returns the earliest time at which the last backward of stage 0 can end. Stage i has its first
// input after a forward of each earlier stage. Then stage i runs all its ops, one after the other.
// After the last backward of stage i each earlier stage runs a backward.
static double least_pipeline(const PlanTask *t, const PlanLayout *l) {
    size_t pp = l->n.pp, b = l->micro_batch;
    const double m = (double)plan_micro_batches(t, l);
    const double bytes = (double)plan_message_bytes(&(PlanPlayer){ .t = t, .l = l }, b);
    const double message =
        fmin(plan_message_time(t, true, bytes), plan_message_time(t, false, bytes));
    const bool alike = plan_alike(t, l);
    const LayerTimes first = layer_times(t, l, 0);
    double least = 0, others = 0; // others: ops and messages of the stages before i
    for (size_t i = 0; i < pp; i++) {
        // If nodes cut groups, each stage has its own communication times. Then the bound leaves
        // out the communication in layers of all stages but two at each end, and stays cheap.
        const bool local = !alike && i > 0 && (i == 1 || i + 2 >= pp);
        const LayerTimes own = local ? layer_times(t, l, i) : first;
        double ops = 0;
        for (int what = 0; what < 2; what++) {
            const double *layer = alike || local || i == 0 ? own.all[what] : own.alone[what];
            for (size_t k = 0; k < l->chunks; k++) ops += chunk_time(t, l, layer, i, k);
        }
        least = fmax(least, others + m * ops);
        for (int what = 0; what < 2; what++)
            others += chunk_time(t, l, alike ? first.all[what] : first.alone[what], i, 0) + message;
    }
    return least;
}
// Returns a lower bound of the time from the last backward of stage 0 to the end of the step.
static double least_end(const PlanTask *t, const PlanLayout *l) {
    PlanStage stage = plan_stage(t, l, 0, 0), slice = plan_slice(t, l, &stage, 0);
    double end = plan_update_time(t, l, &stage);
    if (plan_is_layered(t, l))
        return end + (l->zero ? plan_tables(t, &slice, t->format.gradient).dp : 0);
    if (l->zero < 3) end += plan_gather(t, l, &slice).dp;
    return end + plan_reduction(t, l, &slice).dp;
}

// Returns the least memory that stage i needs. Stage i keeps most while the last forward before its
// first backward runs, or while this backward runs. The forwards take pp micro-batches through a
// chunk, then through the next chunk (schedule_1f1b, schedule_interleaved).
static double stage_memory(const PlanTask *t, const PlanLayout *l, size_t i) {
    size_t pp = l->n.pp, v = l->chunks, all = plan_micro_batches(t, l) * v, round = pp * v;
    size_t forwards = v == 1 ? pp - i : 2 * (pp - 1 - i) + (v - 1) * pp + 1;
    if (forwards > all) forwards = all;
    PlanStage s = plan_stage(t, l, 0, i);
    PlanMemory state = plan_state(t, l, &s);
    double held = 0, working = 0; // working: the bytes that the computing layer adds
    for (size_t k = 0; k < v; k++) {
        size_t left = forwards % round, n = forwards / round * pp;
        if (left > k * pp) n += left - k * pp < pp ? left - k * pp : pp;
        CutSizes z = s.z;
        z.blocks = plan_part_blocks(t, l, k * pp + i);
        z.first = i == 0 && k == 0;
        z.last = i + 1 == pp && k + 1 == v;
        double kept = plan_in_flight(t, l, &z, l->micro_batch, false);
        held += (double)n * kept;
        if ((forwards - 1) % round / pp == k || (k + 1 == v && n > 0))
            working = fmax(working, plan_in_flight(t, l, &z, l->micro_batch, true) - kept);
    }
    return plan_memory_sum(&state) + held + working;
}

PlanBound plan_bound(const PlanTask *t, const PlanLayout *l) {
    PlanBound bound = { .step = least_pipeline(t, l) + least_end(t, l) };
    for (size_t i = 0; i < l->n.pp; i++)
        if (i < 2 || i + 1 == l->n.pp) bound.memory = fmax(bound.memory, stage_memory(t, l, i));
    return bound;
}
