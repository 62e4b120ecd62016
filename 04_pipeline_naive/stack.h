// stack.h: a stack of equal blocks, the model for which the closed forms of pipelines are exact. No embedding and no head: the
// first stage starts from numbers drawn for each token, and the last one ends by taking a token's first feature as its loss.
// Backward's GEMMs have exactly twice the FLOPs of forward's, so t_b = 2 t_f.
#ifndef STACK_H
#define STACK_H
#include "04_pipeline_naive/pipeline.h"

// `blocks` blocks on each of p stages; stage i's part, allocated.
Model *stack_new(const ModelConfig *c, size_t blocks, size_t p, size_t i);
// FLOPs of the GEMMs of one block's forward, for `rows` = B*T tokens: qkv, scores, mix, proj, fc, out.
double stack_forward_flops(const ModelConfig *c, size_t rows);
#endif
