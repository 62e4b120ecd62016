// plan_vision.c computes the sizes, parameters and FLOPs of the vision tower of a model that reads
// images, such as Qwen2-VL. The tower runs before the first block of the language model, in the
// first stage:
//
//   patches of an image -> embedding -> blocks of GPT-2's kind, all patches of an image attend to
//   each other -> merger: `merge` patches become one position, in an MLP of two matrices
//
// The ranks of dp sum the tower's gradient in one piece with the embedding's layer, after the
// tower's backward. tp cuts the tower's blocks and merger. Each rank of cp takes a share of the
// images. The plan leaves out images of unequal sizes.
#include "08_3d/plan.h"
#include "common/model/block.h"

bool plan_has_vision(const PlanTask *t) {
    return t->model.vision.model.layers > 0 && t->model.vision.images > 0;
}

CutSizes plan_tower(const PlanTask *t, const CutSizes *stage) {
    CutSizes z = cut_sizes(&t->model.vision.model, stage->t, stage->rank);
    z.first = z.last = false;
    if (stage->online) z = cut_positions(z, &(Positions){ 0 }, true);
    return stage->sequence ? cut_sequence(z, false) : z;
}
size_t plan_tower_merged(const PlanTask *t) {
    return t->model.vision.merge * t->model.vision.model.width;
}
// Returns the tower's elements on a rank. The patch embedding and the norm before the merger are
// whole on every rank. tp cuts the merger's two matrices along the features between the matrices.
static size_t elements(const PlanTask *t, size_t tp, size_t rank) {
    const PlanVision *v = &t->model.vision;
    CutSizes z = cut_sizes(&v->model, tp, rank);
    size_t in = plan_tower_merged(t), hidden = part_size(in, tp, rank), out = t->model.model.width;
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
    double in = (double)plan_tower_merged(t), out = (double)t->model.model.width;
    double of_blocks = (double)z.blocks * work_block(&z, v->images).flops;
    if (blocks) return of_blocks;
    return of_blocks + 2 * patches * (double)(v->patch * z.C) + 2 * merged * in * (in + out);
}
size_t plan_vision_blocks(const PlanTask *t) {
    CutSizes z = cut_sizes(&t->model.model, 1, 0);
    return (size_t)(plan_vision_flops(t, false) / work_block(&z, 1).flops + 0.5);
}
size_t plan_tower_images(const PlanTask *t, const PlanLayout *l, size_t B) {
    return ceil_div(B * t->model.vision.images, mesh_cp(l->n));
}
