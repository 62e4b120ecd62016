// ranks: 4
// level: core
// question: How can a rank compute with weights that it does not hold?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// Holds:  1/N of weights, gradients and AdamW's moments. While a layer computes, a rank holds the
//         layer's whole weights, and in backward its whole gradient. For the whole step a rank
//         holds wte's weights and two gradients.
// Sends:  per micro-batch an all-gather of each unit's weights before its forward, another before
//         its backward, and a reduce-scatter of its gradient afterwards. A rank sends 3m times
//         (N-1)/N of the model per step (wte: 2 times).
// Saves:  16 (N-1)/N bytes per parameter in fp32. The state is 16/N bytes; data parallelism holds
//         16.
// Costs:  3m passes over the parameters per step; data parallelism has 2. In flight are wte's
//         weights and two gradients, and the weights and gradient of the largest other unit. If
//         m > 1, a part of the largest gradient's sum is also in flight.
// Loss, norm and weights must equal those of data parallelism within rounding.
// Rajbhandari et al. 2020, section 5.3; PyTorch's FSDP with reshard_after_forward=True. The lesson
// leaves out gathering the next unit while a unit computes (05_prefetch.c), and offloading parts to
// host memory.
#include "06_zero/zero.h"

// Each rank gathers a unit's weights just before the unit's layer runs, in forward and in backward,
// and drops the gathered weights afterwards. At any time at most one block is whole. (In FSDP, a
// unit is the set of weights that one wrapped module gathers.)
//
//     forward  of a unit:   all-gather weights . compute . drop
//     backward of a unit:   all-gather weights . compute . reduce-scatter gradient . drop both

// ------------------------------------------------ weights live for one layer's forward or backward

// Gathers the weights of a unit, because a layer computes with all its weights, but a rank holds
// only a part of these weights.
static void gather_unit(Unit *u, Arena *a) {
    Tensor w = unit_new_weights(u, a, u->size);
    // EXERCISE 06.04a (1 point): gather the weights of a unit. Each rank of u->replicas has its
    // part, own_w [size/N]. Collect all parts in w [size].
    comm_all_gather(u->replicas, w, u->own_w); // sends (N-1)/N of w [size]
    // END
    unit_attach_weights(u, w);
}
void zero3_gather(Layer *l, Arena *in_flight) {
    for (size_t i = 0; i < l->n_units; i++)
        if (!zero2_stays_whole(l->units[i])) gather_unit(l->units[i], in_flight);
}
void zero3_drop(Layer *l, Arena *in_flight) {
    for (size_t i = 0; i < l->n_units; i++)
        if (!zero2_stays_whole(l->units[i])) unit_attach_weights(l->units[i], (Tensor){ 0 });
    arena_free(in_flight);
}

void zero3_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Arena in_flight = arena(MEM_COMMUNICATION);
    zero3_gather(l, &in_flight); // gathers the whole weights
    layer_forward(l->inner, b, x, y, s);
    zero3_drop(l, &in_flight);
}
void zero3_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 06.04b (2 points): backward of a layer whose weights are in parts. The forward has
    // dropped the gathered weights. The weights must be whole while the layer's backward runs, in
    // an arena of MEM_COMMUNICATION. zero2_backward_and_reduce calls the layer's own backward and
    // reduces its gradients, as in ZeRO-2. Afterwards nothing whole is left. Calls: zero3_gather,
    // zero3_drop and zero2_backward_and_reduce.
    Arena in_flight = arena(MEM_COMMUNICATION);
    // Gathers the weights again, because dx = dy W^T reads the weights, which forward has dropped.
    zero3_gather(l, &in_flight);
    // The backward gives g [size], the gradient of this rank's sequences, which is a partial sum.
    // The reduce-scatter adds the own part of the sum over ranks to own_g [size/N].
    zero2_backward_and_reduce(l, b, x, dy, dx, s);
    zero3_drop(l, &in_flight);
    // END
}
static const LayerKind zero3_layer = {
    .name = "ZeRO-3 layer",
    .forward = zero3_forward,
    .backward = zero3_backward,
};

// ---------------------------------------------------------------- the model

// Allocates own_w [size/N] and own_g [size/N] of each unit, and fills own_w with initial values. So
// no rank ever allocates a whole model.
void zero3_allocate_parts(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_measure(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = unit_new_weights(u, &m->parameters, range_size(u->own));
        u->own_g = unit_new_gradients(u, &m->gradients, range_size(u->own));
        unit_initialize(u, u->own_w, u->own, m->config.seed);
    }
}
void zero3_allocate(Model *m, Comm *dp) {
    zero3_allocate_parts(m, dp);
    for (size_t i = 0; i < m->n_layers; i++) layer_wrap(&m->layers[i], &zero3_layer, dp);
}

// Gathers the weights of wte once, before the first forward, and keeps these weights, because
// embedding and head read wte. The weights have an arena of their own, m->gathered, because wte's
// gradients are in m->buffers, which zero2_reduce frees earlier.
void zero3_gather_wte(Model *m) {
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (zero2_stays_whole(u) && !u->tied_to) gather_unit(u, &m->gathered);
    }
}
void zero3_drop_wte(Model *m) {
    for (size_t i = 0; i < m->n_units; i++)
        if (zero2_stays_whole(&m->units[i])) unit_attach_weights(&m->units[i], (Tensor){ 0 });
    arena_free(&m->gathered);
}

void zero3_begin(Model *m) {
    zero3_gather_wte(m);
    zero2_begin(m);
}
void zero3_reduce(Model *m) {
    zero2_reduce(m); // reduce-scatters the gradient of wte
    zero3_drop_wte(m);
}

StepResult zero3_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                      double clip) {
    double loss = 0;
    zero3_begin(model); // gathers wte, and allocates its two gradients
    for (size_t k = 0; k < m; k++)
        // Forward of a layer: gather, compute, drop. Backward: gather, compute, reduce, drop.
        loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model);
    zero3_reduce(model); // reduces the gradient of wte, and drops the weights of wte

    // Each rank has only its own parts of the gradient, so its sums of squares are partial. An
    // all-reduce of one double per tensor adds these partial sums.
    double norm = model_grad_norm(model, dp);
    // No gather after the update: the next forward gathers the new weights.
    optimizer_step(o, model, clip_factor(norm, clip));
    comm_all_reduce_doubles(dp, &loss, 1); // each rank has the loss of its own sequences
    return (StepResult){ loss * batch[0].token_weight, norm };
}
