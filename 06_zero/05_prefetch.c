// ranks: 4
// level: extra
// question: Can ZeRO-3's communication hide behind its computation, and what memory does that cost?
// vary: layers 2..5, width 15|18|21, context 9..13, vocab 40..70
//
// Holds:  what 04_zero3.c holds, and of the units in flight one more gathered unit, in backward one
//         more whole gradient.
// Sends:  the messages of 04_zero3.c, started earlier: the gather of a layer's weights before the
//         computation of the layer before it, the reduction of its gradient behind the computation
//         of the layer below.
// Saves:  time: a ring of a unit hides while a layer computes for as long.
// Costs:  in flight 3 wte, 2 units, 2 gradients and a sum. Weights kept from forward to backward
//         (reshard: no): 2m passes over the parameters, not 3m, and all units whole at the end of
//         forward.
// Zhao et al. 2023, PyTorch FSDP, section 3.3; FSDP's backward_prefetch=BACKWARD_PRE. Left out:
// keeping the last unit from forward to backward (torchtitan does); FSDP's rate limiter of units in
// flight; two communications at a time.
#include "06_zero/zero.h"
#include <stdlib.h>

//     forward  of layer i:   start gather i+1 . wait for gather i . compute . drop weights i
//     backward of layer i:   start gather i-1 . wait for gather i . compute . drop weights i
//                            . wait for reduction i+1, drop gradient i+1 . start reduction i
//
// A rank runs one communication at a time, in the order of the starts, and the same order on all
// ranks: in backward the gather of layer i-1 is started before the reduction of layer i, because
// the next computation needs it and nobody waits for the reduction.

// What a layer knows (Layer.technique): the one unit that is gathered for it (a block's, wpe, or
// the last norm; wte stays whole for a step), and its neighbours on this rank. NULL: the list of
// layers, or the chunk of a pipeline stage, ends here.
typedef struct Prefetched {
    Unit *unit;
    struct Prefetched *previous, *next;
    struct Prefetch *model;
    Tensor weights;     // [size] from the start of the gather until they are dropped
    Arena in_flight;                               // MEM_COMMUNICATION
    Request *gather;                               // started, and not yet waited for
} Prefetched;
typedef struct Prefetch {
    bool reshard;
    Prefetched *reducing;   // the layer whose gradient is on its way; NULL: none
    Request *reduction;
    Tensor arriving;    // [size/N], to be added to own_g; {0}: the sum arrives in own_g
    Arena gradient;                                // its whole gradient [size], and `arriving`
    Prefetched layer[];
} Prefetch;

// ------------------------------------------------ weights: gathered one layer ahead

// Nothing to do where the weights are there, or on their way.
static void start_gather(Prefetched *p) {
    if (!p || p->weights.data) return;
    p->in_flight = arena(MEM_COMMUNICATION);
    p->weights = tensor_new(&p->in_flight, 1, p->unit->size);
    // The layer will compute with all its weights, and no rank holds more than a part: w [size] <-
    // own_w [size/N] of all ranks. Sends (N-1)/N of the unit.
    p->gather = comm_start_all_gather(p->unit->replicas, p->weights, p->unit->own_w);
}
static void wait_for_weights(Prefetched *p) {
    comm_wait(p->gather);                          // NULL where they were kept from forward
    p->gather = NULL;
    unit_attach_weights(p->unit, p->weights);
}
static void drop_weights(Prefetched *p) {
    p->weights = (Tensor){0};
    unit_attach_weights(p->unit, p->weights);
    arena_free(&p->in_flight);
}

// ------------------------------------------------ gradients: reduced behind the next backward

// own_g += my part of the sum over ranks, as in stage 2, but started here and added in
// finish_reduction.
static void start_reduction(Prefetched *p, Arena gradient) {
    Prefetch *all = p->model;
    Unit *u = p->unit;
    unit_partial_sums(u);   // as in stage 2: sends nothing, but for lesson 03.07
    all->reducing = p;
    all->gradient = gradient;   // it must stay, and stay as it is, until the reduction is done
    all->arriving = (Tensor){0};
    if (!u->own_gradient_empty) all->arriving = tensor_new(&all->gradient, 1, range_size(u->own));
    // Each rank has the gradient of its own sequences: own part [size/N] <- their sum. Sends
    // (N-1)/N of g [size]. Until the wait comm.c holds as much again.
    Tensor sum = u->own_gradient_empty ? u->own_g : all->arriving;
    all->reduction = comm_start_reduce_scatter(u->replicas, sum, u->g);
}
static void finish_reduction(Prefetch *all) {
    if (!all->reducing) return;
    Unit *u = all->reducing->unit;
    comm_wait(all->reduction);
    if (!u->own_gradient_empty) op_add(u->own_g, u->own_g, all->arriving);
    u->own_gradient_empty = false;
    unit_attach_gradients(u, (Tensor){0});
    arena_free(&all->gradient);
    all->reducing = NULL;
}

// ---------------------------------------------------------------- a layer around a layer

// The last reduction of the backward before this walk was started before any gather of this walk,
// and communications run in that order: to wait for it here, at the first layer, delays nobody.
static void prefetch_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Prefetched *p = l->technique;
    if (!p->previous) finish_reduction(p->model);
    start_gather(p);    // the first layer; all others have been started by the one before
    start_gather(p->next);                         // on its way while this layer computes
    wait_for_weights(p);
    layer_forward(l->inner, b, x, y, s);
    // an evaluation has no backward to keep them for
    if (p->model->reshard || !b->training) drop_weights(p);
}
static void prefetch_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Prefetched *p = l->technique;
    Arena gradient = arena(MEM_COMMUNICATION);
    // EXERCISE 06.05a (4 points): backward. Compute dx and the gradient of p's unit, which needs
    // room (`gradient`) from here to the end of its reduction. While this layer computes, the
    // weights of the layer that computes next are gathered, and the gradient of the one that
    // computed last is reduced. No unit stays in memory without need, and all ranks start and wait
    // for the same communications in the same order, the oldest first.
    if (!p->next) finish_reduction(p->model);
    start_gather(p);    // the last layer's; nothing if forward has kept them
    start_gather(p->previous);  // backward walks down: the layer before is the next to compute
    wait_for_weights(p);
    zero2_allocate_gradient(p->unit, &gradient);   // g [size]
    // where blocks are recomputed, this runs their forward again, too
    layer_backward(l->inner, b, x, dy, dx, s);
    drop_weights(p);
    finish_reduction(p->model);     // the gradient of the layer above had all this backward's time
    start_reduction(p, gradient);
    // END
}
static const LayerKind prefetch_layer = {
    .name = "ZeRO-3 layer, prefetch", .forward = prefetch_forward, .backward = prefetch_backward,
};

// ---------------------------------------------------------------- the model

// The weights and gradients of stage 3, and another layer around each layer. Blocks must have been
// cut and wrapped before (tensor_parallel, recompute).
void prefetch_allocate(Model *m, Comm *dp, bool reshard) {
    if (m->size)
        fault(
            "prefetch_allocate() of a model that is allocated: it takes model_allocate()'s place");
    zero3_allocate_parts(m, dp);
    size_t n = m->n_layers, k = 0;
    Prefetch *all = host_alloc(sizeof *all + n * sizeof *all->layer);
    all->reshard = reshard;
    for (size_t i = 0; i < n; i++) {
        Layer *l = &m->layers[i];
        if (l->n_units == 0) continue;             // the loss: nothing to gather
        // of the embedding's wte and wpe, the head's ln_f and wte: not wte
        Unit *gathered = l->units[0];
        if (zero2_stays_whole(gathered)) gathered = l->units[1];
        bool neighbours = k && m->layers[i - 1].chunk == l->chunk;
        all->layer[k] = (Prefetched){ .unit = gathered, .model = all };
        if (neighbours) all->layer[k].previous = &all->layer[k - 1];
        if (neighbours) all->layer[k - 1].next = &all->layer[k];
        layer_wrap(l, &prefetch_layer, dp);
        l->technique = &all->layer[k++];
    }
}
static Prefetch *prefetch_of(Model *m) { return ((Prefetched *)m->layers[0].technique)->model; }
void prefetch_finish(Model *m) { finish_reduction(prefetch_of(m)); }
void prefetch_free(Model *m) { free(prefetch_of(m)); }

// One step, as zero3_step: the layers start their communications early and wait for them late.
StepResult prefetch_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                         double clip) {
    double loss = 0;
    zero3_begin(model);                            // all-gather of wte; room for its two gradients
    for (size_t k = 0; k < m; k++) loss += model_forward_backward(model, &batch[k]);
    prefetch_finish(model);     // the first layer's reduction; no computation is left to hide it
    model_fold_tied(model);
    zero3_reduce(model);    // reduce-scatter of wte; its gathered weights are dropped

    double norm = model_grad_norm(model, dp);
    optimizer_step(o, model, clip_factor(norm, clip));
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * batch[0].token_weight, norm };
}
