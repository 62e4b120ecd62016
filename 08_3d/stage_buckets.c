// stage_buckets.c overlaps the all-reduces over dp with the backward of a pipeline's stage. On such
// a stage several micro-batches can be in flight, and two stages may share the tied table.
// 01_data_parallel/04_overlap.c makes and reduces the buckets.
#include "08_3d/stage_buckets.h"

// Only the backward of the step's last micro-batch completes the gradients.
static bool is_last(const Buckets *b, const Batch *batch) {
    return batch->number + 1 == b->micro_batches;
}

static void stage_forward(Layer *l, const Batch *batch, Tensor x, Tensor y, Saved *s) {
    Buckets *b = l->technique;
    if (l == &b->model->layers[0] && is_last(b, batch)) buckets_arm(b);
    layer_forward(l->inner, batch, x, y, s);
}
static void stage_backward(Layer *l, const Batch *batch, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Buckets *b = l->technique;
    layer_backward(l->inner, batch, x, dy, dx, s);
    if (!b->armed || !is_last(b, batch)) return;
    // With sequence parallelism (03.07) some gradients are partial sums. unit_partial_sums() adds
    // up the parts over the tp group before the all-reduce over dp.
    for (size_t i = 0; i < l->n_units; i++) unit_partial_sums(l->units[i]);
    buckets_layer_ready(b, l);
}
static const LayerKind of_stage = { .name = "reducing layer",
                                    .forward = stage_forward,
                                    .backward = stage_backward };

Buckets *buckets_new_pipeline(Model *m, Comm *dp, size_t capacity, size_t micro_batches) {
    Buckets *b = buckets_cut(m, dp, capacity);
    b->micro_batches = micro_batches;
    b->sync = true;
    for (size_t i = 0; i < m->n_layers; i++) {
        layer_wrap(&m->layers[i], &of_stage, dp);
        m->layers[i].technique = b;
    }
    return b;
}

void buckets_start_tied(Buckets *b) {
    if (range_size(b->tied) == 0) return;
    b->tied_request =
        comm_start_all_reduce(b->dp, tensor_flat_range(b->model->g, b->tied.lo, b->tied.hi));
}

void buckets_wait_tied(Buckets *b) {
    comm_wait(b->tied_request);
    b->tied_request = NULL;
}
