// stop.h: a training that has to end early, because of a signal or of --exit-after, saves and ends with status 4.
#ifndef STOP_H
#define STOP_H
#include "judge/frame/lesson.h"

void stop_require(Run *run);                       // usage_error() where --exit-after cannot work
// Must the run end now? All ranks call it after a step, and get the same answer. step: what the last step took, seconds
bool stop_due(Run *run, double step);
#endif
