// step_time.h: how long a step of a layout takes on the simulated clock, from sizes alone: the cost model's products,
// rings and messages (common/model/costs.h), played through the schedule. No model, no run.
#ifndef STEP_TIME_H
#define STEP_TIME_H
#include "08_3d/trainer.h"

// Picoseconds, from the first forward to the gradient's norm and ZeRO's gather. Not for --prefetch and --overlap, which
// hide communication.
double step_time(const TrainerConfig *c);
// The layout dp x tp x pp of the same ranks, with all else the same, that takes the least time; *time is its step.
Degrees step_time_best(const TrainerConfig *c, double *time);
#endif
