// ranks: 4
// level: core
// question: Whose gradients must a rank keep, and for how long?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// Holds:  every rank: weights whole; gradients, m and v of its part of every unit, 1/N; while a
//         layer's backward runs, the whole gradient of that layer; wte's two whole gradients from
//         zero2_begin to zero2_reduce.
// Sends:  after each layer's backward, for each of m micro-batches, a reduce-scatter of its
//         gradient; per step one of wte's, and an all-gather of the weights: m + 1 times (N-1)/N of
//         the model per rank (2 times of wte).
// Saves:  12 (N-1)/N bytes per parameter in fp32: state is 4 + 12/N, not 16.
// Costs:  m + 1 passes over the parameters, not 2; in flight 2 wte and the largest unit's gradient.
// Rajbhandari et al. 2020, section 5.2. Left out: the reduction of one layer while the backward of
// the next one runs (01_data_parallel/04_overlap.c); 16-bit gradients.
#include "06_zero/zero.h"

// Only the owner of a part needs the sum of its gradients. So a unit's whole gradient exists on a
// rank just while the backward pass of its layer runs: zero2_backward_and_reduce() is the backward
// of a layer around a layer.
//
//     backward of a layer:   allocate g . compute . reduce-scatter g . own_g += my part . drop g
//
// The embedding is the exception: both ends of the backward pass add to wte, so its gradients (one
// per use) stay whole for the step and are reduced once.

// wte, or, in a pipeline, the last stage's copy of it: a tensor that two layers use.
bool zero2_stays_whole(const Unit *u) { return u->params[0].number == 0; }

// ------------------------------------------------ a gradient lives for one layer's backward

void zero2_allocate_gradient(Unit *u, Arena *a) {
    unit_attach_gradients(u, tensor_new(a, 1, u->size));                   // g [size]
    // it starts at zero
    for (size_t i = 0; i < u->n_params; i++) u->params[i].gradient_empty = true;
}

// own_g += my part of the sum of g over ranks. The first micro-batch's is written in place.
void zero2_reduce_gradient(Unit *u, Comm *dp) {
    // EXERCISE 06.03b (3 points): add to my part. g [size] is whole on each rank, own_g [size/N] is
    // what earlier micro-batches have left, or nothing yet (own_gradient_empty): then the sum is
    // written there and needs no other memory. Otherwise it arrives beside own_g, in a tensor of
    // MEM_COMMUNICATION that is freed here, and op_add adds it. One collective. range_size(u->own)
    // is the length of my part.
    if (u->own_gradient_empty) {
        // Each rank has the gradient of its own sequences: own_g [size/N] <- my part of their sum.
        // The other parts are other owners'. Sends (N-1)/N of g [size].
        comm_reduce_scatter(dp, u->own_g, u->g);
    } else {
        Arena part = arena(MEM_COMMUNICATION);
        Tensor arrived = tensor_new(&part, 1, range_size(u->own));
        comm_reduce_scatter(dp, arrived, u->g);    // the same message; the sum arrives beside own_g
        op_add(u->own_g, u->own_g, arrived);
        arena_free(&part);
    }
    u->own_gradient_empty = false;
    // END
}

// A layer's own backward, and the reduction of its gradients. Every rank must come here for every
// micro-batch, because the reduction is collective: also with an empty one.
void zero2_backward_and_reduce(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 06.03a (4 points): backward, with whole gradients for this layer alone. Each unit of
    // the layer gets room for its whole gradient in an arena of MEM_COMMUNICATION
    // (zero2_allocate_gradient); layer_backward of l->inner fills it, and unit_partial_sums
    // completes it; zero2_reduce_gradient adds my part of the sum over u->replicas to own_g; then
    // the unit has no whole gradient any more (unit_attach_gradients with (Tensor){0}) and the
    // arena is freed. Units of which zero2_stays_whole() is true are left alone: zero2_begin and
    // zero2_reduce take care of them.
    Arena in_flight = arena(MEM_COMMUNICATION);
    for (size_t i = 0; i < l->n_units; i++)
        if (!zero2_stays_whole(l->units[i])) zero2_allocate_gradient(l->units[i], &in_flight);
    layer_backward(l->inner, b, x, dy, dx, s);
    for (size_t i = 0; i < l->n_units; i++) {
        Unit *u = l->units[i];
        if (zero2_stays_whole(u)) continue;
        unit_partial_sums(u);   // sends nothing, but where ranks have seen some of the rows (03.07)
        zero2_reduce_gradient(u, u->replicas);     // reduce-scatter
        unit_attach_gradients(u, (Tensor){0});     // the whole gradient is dropped
    }
    arena_free(&in_flight);
    // END
}
void zero2_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
}
static const LayerKind zero2_layer = {
    .name = "ZeRO-2 layer", .forward = zero2_forward, .backward = zero2_backward_and_reduce,
};

// ---------------------------------------------------------------- the model

// Every rank: w [size] whole, own_w a view of my part; gradients [size/N]. Every layer is wrapped.
void zero2_allocate(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate_weights(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
        u->own_g = tensor_new(&m->gradients, 1, range_size(u->own));
    }
    for (size_t i = 0; i < m->n_layers; i++) layer_wrap(&m->layers[i], &zero2_layer, dp);
}

// Before the first forward of a step: every own_g starts at zero, and wte has room for its whole
// gradients, one per use, in an arena of their own.
void zero2_begin(Model *m) {
    model_zero_gradients(m);
    for (size_t i = 0; i < m->n_units; i++)
        if (zero2_stays_whole(&m->units[i])) zero2_allocate_gradient(&m->units[i], &m->buffers);
}

// After the last backward: reduce-scatter of wte's gradient. All other units have been reduced.
void zero2_reduce(Model *m) {
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (!zero2_stays_whole(u)) continue;
        // with the head's use of wte, which was added to it
        if (!u->tied_to) zero2_reduce_gradient(u, u->replicas);
        unit_attach_gradients(u, (Tensor){0});
    }
    arena_free(&m->buffers);
}

StepResult zero2_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                      double clip) {
    double loss = 0;
    zero2_begin(model);
    for (size_t k = 0; k < m; k++)
        // each layer's backward ends with a reduce-scatter
        loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model);     // the head's gradient of wte + the embedding's, both whole
    zero2_reduce(model);    // reduce-scatter of wte; all that is left are own parts

    double norm = model_grad_norm(model, dp);      // from here on as zero1_step
    optimizer_step(o, model, clip_factor(norm, clip));
    zero1_gather(model);                           // all-gather of each unit
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * batch[0].token_weight, norm };
}
