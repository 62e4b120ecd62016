// 12_costs.h: the ways of this chapter side by side: what each is predicted to keep and to receive, tables, and the
// crossover of 1D and 2D.
#ifndef TENSOR_WAYS_H
#define TENSOR_WAYS_H
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "judge/frame/training.h"

typedef enum { WAY_1D, WAY_SP, WAY_2D, WAY_25D, WAY_3D, WAY_RING, WAYS } TensorWay;
extern const char *const tensor_ways_name[WAYS];
typedef struct { size_t q, depth; } TensorWayShape;          // q 0: not on so many ranks
TensorWayShape tensor_ways_shape(TensorWay way, size_t ranks);

// What one rank measured: bytes of the last step; ps over the first link and over the second one.
typedef struct { size_t parameters, activations, received; Picoseconds time[2]; } TensorWayMeasured;
void tensor_ways_costs(Run *run, const Training *t, TensorWay way, const TensorWayMeasured *r);
const ClockLink *tensor_ways_link(int i);                      // --link's two
void tensor_ways_results(Run *run, const Training *t, const TensorWayMeasured measured[WAYS]);
void tensor_ways_plot(Run *run);                               // what a rank receives for a block, against tokens
void tensor_ways_block(Run *run);                              // from sizes alone: a block of GPT-3's width on 64 ranks
void tensor_ways_crossover(Run *run);                          // 1D and 2D
#endif
