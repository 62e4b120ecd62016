// compare.h: names six ways to cut a block over ranks, and declares functions that compute how many
// elements a rank receives in each way (12_compare.c).
#ifndef TENSOR_WAYS_H
#define TENSOR_WAYS_H
#include <stddef.h>

typedef enum { WAY_1D, WAY_SP, WAY_2D, WAY_25D, WAY_3D, WAY_RING, TENSOR_WAYS } TensorWay;
typedef struct {
    size_t q, depth;
} TensorWayShape; // grids and cubes: q x q x depth ranks; other ways: q ranks; impossible: q is 0
TensorWayShape tensor_way_shape(TensorWay way, size_t ranks);
// Returns the elements that one rank receives for one block, forward and backward. Returns 0 on one
// rank, or if the way is impossible on `ranks` ranks.
double tensor_way_received(TensorWay way, size_t ranks, double tokens, double width);
// Returns the number of tokens, in units of the width, from which `way` receives less than `other`.
// Returns 0 if the elements of `other` do not grow faster with the tokens.
double tensor_way_crossover(TensorWay way, TensorWay other, size_t ranks);
#endif
