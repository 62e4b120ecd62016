// ranks: 4
// level: core
// question: How can N devices train one model, each on a part of the batch, and hold the same weights all the time?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank has a replica, which is all Psi weights, gradients and optimizer state, and
//         B/N of the sequences. wte, the table that embedding and head share, has two gradients.
// Sends:  before step 0 rank 0 broadcasts its weights, Psi elements. After the backward of a step
//         the ranks all-reduce the gradient. Each rank then sends 2 (N-1)/N of Psi elements.
// Saves:  each rank computes B/N sequences, and keeps the activations of these sequences only.
// Costs:  the N ranks hold weights, gradients and state N times. A step takes
//         3F(ceil(B/N)) + 2(N-1) alpha + 2(N-1)/N Psi e / beta.
// F(n) is the time of a forward of n sequences, and a backward takes 2F(n). alpha is the latency of
// a message, beta the bytes per second of a link, e the bytes of an element.
// The weights must equal one device's within rounding, because the ranks add the terms of a sum in
// another order. The replicas must equal each other in every bit.
// Li et al. 2020 (arXiv 2006.15704), section 2. Every shard's loss already carries 1 / (counted
// tokens of the WHOLE batch), so the gradients are added and not divided by N. Left out:
// communication while backward still runs (04_overlap).
#include "01_data_parallel/data_parallel.h"

// Gives every rank the weights [Psi] of rank 0. Without this broadcast, ranks that begin with
// different weights stay different.
void data_parallel_broadcast(Comm *dp, Model *m) {
    // EXERCISE 01.02b (2 points): broadcast the first weights. Give every rank of dp the weights of
    // rank 0. m->w holds all weights of the model, one after the other. common/comm/comm.h lists
    // the collectives. The solution is one call.
    comm_broadcast(dp, m->w, 0);
    // END
}

// Replaces g [Psi] by the sum of the replicas' g, with one all-reduce. Each rank has the part of
// the gradient that comes from its own tokens, so the whole batch's gradient is the sum. Each part
// already carries 1 / (counted tokens of the whole batch), so nothing is divided. In a ring
// (03_ring) each rank sends 2 (N-1)/N Psi elements.
void data_parallel_all_reduce(Comm *dp, Model *m) { comm_all_reduce(dp, m->g); }

// Fills m->g with the part of the batch's gradient that comes from the sequences `shard`. Returns
// the part of the batch's mean loss that comes from these sequences. A counted token has the weight
// token_weight, in the gradient and in the loss.
static double local_gradients(Model *m, const Data *d, uint64_t step, Range shard,
                              double token_weight) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_micro_batch(d, &tokens, step, shard.lo, range_size(shard), token_weight);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) * token_weight;
    model_fold_tied(m); // adds wte's two gradients, before the sum over ranks
    arena_free(&tokens);
    return loss;
}

// Leaves the gradient of the whole batch in m->g, on every rank. Each rank computes the part that
// comes from its shard, and the all-reduce adds the parts of all ranks.
double data_parallel_gradients(Comm *dp, Model *m, const Data *d, uint64_t step, size_t sequences) {
    double loss = 0;
    // EXERCISE 01.02a (4 points): the shard's gradient, and its all-reduce. Leave the gradient of
    // the whole batch's mean loss in m->g, the same on every rank. Leave in `loss` the part of that
    // mean loss that comes from this rank's shard. Rank r of N has the sequences
    // shard_range(sequences, N, r). A counted token has the same weight on every rank. Find the
    // weight with data_count() (common/model/data.h), which any rank may call for any sequences.
    // local_gradients() computes the gradient of a shard, and data_parallel_all_reduce() adds over
    // ranks.
    double token_weight = 1 / (double)data_count(d, step, 0, sequences); // of ALL shards
    loss = local_gradients(m, d, step, shard_range(sequences, dp->size, dp->rank), token_weight);
    // Sums Psi elements, once. Then m->g is the whole batch's gradient, on every rank.
    data_parallel_all_reduce(dp, m);
    // END
    return loss; // the part of this rank's shard
}

// Nothing is sent after the all-reduce. Equal weights, gradients and optimizer state on all ranks
// give equal norms and equal new weights. The result has only this rank's part of the loss, because
// the training does not need the whole loss.
StepResult data_parallel_step(Comm *dp, Model *m, Optimizer *o, const Data *d, uint64_t step,
                              size_t sequences) {
    double loss = data_parallel_gradients(dp, m, d, step, sequences);
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, 1);
    return (StepResult){ loss, norm };
}
