// by_hand.h: a linear layer on plain C arrays, its loss and gradient, and a step of training.
#ifndef BY_HAND_H
#define BY_HAND_H
#include "common/base/real.h"
#include "common/base/util.h"

// A layer y = xW + b, or its gradient. w [in, out] is stored row by row. MOST_IN and MOST_OUT
// bound the size.
enum { MOST_IN = 12, MOST_OUT = 6 };
typedef struct {
    size_t in, out;
    real w[MOST_IN * MOST_OUT], b[MOST_OUT];
} Linear;
// Samples x [n, in] and their targets [n, out].
typedef struct {
    size_t n;
    const real *x, *target;
} Samples;

double linear_loss(Linear *g, const Linear *l, Samples s, size_t count);
void linear_add_scaled(Linear *to, const Linear *from, real scale);

// A shard divides its loss by the number of its own elements, or by the number of elements of the
// whole batch.
typedef enum { OWN_COUNT, WHOLE_COUNT } Count;
Linear sum_over_shards(const Linear *l, Samples all, size_t shards, Count what, double *shard_loss);

// FULL_BATCH: one device has all samples.
// AVERAGE: each shard divides by its own elements, and the gradients are averaged.
// WHOLE: each shard divides by the whole batch's elements, and the gradients are added.
// SUM, a trap: each shard divides by its own elements, and the gradients are added.
typedef enum { FULL_BATCH, AVERAGE, WHOLE, SUM } Rule;
double train_epoch(Linear *l, Samples all, size_t shards, Rule rule, double lr, double *shard_loss);
#endif
