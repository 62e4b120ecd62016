// train_costs.h: what a step of the trainer has cost, beside predict.h's formulas, and the table that a page shows.
#ifndef TRAIN_COSTS_H
#define TRAIN_COSTS_H
#include "08_3d/trainer.h"
#include "judge/draw/picture.h"

// The mesh, with the blocks of each stage.
void train_show_mesh(Run *run, const TrainerConfig *c);
// Starts the ledgers anew; train_costs_end() compares what the step in between has cost with the formulas.
void train_costs_begin(Trainer *t);
void train_costs_end(Run *run, Trainer *t);
// Traffic by group and the link that it takes, and memory by category. After train_costs_end.
void train_results(Run *run, const Trainer *t);
// Which dp x tp x pp of the same ranks would have been faster on the simulated clock, all else the same. Silent where
// the cost model (step_time.h) does not have this step: under real time, with --prefetch or --overlap.
void train_say_faster(Run *run, const Trainer *t, const Timing *timing);
#endif
