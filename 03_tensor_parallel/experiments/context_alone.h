// context_alone.h: the second half of the experiment of 08_ring_attention.c: attention alone, on
// long sequences.
#ifndef CONTEXT_ALONE_H
#define CONTEXT_ALONE_H
#include "03_tensor_parallel/context_parallel.h"
#include "03_tensor_parallel/experiments/context_costs.h"
#include "judge/frame/lesson.h"

extern const AttentionKind *const context_kind[KINDS];
// Costs of one kind: ids "sent.ring" and so on, names "ring: sent in both" and so on.
void context_check_costs(Run *run, int kind, const CostRow *row);

// Runs attention of one sequence, with scores of several hundred, in each kind. Compares output and
// gradients with one device, and checks bytes sent, memory and times.
void context_alone(Run *run, ContextSizes z);
#endif
