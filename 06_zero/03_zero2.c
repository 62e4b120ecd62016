// ranks: 4
// level: core
// question: Whose gradients must a rank keep, and for how long?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// Holds:  all weights, and gradients and AdamW's moments of the rank's part, 1/N of every unit.
//         While a layer's backward runs, a rank holds the layer's whole gradient. From zero2_begin
//         to zero2_reduce a rank holds both whole gradients of wte.
// Sends:  after each layer's backward of each of m micro-batches, a reduce-scatter of the layer's
//         gradient. Per step a reduce-scatter of wte's gradient and an all-gather of the weights.
//         A rank sends m + 1 times (N-1)/N of the model (wte: 2 times).
// Saves:  12 (N-1)/N bytes per parameter in fp32. The state is 4 + 12/N bytes, not 16.
// Costs:  m + 1 passes over the parameters; data parallelism has 2. In flight are two gradients of
//         wte and the gradient of the largest other unit. For m > 1 a part of the largest
//         gradient's sum is also in flight.
// Rajbhandari et al. 2020, section 5.2. The lesson leaves out the reduction of one layer's gradient
// while the backward of the next layer runs (01_data_parallel/04_overlap.c).
#include "06_zero/zero.h"

// Only the owner of a part needs the sum over ranks of the part's gradients. So a unit's whole
// gradient exists on a rank only while the backward of its layer runs. zero2_backward_and_reduce()
// wraps that backward:
//
//     backward of a layer:   allocate g . compute . reduce-scatter g . own_g += own part . drop g
//
// wte, the table of the tokens, is the exception. Embedding and head each compute a gradient of
// wte, at the two ends of the backward pass. The two gradients stay whole until model_fold_tied()
// adds them. Their sum is reduced once per step.

// Returns true for wte, which two layers use, and in a pipeline for the last stage's copy of wte.
// An untied model has two tables. The function then returns true for each table.
bool zero2_stays_whole(const Unit *u) { return u->table; }

// ------------------------------------------------ a gradient lives for one layer's backward

void zero2_allocate_gradient(Unit *u, Arena *a) {
    unit_attach_gradients(u, unit_new_gradients(u, a, u->size)); // allocates g [size]
    // g is not filled with zeros, because the first contribution overwrites an empty gradient.
    for (size_t i = 0; i < u->n_params; i++) u->params[i].gradient_empty = true;
}

// Sums g over the ranks of dp and adds this rank's part to own_g. The part of the first micro-batch
// is written to own_g directly.
void zero2_reduce_gradient(Unit *u, Comm *dp) {
    // EXERCISE 06.03b (3 points): add to the own part. g [size] is whole on each rank. own_g
    // [size/N] holds the sum of earlier micro-batches, or nothing yet (own_gradient_empty). If
    // own_g holds nothing, reduce straight into own_g, without other memory, and clear the flag.
    // Otherwise reduce into a new tensor of MEM_COMMUNICATION, add it with op_add, and free it. Use
    // one collective. range_size(u->own) is the length of the own part.
    if (u->own_gradient_empty) {
        // own_g [size/N] <- own part of the sum over ranks, because each rank has the gradient of
        // its own sequences. Other ranks own the other parts. Sends (N-1)/N of g [size].
        comm_reduce_scatter(dp, u->own_g, u->g);
    } else {
        Arena part = arena(MEM_COMMUNICATION);
        Tensor arrived = unit_new_gradients(u, &part, range_size(u->own));
        comm_reduce_scatter(dp, arrived, u->g); // sends the same message, into other memory
        op_add(u->own_g, u->own_g, arrived);
        arena_free(&part);
    }
    u->own_gradient_empty = false;
    // END
}

// Runs a layer's own backward and reduces the gradients of its units. The gradient of unit u is
// reduced over u->replicas, the ranks that hold the same unit. This group is dp, unless the
// description of the unit names another group. Every rank must call this function for every
// micro-batch, even for an empty one, because all ranks take part in the reduction.
void zero2_backward_and_reduce(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    // EXERCISE 06.03a (4 points): backward, with whole gradients for this layer alone. Allocate the
    // whole gradient of each unit of the layer in an arena of MEM_COMMUNICATION
    // (zero2_allocate_gradient). layer_backward of l->inner fills the gradients, and
    // unit_partial_sums (of each unit) completes them. zero2_reduce_gradient adds the own part of
    // the sum over u->replicas to own_g. Then detach the whole gradient (unit_attach_gradients with
    // (Tensor){0}) and free the arena. Skip units with zero2_stays_whole(), because zero2_begin and
    // zero2_reduce handle them.
    Arena in_flight = arena(MEM_COMMUNICATION);
    for (size_t i = 0; i < l->n_units; i++)
        if (!zero2_stays_whole(l->units[i])) zero2_allocate_gradient(l->units[i], &in_flight);
    layer_backward(l->inner, b, x, dy, dx, s);
    for (size_t i = 0; i < l->n_units; i++) {
        Unit *u = l->units[i];
        if (zero2_stays_whole(u)) continue;
        unit_partial_sums(u);                    // sends if a parameter has partial sums
        zero2_reduce_gradient(u, u->replicas);   // reduce-scatters g
        unit_attach_gradients(u, (Tensor){ 0 }); // detaches the whole gradient
    }
    arena_free(&in_flight); // frees the whole gradients
    // END
}
void zero2_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
}
static const LayerKind zero2_layer = {
    .name = "ZeRO-2 layer",
    .forward = zero2_forward,
    .backward = zero2_backward_and_reduce,
};

// ---------------------------------------------------------------- the model

// Allocates w [size], a view own_w of the rank's part, and own_g [size/N] on every rank. Wraps
// every layer.
void zero2_allocate(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate_weights(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
        u->own_g = unit_new_gradients(u, &m->gradients, range_size(u->own));
    }
    for (size_t i = 0; i < m->n_layers; i++) layer_wrap(&m->layers[i], &zero2_layer, dp);
}

// Marks own_g as empty and allocates the whole gradients of wte, one per use, in m->buffers.
// model_zero_gradients() sets own_gradient_empty of each unit, so each unit's first reduction
// overwrites own_g.
void zero2_begin(Model *m) {
    model_zero_gradients(m);
    for (size_t i = 0; i < m->n_units; i++)
        if (zero2_stays_whole(&m->units[i])) zero2_allocate_gradient(&m->units[i], &m->buffers);
}

// Reduces wte's gradient. The backwards have reduced the gradients of all other units.
void zero2_reduce(Model *m) {
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (!zero2_stays_whole(u)) continue;
        // model_fold_tied() has added the head's gradient to the embedding's gradient.
        if (!u->tied_to) zero2_reduce_gradient(u, u->replicas);
        unit_attach_gradients(u, (Tensor){ 0 });
    }
    arena_free(&m->buffers);
}

StepResult zero2_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                      double clip) {
    double loss = 0;
    zero2_begin(model);
    for (size_t k = 0; k < m; k++)
        // Each layer's backward ends with a reduce-scatter.
        loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model); // adds the head's whole gradient of wte to the embedding's
    zero2_reduce(model);    // reduce-scatters the gradient of wte, so only own parts are left

    // The rest of the step is as in zero1_step() of 02_zero1.c. model_grad_norm() sends one double
    // per tensor.
    double norm = model_grad_norm(model, dp);
    optimizer_step(o, model, clip_factor(norm, clip));
    zero1_gather(model); // all-gather of each unit: w <- the own_w of all ranks
    comm_all_reduce_doubles(dp, &loss, 1);
    return (StepResult){ loss * batch[0].token_weight, norm };
}
