// ranks: 4
// level: extra
// question: Can ZeRO-3's communication hide behind its computation, and what memory does that cost?
// vary: layers 2..5, width 15|18|21, context 9..13, vocab 40..70
//
// Holds:  the tensors of 04_zero3.c. In flight are also the weights of a second unit. In backward a
//         second whole gradient is in flight, and a buffer as large as this gradient.
// Sends:  with reshard = true (forward drops the weights) the messages of 04_zero3.c, but earlier.
//         The gather of a layer's weights starts before the previous layer computes. The reduction
//         of a layer's gradient runs while the next layer computes.
// Saves:  time. A gather or reduction is hidden if a layer computes for at least as long.
// Costs:  memory. In flight are wte and its two gradients, the weights of two units, two gradients,
//         and a buffer as large as the gradient being reduced. For m > 1 a part of this gradient's
//         sum is also in flight. With reshard = false forward keeps the weights, and a step has 2m
//         passes over the parameters, not 3m, but all units are whole at the end of forward.
// Zhao et al. 2023, PyTorch FSDP, section 3.3; FSDP's backward_prefetch=BACKWARD_PRE. The lesson
// leaves out a last unit that is kept from forward to backward (torchtitan), a limit on the units
// in flight (FSDP), and two communications at a time.
#include "06_zero/zero.h"

//     forward  of layer i:   start gather i+1 . wait for gather i . compute . drop weights i
//     backward of layer i:   start gather i-1 . wait for gather i . compute . drop weights i
//                            . wait for reduction i+1, drop gradient i+1 . start reduction i
//
// A rank runs one communication at a time, in the order of the starts. The order is the same on all
// ranks. In backward the gather of layer i-1 starts before the reduction of layer i, because the
// computation of layer i-1 waits for the gather. A rank waits for the reduction of layer i only
// after the computation of layer i-1.

// ------------------------------------------------ weights: gathered one layer ahead

// Starts to gather the weights of a layer. Does nothing if there is no layer (NULL), or if the
// layer's weights are in flight or whole already.
static void start_gather(Prefetched *p) {
    if (!p || p->weights.data) return;
    p->in_flight = arena(MEM_COMMUNICATION);
    p->weights = unit_new_weights(p->unit, &p->in_flight, p->unit->size);
    // w [size] <- own_w [size/N] of all ranks, because the layer computes with all its weights.
    // Sends (N-1)/N of the unit.
    p->gather = comm_start_all_gather(p->unit->replicas, p->weights, p->unit->own_w);
}
static void wait_for_weights(Prefetched *p) {
    comm_wait(p->gather); // returns at once if gather is NULL: the weights were kept from forward
    p->gather = NULL;
    unit_attach_weights(p->unit, p->weights);
}
static void drop_weights(Prefetched *p) {
    p->weights = (Tensor){ 0 };
    unit_attach_weights(p->unit, p->weights);
    arena_free(&p->in_flight);
}

// ------------------------------------------------ gradients: reduced behind the next backward

// Starts to reduce the gradient of a layer. prefetch_finish_reduction() waits for the reduction,
// and adds the own part of the sum over ranks to own_g, as ZeRO-2 does.
static void start_reduction(Prefetched *p, Arena gradient) {
    Prefetch *all = p->model;
    Unit *u = p->unit;
    unit_partial_sums(u); // sends under sequence parallelism (03.07)
    all->reducing = p;
    all->gradient = gradient; // freed when the reduction is done
    all->arriving = (Tensor){ 0 };
    if (!u->own_gradient_empty)
        all->arriving = unit_new_gradients(u, &all->gradient, range_size(u->own));
    // sum [size/N] <- own part of the sum over ranks, because each rank has the gradient of its own
    // sequences. Sends (N-1)/N of g [size]. Until the wait, comm.c holds a buffer as large as g for
    // the contributions of all ranks.
    Tensor sum = u->own_gradient_empty ? u->own_g : all->arriving;
    all->reduction = comm_start_reduce_scatter(u->replicas, sum, u->g);
}
void prefetch_finish_reduction(Prefetch *all) {
    if (!all->reducing) return;
    Unit *u = all->reducing->unit;
    comm_wait(all->reduction);
    if (!u->own_gradient_empty) op_add(u->own_g, u->own_g, all->arriving);
    u->own_gradient_empty = false;
    unit_attach_gradients(u, (Tensor){ 0 });
    arena_free(&all->gradient);
    all->reducing = NULL;
}

// ---------------------------------------------------------------- a layer around a layer

// Runs a layer's forward. The first layer waits for the last reduction of the previous backward.
// The wait costs no time, because communications run in order, so the first gather of this forward
// must wait for the same reduction.
static void prefetch_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Prefetched *p = l->technique;
    if (!p->previous) prefetch_finish_reduction(p->model);
    // Starts a gather only in the first layer. The previous layer has started every other gather.
    start_gather(p);
    start_gather(p->next); // runs while this layer computes
    wait_for_weights(p);
    layer_forward(l->inner, b, x, y, s);
    // Without reshard, weights stay for backward. An evaluation has no backward, so it drops the
    // weights.
    if (p->model->reshard || !b->training) drop_weights(p);
}
static void prefetch_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Prefetched *p = l->technique;
    Arena gradient = arena(MEM_COMMUNICATION);
    // EXERCISE 06.05a (4 points): backward. Compute dx and the gradient of p's unit. The gradient
    // lives in the arena `gradient` until its reduction ends. While this layer computes, the
    // weights of the layer that computes next are gathered, and the gradient of the layer that
    // computed last is reduced. No unit may stay in memory longer than needed. All ranks start and
    // wait for the same communications in the same order, the oldest first.
    if (!p->next) prefetch_finish_reduction(p->model);
    // Starts a gather only in the last layer, unless forward has kept the last layer's weights.
    start_gather(p);
    start_gather(p->previous); // the layer that computes next, because backward walks down
    wait_for_weights(p);
    zero2_allocate_gradient(p->unit, &gradient); // allocates g [size]
    // A recomputed block (chapter 07) also runs its forward again here.
    layer_backward(l->inner, b, x, dy, dx, s);
    drop_weights(p);
    // The reduction of the layer above ran while this layer computed.
    prefetch_finish_reduction(p->model);
    start_reduction(p, gradient);
    // END
}
const LayerKind prefetch_layer = {
    .name = "ZeRO-3 layer, prefetch",
    .forward = prefetch_forward,
    .backward = prefetch_backward,
};

void prefetch_finish(Model *m) {
    Prefetched *first = m->layers[0].technique;
    prefetch_finish_reduction(first->model);
}

// Runs one step as zero3_step does, but the layers start communications early and wait late.
StepResult prefetch_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                         double clip) {
    double loss = 0;
    zero3_begin(model); // gathers wte, and allocates its two gradients
    for (size_t k = 0; k < m; k++) loss += model_forward_backward(model, &batch[k]);
    prefetch_finish(model); // waits for the first layer's reduction, which nothing hides
    model_fold_tied(model);
    zero3_reduce(model); // reduces the gradient of wte, and drops the weights of wte

    double norm = model_grad_norm(model, dp);
    optimizer_step(o, model, clip_factor(norm, clip));
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * batch[0].token_weight, norm };
}
