// plan_vision.c computes the parameters, time and memory of the vision tower of a model that reads
// images, such as Qwen2-VL. The tower runs before the first block of the language model, in the
// first stage:
//
//   patches of an image -> embedding -> blocks of GPT-2's kind, all patches of an image attend to
//   each other -> merger: `merge` patches become one position, in an MLP of two matrices
//
// The tower belongs to the layer of the embedding. The ranks of dp sum the tower's gradient in one
// piece, after the tower's backward. tp cuts the tower's blocks and merger. Each rank of cp takes a
// share of the images. The plan leaves out images of unequal sizes.
#include "08_3d/plan.h"
#include "common/model/block.h"

bool plan_has_vision(const PlanTask *t) {
    return t->model.vision.model.layers > 0 && t->model.vision.images > 0;
}

// Returns the sizes of the tower on a rank of the stage. stage: the sizes of this stage.
static CutSizes tower(const PlanTask *t, const CutSizes *stage) {
    CutSizes z = cut_sizes(&t->model.vision.model, stage->t, stage->rank);
    z.first = z.last = false;
    if (stage->online) z = cut_positions(z, &(Positions){ 0 }, true);
    return stage->sequence ? cut_sequence(z, false) : z;
}
static size_t columns_merged(const PlanTask *t) {
    return t->model.vision.merge * t->model.vision.model.width;
}
// Returns the tower's elements on a rank. The patch embedding and the norm before the merger are
// whole on every rank. tp cuts the merger's two matrices along the features between the matrices.
static size_t elements(const PlanTask *t, size_t tp, size_t rank) {
    const PlanVision *v = &t->model.vision;
    CutSizes z = cut_sizes(&v->model, tp, rank);
    size_t in = columns_merged(t), hidden = part_size(in, tp, rank), out = t->model.model.width;
    return z.blocks * elements_block(&z) + v->patch * z.C + 2 * z.C + in * hidden + hidden +
           hidden * out + out;
}
size_t plan_vision_parameters(const PlanTask *t) {
    return plan_has_vision(t) ? elements(t, 1, 0) : 0;
}
size_t plan_parameters(const PlanTask *t) {
    return config_parameters(&t->model.model) + plan_vision_parameters(t);
}
size_t plan_unit(const PlanTask *t, const CutSizes *z, size_t i) {
    bool has_tower = z->first && i == 0 && plan_has_vision(t);
    return elements_unit(z, i) + (has_tower ? elements(t, z->t, z->rank) : 0);
}
size_t plan_elements(const PlanTask *t, const CutSizes *z) {
    bool has_tower = z->first && plan_has_vision(t);
    return elements_stage(z) + (has_tower ? elements(t, z->t, z->rank) : 0);
}

double plan_vision_flops(const PlanTask *t, bool blocks) {
    const PlanVision *v = &t->model.vision;
    if (!plan_has_vision(t)) return 0;
    CutSizes z = cut_sizes(&v->model, 1, 0);
    double patches = (double)(v->images * z.T), merged = patches / (double)v->merge;
    double in = (double)columns_merged(t), out = (double)t->model.model.width;
    double of_blocks = (double)z.blocks * work_block(&z, v->images).flops;
    if (blocks) return of_blocks;
    return of_blocks + 2 * patches * (double)(v->patch * z.C) + 2 * merged * in * (in + out);
}
size_t plan_vision_blocks(const PlanTask *t) {
    CutSizes z = cut_sizes(&t->model.model, 1, 0);
    return (size_t)(plan_vision_flops(t, false) / work_block(&z, 1).flops + 0.5);
}

// Returns the number of images of B sequences on a rank of cp.
static size_t images_of(const PlanTask *t, const PlanLayout *l, size_t B) {
    return ceil_div(B * t->model.vision.images, mesh_cp(l->n));
}
static PlanStage tower_stage(const PlanTask *t, const PlanStage *s) {
    PlanStage stage = *s;
    stage.z = tower(t, &s->z);
    return stage;
}
// Returns the time of the products of the patch embedding and of the merger. The input of the patch
// embedding needs no gradient.
static double ends(const PlanTask *t, const CutSizes *z, size_t images, bool forward) {
    const PlanVision *v = &t->model.vision;
    size_t rows = images * z->T, merged = ceil_div(rows, v->merge), in = columns_merged(t);
    size_t hidden = part_size(in, z->t, z->rank), out = t->model.model.width;
    if (forward)
        return plan_product_time(t, 1, rows, z->C, v->patch, false) +
               plan_product_time(t, 1, merged, hidden, in, false) +
               plan_product_time(t, 1, merged, out, hidden, false);
    return plan_product_time(t, 1, v->patch, z->C, rows, true) +
           plan_product_time(t, 1, merged, hidden, out, false) +
           plan_product_time(t, 1, hidden, out, merged, true) +
           plan_product_time(t, 1, merged, in, hidden, false) +
           plan_product_time(t, 1, in, hidden, merged, true);
}
PlanOp plan_vision_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                      size_t B) {
    PlanStage stage = tower_stage(t, s);
    PlanLayout one_pass = *l;
    const CutSizes *z = &stage.z;
    const size_t images = images_of(t, l, B), heads = images * z->heads, T = z->T;
    const bool again = !forward && l->recompute == RECOMPUTE_FULL;
    one_pass.zero = 0; // the layer of the embedding counts the tower's communication over dp
    PlanOp op = plan_op_alone(t, &one_pass, &stage, forward, images);
    // Blockwise attention has two products in forward and five in backward, over all pairs of
    // patches.
    const double products = forward ? 2 : again ? 5 + 2 : 5;
    if (z->online)
        op.products += (double)z->blocks * products *
                       plan_attention_time(t, heads, (double)T * (double)T, T, T, z->D);
    op.products += ends(t, z, images, forward);
    // The ranks of tp sum the merger's output, or the gradient of its input.
    const size_t count = ceil_div(images * T, t->model.vision.merge) *
                         (forward ? t->model.model.width : columns_merged(t));
    op.tp += plan_group_time(t, s->tp, ALL_REDUCE_PASSES, count, t->format.element);
    op.tp_bytes += plan_group_bytes(t, s->tp, ALL_REDUCE_PASSES, count, t->format.element);
    return op;
}
PlanOp plan_vision_sums(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    PlanStage stage = tower_stage(t, s);
    return plan_partial_sums(t, l, &stage);
}

// Returns the bytes that the tower keeps for B sequences. The merger keeps its input after the
// norm, and its GELU's input and output. The patch embedding keeps the patches.
double plan_vision_kept(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B,
                        bool working) {
    const PlanVision *v = &t->model.vision;
    CutSizes own = tower(t, z);
    size_t images = images_of(t, l, B), rows = images * own.T, merged = ceil_div(rows, v->merge);
    size_t hidden = part_size(columns_merged(t), own.t, own.rank);
    size_t at_ends = rows * (own.C + v->patch) + 2 * merged * hidden;
    return plan_in_flight(t, l, &own, images, working) + (double)(at_ends * t->format.element);
}
