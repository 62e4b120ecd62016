// zero_costs.h: what a step of each stage costs, predicted from the sizes of the model alone and measured: bytes held,
// bytes and calls sent, FLOPs and time.
#ifndef ZERO_COSTS_H
#define ZERO_COSTS_H
#include "common/lesson/training.h"

// Of the recorded step of t, the last one. dp has counted that step.
typedef void ZeroCosts(Run *run, Comm *dp, const Training *t);
ZeroCosts zero1_costs, zero2_costs, zero3_costs;
#endif
