// settings.h: what the trainer's options say. usage_error() for what no training can have.
#ifndef SETTINGS_H
#define SETTINGS_H
#include "08_3d/trainer.h"

// Of --schedule; interleaved stages of one chunk: 1F1B's.
ScheduleRule settings_schedule(const char *name);
TensorKind settings_tensor(const char *name);      // of --tensor 1d|2d|2.5d|3d
TrainerConfig settings_config(Run *run);           // free() its stage_blocks
Optimizer settings_optimizer(Run *run);
// The learning rate: linear warm-up, then a cosine down to --min-lr, which it has from step
// --decay-steps on.
double settings_rate(Run *run, size_t step);
size_t settings_steps(Run *run);
void settings_record(Run *run, const TrainerConfig *c);    // in the JSON: what its options do not say
#endif
