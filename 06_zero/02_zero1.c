// ranks: 4
// level: core
// question: All replicas make the same update. Must each of them keep the whole optimizer state?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// Holds:  all weights and gradients, and AdamW's m and v of the rank's part. The part is 1/N of
//         every unit.
// Sends:  per step and unit a reduce-scatter of the gradients and an all-gather of the weights,
//         for any number of micro-batches. A rank sends 2 (N-1)/N of the model.
// Saves:  8 (N-1)/N bytes per parameter in fp32. The state is 8 + 8/N bytes, not 16.
// Costs:  no more bytes than an all-reduce, which is a reduce-scatter and an all-gather. Each unit
//         has the latency of two calls per step.
// Loss, norm and weights must equal those of data parallelism within rounding.
// Rajbhandari et al. 2020, section 5.1. With 16-bit weights ZeRO-1 saves more, because ZeRO-1 then
// also divides the fp32 master (06_mixed_precision).
#include "06_zero/zero.h"

// A unit is an embedding table, a block, or the last norm, and has u->size elements. Each of the N
// ranks of u->replicas (dp in this lesson) holds a replica of the unit.
//
//     data parallel:   all-reduce of g;       every rank updates all of w
//     ZeRO-1:          reduce-scatter of g;   every rank updates its part of w;   all-gather of w

// Allocates w [size] and g [size] on every rank. Rank r of N owns part r of every unit: own_w and
// own_g [size/N] are views of that part. optimizer_allocate() allocates AdamW's moments [size/N]
// for the owned part only, and optimizer_step() updates only that part.
void zero1_allocate(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue; // the embedding owns the head's wte
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
        u->own_g = tensor_flat_range(u->g, u->own.lo, u->own.hi);
    }
}

// Reduces the gradients: own_g becomes the sum over the ranks. Outside own_g, g keeps this rank's
// local gradient, which no later function of the step reads.
void zero1_reduce(Model *m) {
    // EXERCISE 06.02a (3 points): reduce the gradients. In every unit of the model, g holds this
    // rank's whole local gradient. Afterwards own_g, a view of this rank's part of g, must hold the
    // sum over the ranks of u->replicas. Skip a unit that is tied to another (tied_to). Use one
    // collective per unit, which gives every rank only its own part.
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue; // its gradient has been added to the embedding's
        // Each rank has the gradient of its own sequences, so the sum over ranks is missing. AdamW
        // updates element by element, so a rank needs the sum of its own part only. Sends (N-1)/N
        // of g [size].
        comm_reduce_scatter(u->replicas, u->own_g, u->g);
    }
    // END
}

// Gathers the weights: every rank gets the parts that the other ranks have updated.
void zero1_gather(Model *m) {
    // EXERCISE 06.02b (2 points): gather the weights. In every unit own_w, a view of this rank's
    // part of w, has been updated; the rest of w is old. Afterwards w must be the same on all ranks
    // of u->replicas. Use one collective per unit; skip tied units.
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        // Each rank has updated only its part, but the next forward reads all of w. Sends (N-1)/N
        // of w [size].
        comm_all_gather(u->replicas, u->w, u->own_w);
    }
    // END
}

StepResult zero1_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                      double clip) {
    double loss = 0;
    model_zero_gradients(model);
    // The forwards and backwards of all micro-batches send nothing.
    for (size_t k = 0; k < m; k++) loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model); // adds the two whole gradients of wte
    zero1_reduce(model);    // reduce-scatters each unit

    // Each rank squares the elements that it owns. An all-reduce of one double per tensor adds
    // these squares over the ranks.
    double norm = model_grad_norm(model, dp);
    optimizer_step(o, model, clip_factor(norm, clip)); // updates own_w from own_g and moments
    zero1_gather(model);                               // gathers each unit
    comm_all_reduce_doubles(dp, &loss, 1); // for the comparison: each rank has its own loss
    return (StepResult){ loss * batch[0].token_weight, norm };
}
