// 06_costs.h: what a step's compressed all-reduce must cost, from the sizes alone.
#ifndef COMPRESSION_COSTS_H
#define COMPRESSION_COSTS_H
#include "01_data_parallel/compression.h"
#include "judge/frame/lesson.h"
#include "common/model/costs.h"

typedef struct {
    double sent;                                   // bytes that rank r of N sends
    size_t calls;
    size_t errors, factors;                        // elements kept between steps: what was not sent; the matrices q
    size_t buffers;                                // elements, at the most, with the factors
} CompressionCosts;
// Of what one of N replicas has: a whole model, or what a pipeline stage and a slice leave of it.
CompressionCosts compression_costs(const CutSizes *z, const CompressionPlan *plan, size_t N, size_t r);
// Picoseconds of TOP_K or POWER_SGD on the simulated clock, from when the last replica has come; near: the N ranks
// share a node. The choice of the largest elements and Gram and Schmidt take no time there: it counts products only.
double compression_time(const CutSizes *z, const CompressionPlan *plan, size_t N, bool near);

// What a rank was seen to do in a training and to hold: bytes, but for calls and time.
typedef struct { size_t sent, calls, gradients, kept, buffers, step; } CompressionSeen;     // step: picoseconds
// The cost lines of a method.
void compression_compare_costs(Run *run, const ModelConfig *c, const CompressionPlan *plan, const char *name,
                               size_t steps, const CompressionSeen *is);
#endif
