// prefetch_costs.h: what a step of ZeRO-3 with prefetch costs, predicted from the sizes of the model alone.
#ifndef PREFETCH_COSTS_H
#define PREFETCH_COSTS_H
#include "06_zero/experiments/zero_page.h"

ZeroCosts prefetch_costs, prefetch_costs_kept;     // weights gathered again for backward; kept from forward
// The page: a step of ZeRO-3 without prefetch and with it, of one micro-batch in pictures, and of one and of t's in a
// table.
void prefetch_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, bool reshard);
#endif
