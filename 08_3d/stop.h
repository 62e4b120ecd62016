// stop.h: a training that has to end early, because of a signal or of --exit-after, saves and
// ends with status 4.
#ifndef STOP_H
#define STOP_H
#include "common/comm/comm.h"

// Must the run end now? Collective after a step, with the same answer on all ranks.
// left: seconds until the run must have ended; INFINITY: no limit.
// step: seconds that the last step took.
bool stop_due(double left, double step);
#endif
