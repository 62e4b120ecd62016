// zero_costs.h: what a step of each stage costs, predicted from the sizes of the model alone and measured: bytes held,
// bytes and calls sent, FLOPs and time.
#ifndef ZERO_COSTS_H
#define ZERO_COSTS_H
#include "judge/frame/training.h"

// Of the recorded step of t, the last one. dp has counted that step.
typedef void ZeroCosts(Run *run, Comm *dp, const Training *t);
ZeroCosts zero1_costs, zero2_costs, zero3_costs;

// ---- What prefetch_costs.c has in common with the stages. ----
size_t zero_sequences(const Training *t, size_t n, size_t rank, size_t k);         // of a rank's micro-batch k
size_t zero_activations(const Training *t, size_t n, size_t rank);                 // kept for backward, at most
double zero_scalars_bytes(const ModelConfig *c, size_t n);                         // loss and norm, all-reduced
void zero_cost(Run *run, size_t m, const char *name, const char *unit, double predicted, double measured);
#endif
