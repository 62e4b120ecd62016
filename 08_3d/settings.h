// settings.h: what the trainer's options say. usage_error() for what no training can have.
#ifndef SETTINGS_H
#define SETTINGS_H
#include "08_3d/trainer.h"

ScheduleRule settings_schedule(const char *name);  // of --schedule naive|gpipe|1f1b|zero-bubble
TrainerConfig settings_config(Run *run);           // free() its stage_blocks
Optimizer settings_optimizer(Run *run);
double settings_rate(Run *run, size_t step);       // the learning rate: linear warm-up, then a cosine down to a tenth
size_t settings_steps(Run *run);
void settings_record(Run *run, const TrainerConfig *c);    // in the JSON: what its options do not say
#endif
