// by_hand.h: declares the chain of layers of 01_by_hand.c, for the experiment.
#ifndef RECOMPUTE_BY_HAND_H
#define RECOMPUTE_BY_HAND_H
#include "common/base/real.h"
#include "common/base/util.h"

enum { LAYERS = 16 };
typedef struct {
    real a[2][2];
} Matrix; // 4 elements

// The counts of a run. `forward_products` and `backward_products` count multiplications. `kept` is
// the number of elements held for backward now, and `most` is the largest value of kept so far.
typedef struct {
    size_t forward_products, backward_products, kept, most;
} Count;

// The input x0, and the weights of layers 0 to 3, which the following layers repeat.
extern const Matrix chain_start, chain_weights[4];
// Computes y = x w, and counts the multiplications.
void chain_forward(Count *c, Matrix *y, const Matrix *x, const Matrix *w);
// Runs forward and backward of the chain. Keeps the inputs of layers 0, k, 2k, ... with k = every.
// With every = 1 all inputs are kept and no layer is computed again. Writes the gradients to dw,
// and the loss to *loss.
Count by_hand_chain_train(size_t every, Matrix dw[LAYERS], real *loss);
#endif
