// 12_costs.h: the ways of this chapter side by side: what each is predicted to keep and to receive, tables, and the
// crossover of 1D and 2D.
#ifndef COMPARE_COSTS_H
#define COMPARE_COSTS_H
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/support/costs.h"
#include "common/lesson/training.h"

typedef enum { WAY_1D, WAY_SP, WAY_2D, WAY_25D, WAY_3D, WAY_RING, WAYS } CompareWay;
extern const char *const compare_name[WAYS];
typedef struct { size_t q, depth; } CompareShape;          // q 0: not on so many ranks
CompareShape compare_shape(CompareWay way, size_t ranks);

// What one rank measured: bytes of the last step; ps over the first link and over the second one.
typedef struct { size_t parameters, activations, received; Picoseconds time[2]; } CompareMeasured;
void compare_costs(Run *run, const Training *t, CompareWay way, const CompareMeasured *r);
const ClockLink *compare_link(int i);                      // --link's two
void compare_results(Run *run, const Training *t, const CompareMeasured measured[WAYS]);
void compare_plot(Run *run);                               // what a rank receives for a block, against tokens
void compare_block(Run *run);                              // from sizes alone: a block of GPT-3's width on 64 ranks
void compare_crossover(Run *run);                          // 1D and 2D
#endif
