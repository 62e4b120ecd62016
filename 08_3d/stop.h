// stop.h declares a test whether a training has to end early, because of a signal or of
// --exit-after. A training that ends early saves and ends with status 4.
#ifndef STOP_H
#define STOP_H
#include "common/comm/comm.h"

// Returns whether the run must end now, the same on all ranks. Collective. Call this function after
// a step.
// left: seconds until the run must have ended; INFINITY: no limit.
// step: seconds that the last step took.
bool stop_due(double left, double step);
#endif
