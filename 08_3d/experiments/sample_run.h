// sample_run.h: what 08_3d/sample does with its sampler: options, the loop, the checks, what is printed.
#ifndef SAMPLE_RUN_H
#define SAMPLE_RUN_H
#include "08_3d/sampler.h"
#include "judge/frame/lesson.h"

void sample_run(Run *run);
#endif
