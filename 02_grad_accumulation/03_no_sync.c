// ranks: 4
// level: core
// question: When data-parallel ranks also accumulate, when must they communicate, and what does too often cost?
// vary: SEQUENCES 11..30, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank: all weights, one gradient buffer g [Psi], its part of the sequences in m
//         micro-batches.
// Sends:  once per step, after the last micro-batch, an all-reduce of g: 2(N-1)/N Psi e bytes per
//         rank; overlapped: the same bytes in buckets, while the last micro-batch's backward still
//         runs.
// Saves:  (m-1)/m of the bytes of a reduction after every micro-batch; overlapped: the time that
//         backward hides.
// Costs:  per step 2(N-1)/N Psi e bytes and one gradient buffer, whatever m is (N ranks, e bytes of
//         a real); overlapped: up to Psi elements of communication memory.
// PyTorch's DDP.no_sync() and buckets (Li et al. 2020, section 3.2). Left out: shards that come
// from different numbers of micro-batches.
#include "02_grad_accumulation/accumulation.h"

// After the reduction every rank has the whole batch's gradient, the same bits, so all make the
// same update. The loss is that of my tokens only; in it as in the gradient a token weighs 1 /
// (counted tokens of all ranks' sequences).
StepResult replica_update(Model *model, Optimizer *o, double loss, double token_weight) {
    double norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, 1);
    return (StepResult){ loss * token_weight, norm };
}

// A step. Backward adds to the local gradient, m times, without communication. Then there is one
// all-reduce.
StepResult no_sync_step(Replica *r, Model *model, Optimizer *o, const Batch *batch, size_t m) {
    double loss = 0;
    model_zero_gradients(model);
    // EXERCISE 02.03a (3 points): reduce once. Walk all m micro-batches, batch[0] to batch[m - 1],
    // forward and backward, add up their losses, and make model->g the whole batch's gradient on
    // every rank with one all-reduce. Mind the two gradients of the tied table.
    for (size_t k = 0; k < m; k++) loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model);
    // Each rank has the gradient of its own sequences, a partial sum of the batch's; micro-batches
    // that are still to come would be missing in it, so it is complete only now. Sends 2(N-1)/N Psi
    // e bytes, whatever m is.
    data_parallel_all_reduce(r->dp, model);
    // END
    return replica_update(model, o, loss, batch->token_weight);
}

// The same bytes, sent earlier. no_sync for all micro-batches but the last, forward AND backward:
// whether a backward will reduce is settled when its forward begins. The last backward completes g
// layer by layer, so it starts an all-reduce for each bucket of g as soon as the bucket is
// complete; together they send what no_sync_step sends.
StepResult overlapped_step(Replica *r, Model *model, Optimizer *o, const Batch *batch, size_t m) {
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++) {
        r->buckets->sync = k + 1 == m;
        // the last one: an all-reduce per bucket (01.04)
        loss += model_forward_backward(model, &batch[k]);
    }
    buckets_wait(r->buckets);   // until the last all-reduce has ended: g is the sum over all ranks
    r->buckets->sync = false;
    return replica_update(model, o, loss, batch->token_weight);
}
