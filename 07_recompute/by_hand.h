// by_hand.h: the chain of layers of 01_by_hand.c.
#ifndef RECOMPUTE_BY_HAND_H
#define RECOMPUTE_BY_HAND_H
#include "common/base/real.h"
#include "common/base/util.h"

enum { LAYERS = 16 };
typedef struct { real a[2][2]; } Matrix;           // 4 elements

// The counts of a run. kept: elements held for backward at the moment; most: the maximum of kept.
typedef struct { size_t forward_products, backward_products, kept, most; } Count;

// x0; the weights of layers 0 to 3, and again from the first
extern const Matrix chain_start, chain_weights[4];
void chain_forward(Count *c, Matrix *y, const Matrix *x, const Matrix *w);
// Forward and backward of the chain, which keeps the inputs of layers 0, every, 2*every, ...; every
// = 1: of all, so that nothing is computed again.
Count by_hand_chain_train(size_t every, Matrix dw[LAYERS], real *loss);
#endif
