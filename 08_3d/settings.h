// settings.h declares functions that turn texts of the trainer's options into values, and compute
// the learning rate.
#ifndef SETTINGS_H
#define SETTINGS_H
#include "08_3d/trainer.h"

// Returns the rule of --schedule. The rule of "interleaved" is 1F1B's, which is right for one chunk
// per stage. For several chunks trainer_schedule() takes another rule.
ScheduleRule settings_schedule(const char *name);
// Returns whether a stage of this schedule may have several chunks.
bool settings_interleaved(const char *name);
TensorKind settings_tensor(const char *name);
Recompute settings_recompute(const char *name);
// Turns a list such as "3,4,3" into {3, 4, 3}: the blocks of each of pp stages, or of each chunk,
// in model order. The caller frees the list. Calls usage_error() if text is not such a list.
// text NULL: the result is NULL.
// layers: the number of blocks of the model.
size_t *settings_stage_blocks(const char *text, size_t pp, size_t chunks, size_t layers);

// The learning rate rises linearly to the highest rate in `warmup` steps. Then the rate falls along
// a cosine to the lowest rate, which the rate keeps from step `decay` on.
// lowest: the lowest rate, as a share of the highest rate.
typedef struct {
    double highest, lowest;
    size_t warmup, decay;
} RateRule;
double settings_rate(const RateRule *rule, size_t step);
#endif
