// prefetch_costs.h: what a step of ZeRO-3 with prefetch costs, predicted from the sizes of the model alone.
#ifndef PREFETCH_COSTS_H
#define PREFETCH_COSTS_H
#include "06_zero/support/zero_costs.h"
#include "common/lesson/picture.h"

ZeroCosts prefetch_costs, prefetch_costs_kept;     // weights gathered again for backward; kept from forward
// The recorded steps of a training with prefetch and without: communication that the ranks wait for.
void prefetch_beside_zero3(Run *run, const Training *t, const Timing *prefetch, const Timing *zero3);
#endif
