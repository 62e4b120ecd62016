// ranks: 1
// level: core
// question: What do four replicas hold four times, and what changes when each holds only its part?
//
// Holds:  plain arrays for four imagined ranks in one process. Each rank has 10 weights and
//         10 gradients. A replica has 10 m and 10 v. With parts, the ranks have 3, 3, 2 and 2 m,
//         and as many v.
// Sends:  nothing, because one process has all arrays. Real replicas would run an all-reduce of
//         10 gradients per step. With parts, real ranks would run a reduce-scatter of 10 gradients
//         and an all-gather of 10 weights.
// Saves:  8 (N-1)/N of 16 bytes per parameter in fp32, because a rank keeps 1/N of m and v.
// Costs:  no more bytes than data parallelism, because an all-reduce is a reduce-scatter and an
//         all-gather.
// Rajbhandari et al. 2020. The lesson has no model. Rank r has a target for each weight,
// zero_by_hand_target(r, i). The rank's loss is half the squared distance of w from these targets.
// So the gradient of w is w minus the targets.
//
// The parameters are one vector: a bias of 4 (no weight decay), then a 2x3 matrix (weight decay).
// The vector is divided into four parts of almost equal size. A part may hold elements of the bias
// and of the matrix:
//
//     index     0   1   2 | 3   4   5 | 6   7 | 8   9
//     tensor    b0  b1  b2  b3  a00 a01 a02 a10 a11 a12
//     rank      0           1           2       3            parts of 3, 3, 2, 2
#include "06_zero/by_hand.h"
#include <math.h>

static const double lr = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-5, decay = 0.1;

// ------------------------------------------------ Adam, by hand, for elements lo <= i < hi

// Updates elements lo to hi - 1. w, g, m and v point to element lo, so a rank that holds only a
// part can pass that part.
static void adam(double *w, const double *g, double *m, double *v, size_t lo, size_t hi, int step) {
    for (size_t i = lo; i < hi; i++, w++, g++, m++, v++) {
        *m = beta1 * *m + (1 - beta1) * *g;
        *v = beta2 * *v + (1 - beta2) * *g * *g;
        double m_hat = *m / (1 - pow(beta1, step)), v_hat = *v / (1 - pow(beta2, step));
        double decayed = i < BIAS ? 0 : decay * *w; // a part may hold bias and matrix
        *w -= lr * (m_hat / (sqrt(v_hat) + epsilon) + decayed);
    }
}

// ------------------------------------------------ data parallel: everything four times

void zero_by_hand_replicas(double w[N][SIZE]) {
    double m[N][SIZE] = { { 0 } }, v[N][SIZE] = { { 0 } };
    for (int step = 1; step <= STEPS; step++) {
        double g[N][SIZE], sum[SIZE] = { 0 };
        for (size_t r = 0; r < N; r++)
            for (size_t i = 0; i < SIZE; i++) g[r][i] = w[r][i] - zero_by_hand_target(r, i);
        for (size_t r = 0; r < N; r++) // all-reduce: every rank gets the sum, added in rank order
            for (size_t i = 0; i < SIZE; i++) sum[i] += g[r][i];
        // Every rank computes the same update.
        for (size_t r = 0; r < N; r++) adam(w[r], sum, m[r], v[r], 0, SIZE, step);
    }
}

// ---------------------------------------------------------------- ZeRO: each rank updates its part

void zero_by_hand_parts(double w[N][SIZE]) {
    double m[N][3] = { { 0 } }, v[N][3] = { { 0 } }; // a rank has at most 3 elements
    for (int step = 1; step <= STEPS; step++) {
        double g[N][SIZE], updated[SIZE];
        for (size_t r = 0; r < N; r++)
            for (size_t i = 0; i < SIZE; i++) g[r][i] = w[r][i] - zero_by_hand_target(r, i);
        for (size_t r = 0; r < N; r++) {
            Range own = shard_range(SIZE, N, r);
            double sum[3] = { 0 }, own_w[3];
            for (size_t s = 0; s < N; s++) // reduce-scatter: rank r gets its part of the sum
                for (size_t i = own.lo; i < own.hi; i++) sum[i - own.lo] += g[s][i];
            for (size_t i = own.lo; i < own.hi; i++) own_w[i - own.lo] = w[r][i];
            adam(own_w, sum, m[r], v[r], own.lo, own.hi, step);
            for (size_t i = own.lo; i < own.hi; i++) updated[i] = own_w[i - own.lo];
        }
        for (size_t r = 0; r < N; r++) // all-gather: every rank gets all parts
            for (size_t i = 0; i < SIZE; i++) w[r][i] = updated[i];
    }
}
