// ranks: 4
// level: core
// question: How can N devices train one model, each on a part of the batch, and hold the same weights all the time?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank a replica: all Psi weights, gradients (wte's twice) and optimizer state; B/N
//         of the sequences.
// Sends:  once, before step 0: a broadcast of rank 0's weights, Psi elements. Per step, after the
//         last backward: an all-reduce of the gradient, 2 (N-1)/N of Psi elements per rank.
// Saves:  each rank computes, and keeps the activations of, B/N sequences.
// Costs:  weights, gradients and state N times. A step takes
//         3F(ceil(B/N)) + 2(N-1) alpha + 2(N-1)/N Psi e / beta.
// F(n): the time of a forward of n sequences; alpha: latency of a message; beta: bytes per second;
// e: bytes of a real.
// Li et al. 2020 (arXiv 2006.15704), section 2. The sum is right because every shard's loss already
// carries 1 / (counted tokens of the WHOLE batch): nothing is divided by N. Left out: communication
// while backward still runs (04_overlap).
#include "01_data_parallel/data_parallel.h"

// Once, before the first step. Rank 0 sends its weights [Psi], Psi e bytes (e: bytes of a real),
// along a chain of all ranks; the other ranks overwrite theirs. Without it every process would
// train from weights of its own.
void data_parallel_broadcast(Comm *dp, Model *m) {
    // EXERCISE 01.02b (2 points): all begin alike. Give every rank of dp the weights of rank 0.
    // m->w holds all weights of the model, one after the other, and common/comm/comm.h lists what
    // ranks can send to each other. One call, in which only rank 0 sends.
    comm_broadcast(dp, m->w, 0);
    // END
}

// Once per step, after the last backward. g [Psi] <- the sum over replicas of their g: one
// all-reduce, for which each rank sends 2 (N-1)/N Psi e bytes in a ring (03_ring). Each rank has
// the part of the gradient that comes from its own tokens, so the whole batch's gradient is the
// sum. Each part already carries 1 / (counted tokens of the whole batch), so nothing is divided.
void data_parallel_all_reduce(Comm *dp, Model *m) { comm_all_reduce(dp, m->g); }

// Fills m->g with the part of the batch's gradient that comes from sequences `shard`, and returns
// their part of the batch's mean loss. Each counted token enters both with this weight.
static double local_gradients(Model *m, const Data *d, uint64_t step, Range shard,
                              double token_weight) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_micro_batch(d, &tokens, step, shard.lo, range_size(shard), token_weight);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) * token_weight;
    model_fold_tied(m);  // wte's two gradients become one before anybody adds over ranks
    arena_free(&tokens);
    return loss;
}

double data_parallel_gradients(Comm *dp, Model *m, const Data *d, uint64_t step, size_t sequences) {
    double loss = 0;
    // EXERCISE 01.02a (4 points): my part, and everybody's sum. Leave the gradient of the whole
    // batch's mean loss in m->g, the same on every rank, and in `loss` the part of that mean loss
    // that my shard makes up. Rank r of N has the sequences shard_range(sequences, N, r). A counted
    // token weighs the same on whichever rank it is: find the weight with data_count()
    // (common/model/data.h), which any rank may ask about any sequences. The gradient of my
    // sequences is local_gradients(); there is one communication, data_parallel_all_reduce(), which
    // adds.
    double token_weight = 1 / (double)data_count(d, step, 0, sequences);   // ALL, not my shard's
    loss = local_gradients(m, d, step, shard_range(sequences, dp->size, dp->rank), token_weight);
    // Psi elements, once: m->g is now the whole batch's, on every rank
    data_parallel_all_reduce(dp, m);
    // END
    return loss;                               // still my shard's part
}

// Equal weights, equal gradients and equal optimizer state give equal norms and equal weights:
// nothing more is sent.
StepResult data_parallel_step(Comm *dp, Model *m, Optimizer *o, const Data *d, uint64_t step,
                              size_t sequences) {
    double loss = data_parallel_gradients(dp, m, d, step, sequences);
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, 1);
    return (StepResult){ loss, norm };
}
