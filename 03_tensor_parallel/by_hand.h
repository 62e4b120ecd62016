// by_hand.h: declares the layer of 01_by_hand.c, Y = X W, and two functions that split the layer.
// One process plays all ranks. A shard is such a rank with its part of W.
#ifndef TENSOR_PARALLEL_BY_HAND_H
#define TENSOR_PARALLEL_BY_HAND_H
#include "common/base/util.h"

enum { M = 2, K = 4, N = 3 }; // rows of X (tokens), inputs, outputs
typedef struct {
    double x[M][K], target[M][N];
    double w[K][N]; // shard i reads and updates only its own part
    double y[M][N], dy[M][N], dx[M][K], dw[K][N];
    double y_part[K][M][N];  // row split: shard i's partial sum of Y
    double dx_part[N][M][K]; // column split: shard i's partial sum of dX
} HandLayer;

// These two functions make one step of SGD on half the squared distance of Y from the target.
void by_hand_columns(HandLayer *l, size_t shards, double rate); // W cut by columns; shards <= N
void by_hand_rows(HandLayer *l, size_t shards, double rate);    // W cut by rows; shards <= K
#endif
