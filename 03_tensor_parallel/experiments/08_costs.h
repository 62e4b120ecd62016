// 08_costs.h: what lesson 08 predicts from sizes alone, held against what was measured.
#ifndef CONTEXT_PARALLEL_COSTS_H
#define CONTEXT_PARALLEL_COSTS_H
#include "03_tensor_parallel/context_parallel.h"
#include "judge/frame/training.h"
#include "judge/draw/picture.h"

enum { CONTEXT_KINDS = 4 };                                // in the order of the table: ring, zigzag, RSA, Ulysses

// The GPT that is trained: what one rank measured in the last step.
typedef struct {
    size_t sent, sums;                                     // bytes: inside the layers; of parameters' gradients
    size_t parameters, gradients, activations;             // bytes; the last a peak
} ContextTrained;
void context_trained_costs(Run *run, const Training *t, int kind, const ContextTrained *r);

// Attention alone: one sequence, `chunk` positions a rank, `heads` heads of D columns.
typedef struct { size_t chunk, heads, D; } ContextSizes;
typedef struct {
    size_t sent, kept, buffers;                            // bytes; of communication, their peak
    Timing forward, backward;
} ContextMeasured;
// What one device does with a whole sequence (kind NULL), or this rank with its positions of it: puts out and the
// gradients of q, k and v. Scores are of several hundreds: their exp is no float.
ContextMeasured context_attend(Run *run, const ContextSizes *z, const AttentionKind *kind, Snapshot *s);
void context_attention_costs(Run *run, const ContextSizes *z, int kind, const ContextMeasured *r);
void context_results(Run *run, const ContextSizes *z);

// How much longer a block's ring attention of n equal zigzag chunks takes than its products: own in step 0, other in
// each of the n-1 other steps; hop: a message of k | v, or of dk | dv. Forward:
//     max(own, hop) + (n-2) max(other, hop) + other                         nothing leaves in the last step
// Backward, where dk | dv leave after the products on the same lane, behind the next k | v:
//     max(own, hop) + (n-2) max(other, 2 hop) + max(other, hop) + hop       the last hop, home, is never hidden
double context_ring_waits(size_t n, double own, double other, double hop, bool backward);
#endif
