// zero_step.h declares one set of functions for all stages of ZeRO. As in DeepSpeed, stage 0 is
// plain data parallelism. A step of the trainer calls zero_begin(), runs forwards and backwards,
// and calls model_partial_sums() and pipeline_tied_sum(). Then the step calls zero_reduce(),
// model_grad_norm(), optimizer_step() and zero_end().
#ifndef ZERO_STEP_H
#define ZERO_STEP_H
#include "06_zero/zero.h"

// Allocates the model, in place of model_allocate().
void zero_allocate(Model *m, Comm *dp, size_t stage);
void zero_begin(Model *m, size_t stage);
// Completes the sums of the gradients over the replicas. Afterwards own_g is final. Under ZeRO-2
// and ZeRO-3 each backward has reduced its layer's gradient, so only the gradients of the tables
// are reduced here.
void zero_reduce(Model *m, size_t stage);
void zero_end(Model *m, size_t stage);
// Call these two functions before and after forwards without a backward.
void zero_evaluation_begin(Model *m, size_t stage);
void zero_evaluation_end(Model *m, size_t stage);
#endif
