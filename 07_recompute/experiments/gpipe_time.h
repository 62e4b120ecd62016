// gpipe_time.h: how long a step of GPipe takes when backward computes some of the forward again: from sizes alone, for
// stages that need not be equal.
#ifndef GPIPE_TIME_H
#define GPIPE_TIME_H
#include "judge/frame/training.h"
#include "common/model/costs.h"

typedef enum { KEEP_EVERYTHING, RECOMPUTE_BLOCKS, RECOMPUTE_STAGES, WAYS } Way;
Work gpipe_time_work(const Training *t, size_t p, size_t i, Way way);  // of stage i, in a step
double gpipe_time_step(const Training *t, size_t p, Way way);               // picoseconds
#endif
