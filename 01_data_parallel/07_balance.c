// ranks: 4
// level: extra
// question: Devices differ in speed, and one becomes slow during training: must all ranks wait?
// vary: SEQUENCES 20..31, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank has a replica, as in 02_all_reduce, and the activations of its share. A rank
//         also has N rates, the speeds of the N devices as far as the rank knows them. The rates
//         are the same on every rank.
// Sends:  per step the ranks all-reduce the gradient, 2(N-1)/N of Psi elements per rank. If speeds
//         are measured, the ranks also all-reduce N doubles.
// Saves:  the wait for the slowest device. The ranks compute for about 3F(B) / (sum of speeds)
//         instead of 3F(B/N) / (speed of the slowest device). F(n) is the time of a forward of n
//         sequences at speed 1, and a backward takes 2F(n).
// Costs:  a fast device keeps the activations of more sequences. Shares are whole sequences, which
//         costs at most the time in which all devices together compute N - 1 sequences.
// The shares follow the speeds, which are known before (static) or measured in earlier steps
// (dynamic). With any shares a token has the weight 1 / (counted tokens of the whole batch), so the
// gradient is the unsplit one. Left out: devices with too little memory for their share.
#include "01_data_parallel/data_parallel.h"
#include <stdlib.h>

// Computes the part of the gradient that comes from the sequences `share`. Returns the part of the
// loss that comes from these sequences.
static double local_gradients(Model *m, const Data *d, uint64_t step, Range share,
                              size_t sequences) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, share.lo, range_size(share), sequences);
    model_zero_gradients(m);
    // b.token_weight is 1 / counted tokens of all sequences.
    double loss = model_forward_backward(m, &b) * b.token_weight;
    model_fold_tied(m);
    arena_free(&tokens);
    return loss;
}

// Makes the times of all ranks known to every rank after a measured step, and updates the rates.
// Each rank sends 2 (N-1)/N of 8 N bytes.
void balance_observe(Comm *dp, const Range *share, double took, double *rate) {
    double *times = host_alloc(dp->size * sizeof *times); // zeros
    // EXERCISE 01.07a (4 points): update the rates from the last step. Make the time of each rank
    // known to all ranks, with ONE call of comm_all_reduce_doubles on times[dp->size]. Then update
    // the rate of each rank r that had sequences. `now` is its number of sequences
    // (range_size(share[r])) per picosecond. rate[r] becomes `now` if it was 0 (unknown). Else
    // rate[r] becomes the mean of its old value and `now`, because a mean smooths the noise of real
    // steps. A rank that had no sequences keeps its rate.
    times[dp->rank] = took;
    comm_all_reduce_doubles(dp, times, dp->size); // N doubles, beside a gradient of thousands
    for (size_t r = 0; r < dp->size; r++) {
        if (range_size(share[r]) == 0) continue;
        double now = (double)range_size(share[r]) / times[r];
        rate[r] = rate[r] > 0 ? (rate[r] + now) / 2 : now;
    }
    // END
    free(times);
}

// Returns the device that would finish first with one more sequence. A device would finish after
// the time (size of its share + 1) / rate.
static size_t first_done(const Range *share, const double *rate, size_t n) {
    size_t best = 0;
    for (size_t r = 1; r < n; r++) {
        double with_one_more = (double)(range_size(share[r]) + 1) * rate[best];
        if (with_one_more < (double)(range_size(share[best]) + 1) * rate[r]) best = r;
    }
    return best;
}

void balance_shares(Range *share, const double *rate, size_t n, size_t total) {
    double sum = 0;
    size_t given = 0;
    for (size_t r = 0; r < n; r++) sum += rate[r];
    // At first each share has total * rate / sum sequences, rounded down. If all rates are unknown,
    // shard_range() cuts the shares. The loop at the end sets the place of each share.
    for (size_t r = 0; r < n; r++) {
        share[r] = sum > 0 ? (Range){ 0, (size_t)((double)total * rate[r] / sum) }
                           : shard_range(total, n, r);
        given += range_size(share[r]);
    }
    // Fewer than n sequences are left. Each of these sequences goes to the device that finishes
    // first with one more sequence. The device with the largest remainder would be a wrong choice,
    // because it may be the slowest device. Then all ranks would wait.
    for (; given < total; given++) share[first_done(share, rate, n)].hi++;
    size_t lo = 0;
    for (size_t r = 0; r < n; r++) {
        share[r] = (Range){ lo, lo + range_size(share[r]) };
        lo = share[r].hi;
    }
}

// Computes this rank's part, then runs the all-reduce of 02_all_reduce. Each rank has its share's
// part of the gradient, so the sum is right for shares of any size.
double balance_gradients(Comm *dp, Model *m, const Data *data, size_t step, size_t sequences,
                         Range *share, Speeds *known) {
    balance_shares(share, known->rate, dp->size, sequences);
    Picoseconds begin = clock_now();
    double loss = local_gradients(m, data, step, share[dp->rank], sequences);
    // Measured before the all-reduce, in which all ranks wait for the slowest rank.
    known->took = (double)(clock_now() - begin);
    data_parallel_all_reduce(dp, m); // sends 2 (N-1)/N of the gradient's bytes
    if (known->measured) balance_observe(dp, share, known->took, known->rate);
    return loss;
}
