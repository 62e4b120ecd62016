// zero_step.c calls the functions of ZeRO's stages (chapter 06) for the trainer, also for schedules
// that run backwards in two halves.
#include "08_3d/zero_step.h"

// ---------------------------------------------------- backwards in two halves (05.06, zero bubble)

// Runs the dx half of a backward, which comes first. Under ZeRO-2 this half needs no communication
// over dp, because dx does not depend on the gradients of weights. Under ZeRO-3 this half gathers
// the weights.
static void zero2_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    layer_backward_inputs(l->inner, b, x, dy, dx, s);
}
static void zero3_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Arena in_flight = arena(MEM_COMMUNICATION);
    zero3_gather(l, &in_flight); // all-gather: dx = dy W^T reads the weights
    layer_backward_inputs(l->inner, b, x, dy, dx, s);
    zero3_drop(l, &in_flight);
}
// Runs the second half of a backward, which computes the gradients of the weights. This half
// gathers no weights, because it does not read the weights.
static void second_half(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)dy; // the first half has copied the dy of every product
    (void)dx;
    layer_backward_weights(l->inner, b, x, s);
}
static const LayerKind weights_half = { .name = "second half", .backward = second_half };
// Passes zero2_backward_and_reduce() a layer `half`, whose backward is second_half(). So
// zero2_backward_and_reduce() allocates and reduces the gradients around the second half alone.
static void weights_and_reduce(Layer *l, const Batch *b, Tensor x, Saved *s) {
    Layer half = *l->inner, outer = *l;
    half.kind = &weights_half;
    half.inner = l->inner;
    half.n_inner = 1;
    outer.inner = &half;
    zero2_backward_and_reduce(&outer, b, x, (Tensor){ 0 }, (Tensor){ 0 }, s);
}
static const LayerKind zero2_halves = {
    .name = "ZeRO-2 layer",
    .forward = zero2_forward,
    .backward = zero2_backward_and_reduce,
    .backward_inputs = zero2_inputs,
    .backward_weights = weights_and_reduce,
};
static const LayerKind zero3_halves = {
    .name = "ZeRO-3 layer",
    .forward = zero3_forward,
    .backward = zero3_backward,
    .backward_inputs = zero3_inputs,
    .backward_weights = weights_and_reduce,
};
static void set_kind(Model *m, const LayerKind *kind) {
    for (size_t i = 0; i < m->n_layers; i++) m->layers[i].kind = kind;
}

// ---------------------------------------------------------------- a step of any stage

void zero_allocate(Model *m, Comm *dp, size_t stage) {
    REQUIRE(stage <= 3, "ZeRO has stages 0, 1, 2 and 3, not %zu", stage);
    if (m->size)
        fault("zero_allocate() of a model that is allocated: it takes model_allocate()'s place");
    if (stage == 0) {
        model_replicas(m, dp);
        model_allocate(m);
    }
    if (stage == 1) zero1_allocate(m, dp);
    if (stage == 2) {
        zero2_allocate(m, dp);
        set_kind(m, &zero2_halves);
    }
    if (stage == 3) {
        zero3_allocate(m, dp);
        set_kind(m, &zero3_halves);
    }
}

// Replaces the gradient of each unit by the sum over the unit's replicas (stage 0). Every replica
// updates all weights, so every replica needs the whole sum. Neighbouring units with the same
// replicas share one all-reduce. If all units have the replicas dp, this all-reduce is that of
// data_parallel_all_reduce() (chapter 01).
static void all_reduce_units(Model *m) {
    for (size_t i = 0, end, lo = 0, hi = 0; i < m->n_units; i = end, lo = hi) {
        Comm *replicas = m->units[i].replicas;
        for (end = i; end < m->n_units && m->units[end].replicas == replicas; end++)
            if (!m->units[end].tied_to) hi += m->units[end].size;
        if (hi > lo) comm_all_reduce(replicas, tensor_flat_range(m->g, lo, hi));
    }
}
void zero_begin(Model *m, size_t stage) {
    if (stage < 2) model_zero_gradients(m);
    if (stage == 2) zero2_begin(m);
    if (stage == 3) zero3_begin(m);
}
void zero_reduce(Model *m, size_t stage) {
    if (stage == 0) all_reduce_units(m);
    if (stage == 1) zero1_reduce(m);
    if (stage == 2) zero2_reduce(m);
    if (stage == 3) zero3_reduce(m);
}
void zero_end(Model *m, size_t stage) {
    if (stage == 1 || stage == 2) zero1_gather(m);
}
void zero_evaluation_begin(Model *m, size_t stage) {
    if (stage == 3) zero3_gather_wte(m);
}
void zero_evaluation_end(Model *m, size_t stage) {
    if (stage == 3) zero3_drop_wte(m);
}
