// way_costs.h: what one rank of n holds, receives and computes in each of the six ways of
// 12_compare.c, from sizes alone. The experiment compares its measurements with these numbers.
#ifndef WAY_COSTS_H
#define WAY_COSTS_H
#include "03_tensor_parallel/compare.h"
#include "03_tensor_parallel/experiments/grids.h"

// A step of B sequences. tensor_way_shape() must allow the way on n ranks. The time holds if no
// rank waits for another one.
RankShare way_share(TensorWay way, const ModelConfig *c, size_t B, size_t n, size_t rank);
#endif
