// 06_costs.h: what a step's compressed all-reduce must cost, from the sizes alone.
#ifndef COMPRESSION_COSTS_H
#define COMPRESSION_COSTS_H
#include "01_data_parallel/compression.h"
#include "common/lesson/lesson.h"

typedef struct {
    double sent;                                   // bytes that rank r of N sends
    size_t calls;
    size_t errors, factors;                        // elements kept between steps: what was not sent; the matrices q
    size_t buffers;                                // elements, at the most, with the factors
} CompressionCosts;
CompressionCosts compression_costs(const ModelConfig *c, const CompressionPlan *plan, size_t N, size_t r);

// What a rank was seen to do in a training and to hold: bytes, but for calls and time.
typedef struct { size_t sent, calls, gradients, kept, buffers, step; } CompressionSeen;     // step: picoseconds
// The cost lines of a method.
void compression_compare_costs(Run *run, const ModelConfig *c, const CompressionPlan *plan, const char *name,
                               size_t steps, const CompressionSeen *is);
#endif
