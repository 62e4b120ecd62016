// plan_overlap.c plays an op layer by layer. An op is played layer by layer if the ranks of a ring
// are unequal, or if communication over dp runs beside the layers (--overlap dp). The lane of a dp
// group runs one communication at a time, in the order of the starts. A communication starts when
// the last rank of the ring is ready.
//
//   ZeRO 0    A bucket of the gradient is reduced when the last micro-batch's backward has
//             filled the bucket (01.04). A bucket is as large as a block.
//   ZeRO 1    A reduce-scatter per layer replaces the buckets. The step begins with the gathers
//             of the updated weights. A layer's first forward waits for the layer's weights
//             (Megatron-LM's overlap-grad-reduce and overlap-param-gather).
//   ZeRO 2    Like ZeRO 1, but every backward reduces.
//   ZeRO 3    Every op gathers one layer ahead and reduces one layer behind (06.05; FSDP).
#include "01_data_parallel/experiments/experiments.h"
#include "08_3d/plan_player.h"
#include <math.h>
#include <stdlib.h>

bool plan_is_layered(const PlanTask *t, const PlanLayout *l) {
    return t->how.overlap.dp && plan_replicas(l) > 1;
}

static PlanLayerKind kind_of(const CutSizes *z, size_t i) {
    if (z->first && i == 0) return PLAN_EMBEDDING;
    return z->last && i + 1 == cut_layers(z) ? PLAN_HEAD : PLAN_BLOCK;
}
void plan_layer_times(const PlanPlayer *p, PlanChunk *c, bool forward, size_t small, size_t B) {
    const size_t n = p->ring;
    for (size_t i = 0; i < n * PLAN_LAYER_KINDS; i++) {
        const PlanLayerKind kind = i / n;
        PlanLayer *layer = &c->layer[!forward][small][kind];
        const size_t rank = i % n;
        PlanStage s = n > 1 ? plan_as_rank(p->t, p->l, &c->stage, rank, forward) : c->stage;
        if (rank == 0) {
            layer->takes = host_alloc(n * sizeof(double));
            layer->sums = host_alloc(n * sizeof(double));
        }
        if ((kind == PLAN_EMBEDDING && !s.z.first) || (kind == PLAN_HEAD && !s.z.last)) continue;
        s.z.first = kind == PLAN_EMBEDDING;
        s.z.last = kind == PLAN_HEAD;
        s.z.blocks = kind == PLAN_BLOCK;
        PlanOp op =
            n > 1 ? plan_op_alone(p->t, p->l, &s, forward, B) : plan_op(p->t, p->l, &s, forward, B);
        PlanOp sums = plan_partial_sums(p->t, p->l, &s);
        bool counted = !forward && p->l->zero >= 2; // plan_op() has counted the sums
        layer->takes[rank] = plan_op_time(&op) - op.dp - (counted ? sums.tp : 0);
        layer->sums[rank] = forward ? 0 : sums.tp;
    }
    if (n > 1) c->rings[!forward][small] = plan_rings_new(p->t, p->l, &c->stage, forward, B);
}
void plan_layers_free(PlanChunk *c) {
    for (size_t i = 0; i < 4; i++) {
        for (PlanLayerKind kind = 0; kind < PLAN_LAYER_KINDS; kind++) {
            free(c->layer[i / 2][i % 2][kind].takes);
            free(c->layer[i / 2][i % 2][kind].sums);
        }
        plan_rings_free(c->rings[i / 2][i % 2]);
    }
    free(c->slice);
    free(c->pass);
}

static double pass_time(const PlanPlayer *p, const PlanStage *s, size_t i, size_t size) {
    return plan_group_time(p->t, s->dp, ONE_PASS, plan_unit(p->t, &s->z, i), size);
}
// Sets c->slice and c->pass.
void plan_layer_slices(const PlanPlayer *p, PlanChunk *c) {
    const PlanFormat *f = &p->t->format;
    const CutSizes *z = &c->stage.z;
    size_t n = plan_slices(p->t, p->l), layers = cut_layers(z);
    c->slice = host_alloc(n * sizeof *c->slice);
    c->pass = host_alloc(n * sizeof *c->pass);
    for (size_t k = 0; k < n; k++) {
        c->slice[k] = n == 1 ? c->stage : plan_slice(p->t, p->l, &c->stage, k);
        // All blocks are equal, so the first two and the last two layers include every kind of
        // layer.
        for (size_t i = 0; i < layers; i++) {
            if (i > 1 && i + 2 < layers) continue;
            c->pass[k].weights[kind_of(z, i)] = pass_time(p, &c->slice[k], i, f->weight);
            c->pass[k].gradient[kind_of(z, i)] = pass_time(p, &c->slice[k], i, f->gradient);
        }
    }
}
// Starts a pass of layer i beside computation, in all slices. Returns the time at which the last
// slice's pass ends.
static double start_pass(PlanStageTime *s, const PlanChunk *c, size_t i, bool gradient, double at) {
    const PlanLayerKind kind = kind_of(&c->stage.z, i);
    double end = 0;
    for (size_t k = 0; k < s->dp_lanes; k++) {
        PlanLane *lane = &s->dp_lane[k];
        const PlanPass *pass = &c->pass[k];
        lane->free = fmax(lane->free, at) + (gradient ? pass->gradient : pass->weights)[kind];
        end = fmax(end, lane->free);
    }
    return end;
}
static double gather(PlanStageTime *s, const PlanChunk *c, size_t i, double at) {
    return start_pass(s, c, i, false, at);
}
// Returns the number of the chunk's first layer in the stage.
static size_t first_layer(const PlanStageTime *s, size_t chunk) {
    size_t first = 0;
    for (size_t k = 0; k < chunk; k++) first += cut_layers(&s->chunk[k].stage.z);
    return first;
}

static void lane_begin(const PlanPlayer *p, PlanLane *lane, const PlanStage *slice) {
    const CutSizes *z = &slice->z;
    if (p->l->zero == 0) {
        TensorElements of = { .wte = elements_wte(z), .wpe = plan_unit(p->t, z, 0), .norm = z->C };
        of.norm_bias = z->norm_bias * z->C;
        elements_tensors(z, of.block);
        lane->pieces = bucket_pieces(z, &of, elements_block(z) * sizeof(real), &lane->piece);
    }
    if (p->l->zero == 1 || p->l->zero == 2)
        lane->free = plan_tables(p->t, slice, p->t->format.weight).dp;
}
void plan_overlap_begin(const PlanPlayer *p, PlanStageTime *s, size_t i) {
    size_t v = p->l->chunks, layers = first_layer(s, v);
    PlanStage stage = plan_stage(p->t, p->l, p->d, i);
    s->gathered = host_alloc(layers * sizeof *s->gathered);
    s->dp_lanes = plan_slices(p->t, p->l);
    s->dp_lane = host_alloc(s->dp_lanes * sizeof *s->dp_lane);
    s->shares_table = p->l->zero == 0 && stage_shares_table(&stage.z);
    for (size_t k = 0; k < s->dp_lanes; k++) {
        PlanStage slice = s->dp_lanes == 1 ? stage : plan_slice(p->t, p->l, &stage, k);
        lane_begin(p, &s->dp_lane[k], &slice);
    }
    if (p->l->zero != 1 && p->l->zero != 2) return;
    for (size_t k = 0, n = 0; k < v; k++)
        for (size_t layer = 0; layer < cut_layers(&s->chunk[k].stage.z); layer++)
            s->gathered[n++] = gather(s, &s->chunk[k], layer, 0);
}
void plan_overlap_free(PlanStageTime *s) {
    for (size_t k = 0; k < s->dp_lanes; k++) free(s->dp_lane[k].piece);
    free(s->dp_lane);
    free(s->gathered);
}

static double last_of(const PlanPlayer *p, const double *at) {
    double last = at[0];
    for (size_t r = 1; r < p->ring; r++) last = fmax(last, at[r]);
    return last;
}
static void wait_until(const PlanPlayer *p, double *at, double time) {
    for (size_t r = 0; r < p->ring; r++) at[r] = fmax(at[r], time);
}
// Plays one pass over dp with no computation beside the pass. All ranks wait for the last rank.
static void pass_alone(const PlanPlayer *p, const PlanChunk *c, size_t i, size_t size, double *at) {
    wait_until(p, at, last_of(p, at) + pass_time(p, &c->stage, i, size));
}

// Plays the reduction of layer i's gradient, after the layer's backward. at[r]: on entry, the time
// at which rank r has ended the backward. layer: the times of layer i, by rank.
static void reduce(const PlanPlayer *p, PlanStageTime *s, const PlanChunk *c, PipeOp op, size_t i,
                   const PlanLayer *layer, double *at) {
    size_t zero = p->l->zero, gradient = p->t->format.gradient;
    if (zero < 2 && (!p->layered || op.micro_batch + 1 < p->m)) return;
    if (zero >= 2) wait_until(p, at, s->reduced); // one reduction at a time is in memory
    for (size_t r = 0; r < p->ring; r++) at[r] += layer->sums[r];
    if (!p->layered) {
        pass_alone(p, c, i, gradient, at);
        return;
    }
    const double last = last_of(p, at);
    if (zero > 0) {
        s->reduced = start_pass(s, c, i, true, last);
        return;
    }
    const size_t first = first_layer(s, op.chunk) + i;
    for (size_t k = 0; k < s->dp_lanes; k++) {
        PlanLane *lane = &s->dp_lane[k];
        size_t pieces = lane->pieces - s->shares_table;
        for (; lane->started < pieces && lane->piece[lane->started].layer >= first; lane->started++)
            lane->free = fmax(lane->free, last) +
                         plan_group_time(p->t, c->slice[k].dp, ALL_REDUCE_PASSES,
                                         lane->piece[lane->started].elements, gradient);
    }
}

// Plays the computation of a layer, with its sums over tp and its ring. rings: the rings of a
// block; NULL: layer->takes is the time of the whole layer.
static void run_layer(const PlanPlayer *p, PlanRings *rings, const PlanLayer *layer, double *at) {
    if (rings) {
        plan_ring_block(rings, layer->takes, at);
        return;
    }
    for (size_t r = 0; r < p->ring; r++) at[r] += layer->takes[r];
}

void plan_play_layers(const PlanPlayer *p, PlanStageTime *s, PipeOp op, size_t small, double *at) {
    const PlanChunk *c = &s->chunk[op.chunk];
    const CutSizes *z = &c->stage.z;
    const bool forward = op.what == FORWARD, whole = p->l->zero != 3, ahead = p->layered && !whole;
    const size_t n = cut_layers(z), weight = p->t->format.weight;
    double gathered = 0; // the time at which the weights of the layer have arrived
    for (size_t k = 0; k < n; k++) {
        size_t i = forward ? k : n - 1 - k;
        const PlanLayerKind kind = kind_of(z, i);
        const PlanLayer *layer = &c->layer[!forward][small][kind];
        double next = 0;
        if (!whole && !p->layered) pass_alone(p, c, i, weight, at);
        if (ahead && k == 0) {
            wait_until(p, at, s->reduced);
            gathered = gather(s, c, i, last_of(p, at));
        }
        if (ahead && k + 1 < n) next = gather(s, c, forward ? i + 1 : i - 1, last_of(p, at));
        if (p->layered && whole && forward && op.micro_batch == 0)
            gathered = s->gathered[first_layer(s, op.chunk) + i];
        wait_until(p, at, gathered);
        run_layer(p, kind == PLAN_BLOCK ? c->rings[!forward][small] : NULL, layer, at);
        if (!forward) reduce(p, s, c, op, i, layer, at);
        gathered = next;
    }
}
double plan_overlap_end(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage,
                        size_t slice, double ready) {
    const PlanLane *lane = &s->dp_lane[slice];
    double end = fmax(lane->free, ready);
    if (p->l->zero > 0) return end + plan_tables(p->t, stage, p->t->format.gradient).dp;
    if (!s->shares_table) return end;
    return end + plan_group_time(p->t, stage->dp, ALL_REDUCE_PASSES,
                                 lane->piece[lane->pieces - 1].elements, p->t->format.gradient);
}
double plan_bucket_bytes(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage) {
    const PlanLane *lane = &s->dp_lane[0]; // slice 0 is the largest
    double bytes = 0;
    for (size_t i = 0; i < lane->pieces; i++)
        bytes += plan_group_bytes(p->t, stage->dp, ALL_REDUCE_PASSES, lane->piece[i].elements,
                                  p->t->format.gradient);
    return bytes;
}
