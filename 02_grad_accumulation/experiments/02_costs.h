// 02_costs.h: what 02_accumulate must cost, from the sizes alone, held against what was measured.
#ifndef ACCUMULATION_COSTS_H
#define ACCUMULATION_COSTS_H
#include "judge/frame/training.h"
#include "judge/draw/picture.h"

// Bytes of one training: the peak of the activations in its last step, and the buffers.
typedef struct { size_t activations, parameters, gradients, optimizer; } AccumulationBytes;

// t: the batch in micro-batches. got: its training; whole: the training that takes the batch at once. both: the time of
// forward and backward of one batch at once, and then in micro-batches.
void accumulation_costs(Run *run, const Training *t, const AccumulationBytes *got, const AccumulationBytes *whole,
                        const Timing *both);
#endif
