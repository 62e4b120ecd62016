// ranks: 4
// level: core
// question: If all replicas make the same update, why should each of them keep the whole optimizer state?
// vary: layers 1|3, width 18|21|24, context 7..12, vocab 40..60
//
// Holds:  every rank: weights and gradients whole; AdamW's m and v of its part of every unit, 1/N.
// Sends:  per step a reduce-scatter of the gradients and an all-gather of the weights, one call per
//         unit each: 2 (N-1)/N of the model per rank, whatever the number of micro-batches is.
// Saves:  8 (N-1)/N bytes per parameter in fp32: state is 8 + 8/N, not 16.
// Costs:  no bytes beside an all-reduce's (which is a reduce-scatter and an all-gather); latency
//         once per unit.
// Rajbhandari et al. 2020, section 5.1. Left out: 16-bit weights with an fp32 master copy, where
// the saving is larger (01_by_hand has the table).
#include "06_zero/zero.h"

// A unit is an embedding table, a block, or the last norm. It has `size` elements, and N ranks have
// a replica of it: u->replicas, which is dp in this lesson.
//
//     data parallel:   all-reduce: the sum, everywhere;   every rank updates everything
//     ZeRO-1:          reduce-scatter: the sum of MY part;   I update it;   all-gather of weights

// Every rank has w [size] and g [size] whole. It owns part r of N of every unit: own_w and own_g
// [size/N] are views of that part. optimizer_allocate() then gives m and v [size/N] to what is
// owned, and optimizer_step() updates that.
void zero1_allocate(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate(m);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;                  // the head's use of wte: the same weights
        u->own = shard_range(u->size, u->replicas->size, u->replicas->rank);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
        u->own_g = tensor_flat_range(u->g, u->own.lo, u->own.hi);
    }
}

// Once per step, after the last backward. Outside my part g keeps what this rank alone has
// computed: nobody reads it.
void zero1_reduce(Model *m) {
    // EXERCISE 06.02a (3 points): reduce the gradients. Every unit of the model has this rank's own
    // gradient in g, whole. Afterwards own_g, a view of my part of g, holds the sum over the ranks
    // of u->replicas. A unit that is tied to another (tied_to) has nothing of its own. One
    // collective a unit, which gives every rank its own part only.
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;                  // its gradient has been added to the embedding's
        // Each rank has the gradient of its own sequences, and AdamW updates element by element: so
        // a rank needs the sum over all ranks of its part, and of no more. Sends (N-1)/N of g
        // [size].
        comm_reduce_scatter(u->replicas, u->own_g, u->g);
    }
    // END
}

// Once per step, after the update: every rank gets the parts that the others have updated.
void zero1_gather(Model *m) {
    // EXERCISE 06.02b (2 points): gather the weights. In every unit own_w, a view of my part of w,
    // has been updated; the rest of w is old. Afterwards w is the same on all ranks of u->replicas.
    // One collective a unit; tied units as above.
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        // Each rank has updated its part only, and the next forward needs all of w. Sends (N-1)/N
        // of w [size].
        comm_all_gather(u->replicas, u->w, u->own_w);
    }
    // END
}

StepResult zero1_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                      double clip) {
    double loss = 0;
    model_zero_gradients(model);
    // nothing is sent
    for (size_t k = 0; k < m; k++) loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model);     // on whole local gradients: before anything is reduced
    zero1_reduce(model);                           // reduce-scatter of each unit

    // Each rank squares the elements that it owns: the sum over ranks is the whole norm. Sends one
    // double per tensor.
    double norm = model_grad_norm(model, dp);
    optimizer_step(o, model, clip_factor(norm, clip));     // own_w, with own_g and my m and v
    zero1_gather(model);                           // all-gather of each unit
    comm_all_reduce_doubles(dp, &loss, 1);  // for the log: a rank has the loss of its own sequences
    return (StepResult){ loss * batch[0].token_weight, norm };
}
