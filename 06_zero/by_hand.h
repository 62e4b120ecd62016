// by_hand.h: declares the sizes and functions of 01_by_hand.c, which imagines N ranks in one
// process.
#ifndef ZERO_BY_HAND_H
#define ZERO_BY_HAND_H
#include "common/base/util.h"

enum { N = 4, SIZE = 10, BIAS = 4, STEPS = 3 }; // ranks, parameters, biases, steps

static inline double zero_by_hand_target(size_t rank, size_t i) {
    return (double)i - 2.0 * (double)rank;
}
// zero_by_hand_replicas and zero_by_hand_parts train for STEPS steps. Row r of w has the weights of
// rank r, before and after the training.
void zero_by_hand_replicas(double w[N][SIZE]);
void zero_by_hand_parts(double w[N][SIZE]);
#endif
