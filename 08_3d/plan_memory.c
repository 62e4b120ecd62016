// plan_memory.c computes the bytes that a rank holds: the rank's state under ZeRO, the largest unit
// that ZeRO gathers whole, the keys and values in flight over cp, and the activations that forward
// keeps for backward.
#include "08_3d/plan.h"
#include <math.h>

double plan_memory_sum(const PlanMemory *m) {
    double sum = 0;
    for (size_t i = 0; i < PLAN_MEMORY; i++) sum += m->bytes[i];
    return sum;
}

// Returns the elements of rank 0's shards of the stage's tables and layers, on n replicas. Rank 0
// has the largest shards.
static size_t sharded(const PlanTask *t, const CutSizes *z, size_t n) {
    size_t sum = stage_tables(z) * part_size(elements_wte(z), n, 0);
    for (size_t i = 0; i < cut_layers(z); i++) sum += part_size(plan_unit(t, z, i), n, 0);
    return sum;
}

double plan_parameter_bytes(const PlanFormat *f, size_t zero, double n) {
    double bytes = 0;
    // EXERCISE 08.plan-a (2 points): ZeRO's memory. Compute the bytes of one parameter on one of n
    // replicas under stage `zero`. ZeRO-1 shards the optimizer state (f->state), ZeRO-2 also the
    // gradient (f->gradient), ZeRO-3 also the weight (f->weight).
    bytes = (double)f->weight / (zero < 3 ? 1 : n) + (double)f->gradient / (zero < 2 ? 1 : n) +
            (double)f->state / (zero < 1 ? 1 : n);
    // END
    return bytes;
}
// Returns a rank's bytes except activations (ZeRO section 5).
PlanMemory plan_state(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    const PlanFormat *f = &t->format;
    const CutSizes *z = &s->z;
    double all = (double)plan_elements(t, z), shard = (double)sharded(t, z, plan_replicas(l));
    // Finds the largest unit. The plan assumes that ZeRO gathers the vision tower block by block. A
    // block of the tower is smaller than a block of the model, so the loop leaves out the tower. If
    // the stage has no block of the model, the result is too small.
    double unit = 0;
    for (size_t i = 0; i < cut_layers(z); i++)
        if ((double)elements_unit(z, i) > unit) unit = (double)elements_unit(z, i);
    double wte = (double)(stage_tables(z) * elements_wte(z));
    double twice =
        (double)(elements_gradients(z) - elements_stage(z)); // the second gradient of a tied wte
    // With --overlap dp ZeRO gathers a second unit, and reduces a second gradient, beside the unit
    // that computes.
    unit *= t->how.overlap.dp ? 2 : 1;
    PlanMemory m = { {
        [PLAN_WEIGHTS] = (double)f->weight * (l->zero < 3 ? all : shard),
        [PLAN_GRADIENTS] = (double)f->gradient * (l->zero < 2 ? all + twice : shard),
        [PLAN_OPTIMIZER] = (double)f->state * (l->zero < 1 ? all : shard),
        [PLAN_GATHERED] = l->zero == 3
                              ? (double)(f->weight + f->gradient) * unit + (double)f->weight * wte
                          : l->zero == 2 ? (double)f->gradient * unit
                                         : 0,
        [PLAN_RING] = plan_ring_room(t, l, z, l->micro_batch),
    } };
    return m;
}

// kept_between() counts the input of the block.
double plan_block_bytes(const PlanTask *t, const CutSizes *z, size_t B, bool only_scores) {
    KeptItem item[KEPT_ITEMS];
    const PlanFormat *f = &t->format;
    double tokens = (double)(B * z->T), rows = (double)cut_rows(z, B), bytes = 0;
    kept_items(z, item);
    for (size_t i = 0; i < KEPT_ITEMS; i++) {
        if (item[i].kind == KEPT_INPUT || (only_scores && item[i].kind != KEPT_SCORES)) continue;
        size_t element = item[i].kind == KEPT_STATISTICS ? f->statistic : f->element;
        bytes += (item[i].by_row ? rows : tokens) *
                 (double)(item[i].elements * element + item[i].masks * f->mask);
    }
    return bytes;
}
// Returns the bytes that the head keeps: the last norm's statistics and output, the logits and the
// softmax's sum. kept_between() counts the input of this norm.
static double head_bytes(const PlanTask *t, const CutSizes *z, size_t B) {
    const PlanFormat *f = &t->format;
    if (!z->last) return 0;
    return (double)cut_rows(z, B) * (double)(z->C * f->element + z->statistics * f->statistic) +
           (double)(B * z->T) * (double)((z->vocab + 1) * f->logit);
}

// Returns the bytes that the vision tower keeps for B sequences. The merger keeps its input after
// the norm, and its GELU's input and output. The patch embedding keeps the patches.
static double tower_kept(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B,
                         bool working) {
    const PlanVision *v = &t->model.vision;
    CutSizes own = plan_tower(t, z);
    size_t images = plan_tower_images(t, l, B), rows = images * own.T,
           merged = ceil_div(rows, v->merge);
    size_t hidden = part_size(plan_tower_merged(t), own.t, own.rank);
    size_t at_ends = rows * (own.C + v->patch) + 2 * merged * hidden;
    return plan_in_flight(t, l, &own, images, working) + (double)(at_ends * t->format.element);
}

// working: if recomputation restores more bytes in one layer than the head keeps, the function
// counts the restored bytes in place of the head's.
double plan_in_flight(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B,
                      bool working) {
    double inputs = (double)cut_rows(z, B) * (double)(kept_between(z) * t->format.element),
           blocks = (double)z->blocks;
    double block = plan_block_bytes(t, z, B, false), scores = plan_block_bytes(t, z, B, true);
    double head = head_bytes(t, z, B), again = 0;
    switch (l->recompute) {
    case RECOMPUTE_NONE: blocks *= block; break;
    case RECOMPUTE_SELECTIVE:
        blocks *= block - scores;
        again = scores;
        break;
    case RECOMPUTE_FULL:
        blocks = 0;
        again = block;
        break;
    }
    double kept = inputs + blocks, layer = working && again > head ? again : head;
    if (z->first && plan_has_vision(t)) {
        double tower = tower_kept(t, l, z, B, false);
        kept += tower;
        if (working) layer = fmax(layer, tower_kept(t, l, z, B, true) - tower);
    }
    return kept + layer;
}
