// ranks: 4
// level: core
// question: When data-parallel ranks also accumulate, when must they communicate, and what does it cost to communicate too often?
// vary: SEQUENCES 11..30, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank has all weights, their gradient g [Psi], a second gradient of the tied table
//         wte, and its share of the sequences in m micro-batches.
// Sends:  one all-reduce of g per step, after the last micro-batch. Each rank sends 2(N-1)/N Psi e
//         bytes. overlapped_step sends g in buckets during the last micro-batch's backward.
// Saves:  (m-1)/m of the bytes that a reduction after every micro-batch sends. overlapped_step also
//         saves the time of the messages that the last backward hides.
// Costs:  for any m, 2(N-1)/N Psi e bytes per rank and step. N is the number of ranks, e the bytes
//         of an element. overlapped_step also needs up to Psi elements of communication memory.
// no_sync_step and overlapped_step must give one device's gradient within rounding. With sums in
// rank order these two steps have the same bits. PyTorch's DDP has the same steps, with no_sync()
// and buckets (Li et al. 2020, section 3.2).
// Left out: replicas with different numbers of micro-batches.
#include "02_grad_accumulation/accumulation.h"

// Every rank has the same bits of the whole batch's gradient, so all ranks make the same update.
// token_weight is 1 / (counted tokens of all ranks). The gradient already contains this factor.
StepResult replica_update(Model *model, Optimizer *o, double loss, double token_weight) {
    double norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, 1);
    return (StepResult){ loss * token_weight, norm };
}

// Makes one step. m backwards add to the local gradient without communication, then one all-reduce
// runs.
StepResult no_sync_step(Replica *r, Model *model, Optimizer *o, const Batch *batch, size_t m) {
    double loss = 0;
    model_zero_gradients(model);
    // EXERCISE 02.03a (3 points): reduce once. Run all m micro-batches, batch[0] to batch[m - 1],
    // forward and backward, and add up their losses. Then one all-reduce must make model->g the
    // whole batch's gradient on every rank. Do not forget the two gradients of the tied table.
    for (size_t k = 0; k < m; k++) loss += model_forward_backward(model, &batch[k]);
    model_fold_tied(model);
    // Each rank has the gradient of its own sequences, a partial sum of the batch's gradient. This
    // partial sum is complete only after the last micro-batch. The all-reduce sends 2(N-1)/N Psi e
    // bytes.
    data_parallel_all_reduce(r->dp, model);
    // END
    return replica_update(model, o, loss, batch->token_weight);
}

// Makes one step. Sends g once, as no_sync_step does, but starts to send during the last backward.
// r->buckets->sync is set before a forward begins, because the forward decides whether its backward
// will reduce. The last backward completes g layer by layer. The buckets of g start in order. The
// all-reduce of a bucket starts as soon as the bucket is complete and the bucket before has
// started. buckets_layer_ready() calls model_fold_tied() before the bucket of wte starts (01.04).
StepResult overlapped_step(Replica *r, Model *model, Optimizer *o, const Batch *batch, size_t m) {
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++) {
        r->buckets->sync = k + 1 == m;
        // With k = m - 1 the backward starts one all-reduce per bucket (01.04).
        loss += model_forward_backward(model, &batch[k]);
    }
    buckets_wait(r->buckets); // afterwards g is the sum over all ranks
    r->buckets->sync = false;
    return replica_update(model, o, loss, batch->token_weight);
}
