// experiments.h: modules that the experiments of chapters 04 and 05 share: trainings of stages
// (stages.h), stacks of equal stages (stack.h), costs from sizes (costs.h), and lists played
// without a model (timeline.h).
#ifndef PIPELINE_EXPERIMENTS_H
#define PIPELINE_EXPERIMENTS_H
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "04_pipeline_naive/experiments/stages.h"
#include "04_pipeline_naive/experiments/timeline.h"

void partition_planner(Run *run);  // planner.c: the best stages with replicas
void partition_cuts(Run *run);     // cuts.c: partition_min_max finds the best of all cuts
// Tries all cuts of cost [n] into p parts. Returns the smallest value that the largest part can
// have.
double partition_exhaustive(const double *cost, size_t n, size_t p);
#endif
