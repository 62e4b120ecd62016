// plan_overlap.c: plays an op layer by layer, with the communication over dp beside it (--overlap
// dp). The group's lane does one communication at a time, in the order of the starts.
//
//   ZeRO 0    a bucket of the gradient is reduced when the last micro-batch's backward has
//   completed
//             it (01.04). Buckets are as large as a block.
//   ZeRO 1    the same with a reduce-scatter per layer. The weights that the update has changed are
//             gathered from the beginning of the step on; a layer's first forward waits for them
//             (Megatron-LM's overlap-grad-reduce and overlap-param-gather).
//   ZeRO 2    as ZeRO 1, but every backward reduces.
//   ZeRO 3    every op gathers one layer ahead and reduces one layer behind (06.05; FSDP).
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
    for (PlanLayerKind kind = 0; kind < PLAN_LAYER_KINDS; kind++) {
        PlanStage s = c->stage;
        if ((kind == PLAN_EMBEDDING && !s.z.first) || (kind == PLAN_HEAD && !s.z.last)) continue;
        s.z.first = kind == PLAN_EMBEDDING;
        s.z.last = kind == PLAN_HEAD;
        s.z.blocks = kind == PLAN_BLOCK;
        PlanOp op = plan_op(p->t, p->l, &s, forward, B);
        PlanOp sums = plan_partial_sums(p->t, p->l, &s);
        bool counted = !forward && p->l->zero >= 2; // plan_op() has counted them
        c->layer[!forward][small][kind] = (PlanLayer){
            .takes = plan_op_time(&op) - op.dp - (counted ? sums.tp : 0),
            .sums = forward ? 0 : sums.tp,
        };
    }
}

// Starts one pass of a layer's weights or gradient over dp. Returns its end.
static double one_pass(const PlanPlayer *p, PlanStageTime *s, const PlanChunk *c, size_t i,
                       size_t size, double at) {
    size_t elements = elements_unit(&c->stage.z, i);
    s->dp_lane =
        fmax(s->dp_lane, at) + plan_group_time(p->t, c->stage.dp, ONE_PASS, elements, size);
    return s->dp_lane;
}
// The number of the chunk's first layer among those of the stage.
static size_t first_layer(const PlanStageTime *s, size_t chunk) {
    size_t first = 0;
    for (size_t k = 0; k < chunk; k++) first += cut_layers(&s->chunk[k].stage.z);
    return first;
}

void plan_overlap_begin(const PlanPlayer *p, PlanStageTime *s, size_t i) {
    size_t v = p->l->chunks, layers = first_layer(s, v), weight = p->t->format.weight;
    PlanStage stage = plan_stage(p->t, p->l, p->d, i);
    s->gathered = host_alloc(layers * sizeof *s->gathered);
    if (p->l->zero == 0) {
        const CutSizes *z = &stage.z;
        TensorElements of = { .wte = elements_wte(z), .wpe = elements_unit(z, 0), .norm = z->C };
        of.norm_bias = z->norm_bias * z->C;
        elements_tensors(z, of.block);
        s->pieces = bucket_pieces(z, &of, elements_block(z) * sizeof(real), &s->piece);
        s->shares_table = stage_shares_table(z);
    }
    if (p->l->zero != 1 && p->l->zero != 2) return;
    PlanOp tables = plan_tables(p->t, &stage, weight);
    s->dp_lane = tables.dp;
    for (size_t k = 0, n = 0; k < v; k++)
        for (size_t layer = 0; layer < cut_layers(&s->chunk[k].stage.z); layer++)
            s->gathered[n++] = one_pass(p, s, &s->chunk[k], layer, weight, 0);
}
void plan_overlap_free(PlanStageTime *s) {
    free(s->gathered);
    free(s->piece);
}

// The backward of a layer is done at time `at`. Returns when the rank goes on.
static double reduce(const PlanPlayer *p, PlanStageTime *s, const PlanChunk *c, PipeOp op, size_t i,
                     double at, double sums) {
    size_t zero = p->l->zero, gradient = p->t->format.gradient;
    if (zero < 2 && op.micro_batch + 1 < p->m) return at;
    if (zero >= 2) at = fmax(at, s->reduced); // one reduction at a time is in memory
    at += sums;
    if (zero > 0) {
        s->reduced = one_pass(p, s, c, i, gradient, at);
        return at;
    }
    size_t layer = first_layer(s, op.chunk) + i, pieces = s->pieces - s->shares_table;
    for (; s->started < pieces && s->piece[s->started].layer >= layer; s->started++)
        s->dp_lane =
            fmax(s->dp_lane, at) + plan_group_time(p->t, c->stage.dp, ALL_REDUCE_PASSES,
                                                   s->piece[s->started].elements, gradient);
    return at;
}

double plan_play_layers(const PlanPlayer *p, PlanStageTime *s, PipeOp op, size_t small, double at) {
    const PlanChunk *c = &s->chunk[op.chunk];
    const CutSizes *z = &c->stage.z;
    const bool forward = op.what == FORWARD, whole = p->l->zero != 3;
    size_t n = cut_layers(z), weight = p->t->format.weight;
    double gathered = 0; // when the weights of the layer have come
    for (size_t k = 0; k < n; k++) {
        size_t i = forward ? k : n - 1 - k;
        const PlanLayer *layer = &c->layer[!forward][small][kind_of(z, i)];
        if (!whole && k == 0) {
            at = fmax(at, s->reduced);
            gathered = one_pass(p, s, c, i, weight, at);
        }
        double next = 0;
        if (!whole && k + 1 < n) next = one_pass(p, s, c, forward ? i + 1 : i - 1, weight, at);
        if (whole && forward && op.micro_batch == 0)
            gathered = s->gathered[first_layer(s, op.chunk) + i];
        at = fmax(at, gathered) + layer->takes;
        if (!forward) at = reduce(p, s, c, op, i, at, layer->sums);
        gathered = next;
    }
    return at;
}
double plan_overlap_end(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage,
                        double ready) {
    double lane = fmax(s->dp_lane, ready);
    if (p->l->zero > 0) return lane + plan_tables(p->t, stage, p->t->format.gradient).dp;
    if (!s->shares_table) return lane;
    return lane + plan_group_time(p->t, stage->dp, ALL_REDUCE_PASSES,
                                  s->piece[s->pieces - 1].elements, p->t->format.gradient);
}
double plan_bucket_bytes(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage) {
    double bytes = 0;
    for (size_t i = 0; i < s->pieces; i++)
        bytes += plan_group_bytes(p->t, stage->dp, ALL_REDUCE_PASSES, s->piece[i].elements,
                                  p->t->format.gradient);
    return bytes;
}
