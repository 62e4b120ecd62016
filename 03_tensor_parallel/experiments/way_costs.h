// way_costs.h: what one rank of n holds, receives and computes in each of the six ways of
// 12_compare.c, from sizes alone. The experiment compares its measurements with these numbers.
#ifndef WAY_COSTS_H
#define WAY_COSTS_H
#include "03_tensor_parallel/compare.h"
#include "03_tensor_parallel/experiments/grids.h"

// A step of B sequences. tensor_way_shape() must allow the way on n ranks. The time holds if no
// rank waits for another one.
RankShare way_share(TensorWay way, const ModelConfig *c, size_t B, size_t n, size_t rank);

// From this number of tokens on, in units of the width, a block costs less in 2D on q x q ranks
// than in 1D; 0: never. The cost: bytes received, or the time of the messages without latency.
typedef enum { BY_BYTES, BY_TIME, CROSSOVERS } Crossover;
double way_crossover(size_t q, Crossover by);
#endif
