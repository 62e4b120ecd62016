// zero.h: data parallelism without N copies of everything (Rajbhandari et al. 2020, ZeRO; PyTorch calls stage 3 FSDP).
//
// Rank r of N owns part r of every unit: shard_range of its flat elements, across tensor borders. It keeps optimizer
// state for that part, and, from stage 2, gradients, and, from stage 3, weights:
//
//     bytes a parameter between steps   weights  gradients  m, v   sent per step, units of (N-1)/N of the model
//     data parallel (fp32, AdamW)          4        4        8      2   all-reduce of gradients
//     stage 1                              4        4        8/N    2   reduce-scatter, all-gather of weights
//     stage 2                              4        4/N      8/N    m + 1: each micro-batch's gradients are reduced
//     stage 3                              4/N      4/N      8/N    3m: weights gathered forward and backward, too
//
// A unit in flight (gathered weights, a whole gradient on its way) is MEM_COMMUNICATION. The tied embedding is used at
// both ends of a step, so stage 3 gathers it once and keeps it to the end, and stages 2 and 3 reduce it once.
//
// The order of a step: zero_begin, forwards and backwards, [tied sum], zero_reduce, norm, optimizer_step, zero_end.
#ifndef ZERO_H
#define ZERO_H
#include "common/model/model.h"

// In place of model_allocate(): cuts every unit over dp, allocates what the stage keeps, wraps the layers (stages 2
// and 3).
void zero_allocate(Model *m, Comm *dp, size_t stage);
void zero_gather(Model *m);                        // stage 3 gathers the tied embedding: all that forwards alone need
void zero_begin(Model *m);                         // that, and gradients start at zero
void zero_reduce(Model *m);                        // what backward has not yet reduced; own_g is final then
void zero_drop(Model *m);                          // what the tied embedding holds whole; part of zero_reduce
void zero_end(Model *m);                           // stages 1 and 2 gather the updated weights
#endif
