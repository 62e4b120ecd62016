// experiments.h: what the experiments of this chapter share, and those of chapter 05 with them:
// trainings of stages (stages.h), stacks of equal stages (stack.h), costs from sizes (costs.h), and
// lists played without a model (timeline.h).
#ifndef PIPELINE_EXPERIMENTS_H
#define PIPELINE_EXPERIMENTS_H
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "04_pipeline_naive/experiments/stages.h"
#include "04_pipeline_naive/experiments/timeline.h"

void partition_planner(Run *run);  // planner.c: the best stages with replicas
#endif
