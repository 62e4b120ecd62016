// ranks: 1
// level: core
// question: What do four replicas hold four times, and what changes when each holds only its part?
//
// Holds:  four imagined ranks in one process, plain arrays: each 10 weights and 10 gradients; of m
//         and v 10 each as a replica, 3, 3, 2 and 2 with parts.
// Sends:  nothing, because one process has all arrays. On ranks: an all-reduce of 10 gradients per
//         step; with parts a reduce-scatter of 10 gradients and an all-gather of 10 weights.
// Saves:  m and v: 8 of 16 bytes per parameter in fp32 become 8/N.
// Costs:  no bytes: an all-reduce is a reduce-scatter and an all-gather.
// Rajbhandari et al. 2020. Left out: a model. Rank r wants the parameters to be target[r]; its loss
// is half the squared distance, its gradient w - target[r].
//
// The parameters are one vector: a bias of 4 (no weight decay), then a 2x3 matrix (weight decay).
// The vector is cut in four parts without a thought for where one tensor ends:
//
//     index     0   1   2 | 3   4   5 | 6   7 | 8   9
//     tensor    b0  b1  b2  b3  m00 m01 m02 m10 m11 m12
//     rank      0           1           2       3            parts of 3, 3, 2, 2
#include "06_zero/by_hand.h"
#include <math.h>

static const double lr = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-5, decay = 0.1;


// ------------------------------------------------ Adam, by hand, for elements lo <= i < hi

// w, g, m and v point to element lo: whoever holds only a part can call it with that part alone.
static void adam(double *w, const double *g, double *m, double *v, size_t lo, size_t hi, int step) {
    for (size_t i = lo; i < hi; i++, w++, g++, m++, v++) {
        *m = beta1 * *m + (1 - beta1) * *g;
        *v = beta2 * *v + (1 - beta2) * *g * *g;
        double m_hat = *m / (1 - pow(beta1, step)), v_hat = *v / (1 - pow(beta2, step));
        double decayed = i < BIAS ? 0 : decay * *w;  // the option follows the element, not the part
        *w -= lr * (m_hat / (sqrt(v_hat) + epsilon) + decayed);
    }
}

// ------------------------------------------------ data parallel: everything four times

void zero_by_hand_replicas(double w[N][SIZE]) {
    double m[N][SIZE] = {{0}}, v[N][SIZE] = {{0}};
    for (int step = 1; step <= STEPS; step++) {
        double g[N][SIZE], sum[SIZE] = {0};
        for (size_t r = 0; r < N; r++)
            for (size_t i = 0; i < SIZE; i++) g[r][i] = w[r][i] - zero_by_hand_target(r, i);
        for (size_t r = 0; r < N; r++)  // all-reduce: everybody gets the sum, added in rank order
            for (size_t i = 0; i < SIZE; i++) sum[i] += g[r][i];
        // four times the same
        for (size_t r = 0; r < N; r++) adam(w[r], sum, m[r], v[r], 0, SIZE, step);
    }
}

// ---------------------------------------------------------------- ZeRO: each rank updates its part

void zero_by_hand_parts(double w[N][SIZE]) {
    double m[N][3] = {{0}}, v[N][3] = {{0}};               // state for at most 3 elements a rank
    for (int step = 1; step <= STEPS; step++) {
        double g[N][SIZE], updated[SIZE];
        for (size_t r = 0; r < N; r++)
            for (size_t i = 0; i < SIZE; i++) g[r][i] = w[r][i] - zero_by_hand_target(r, i);
        for (size_t r = 0; r < N; r++) {
            Range own = shard_range(SIZE, N, r);
            double sum[3] = {0}, mine[3];
            for (size_t s = 0; s < N; s++)  // reduce-scatter: rank r gets its part of the sum
                for (size_t i = own.lo; i < own.hi; i++) sum[i - own.lo] += g[s][i];
            for (size_t i = own.lo; i < own.hi; i++) mine[i - own.lo] = w[r][i];
            adam(mine, sum, m[r], v[r], own.lo, own.hi, step);
            for (size_t i = own.lo; i < own.hi; i++) updated[i] = mine[i - own.lo];
        }
        for (size_t r = 0; r < N; r++)                     // all-gather: everybody gets all parts
            for (size_t i = 0; i < SIZE; i++) w[r][i] = updated[i];
    }
}
