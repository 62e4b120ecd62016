// trainings.h: what the lessons of ZeRO's stages do alike: train for some steps, and hold that against data parallelism
// and the unsplit model. The step, its costs and what must be equal in every bit stand in each lesson.
#ifndef TRAININGS_H
#define TRAININGS_H
#include "06_zero/costs.h"

typedef struct {
    size_t stage;
    Step *step;
    void (*costs)(Run *run, Comm *dp, const Training *t);      // predicted and measured, of the recorded step
} ZeroLesson;

// From --steps, --batch, --dropout and --seed: one micro-batch, no optimizer yet. usage_error() for what cannot work.
Training zero_training(Run *run, const Comm *dp, const ModelConfig *model);
// limit: of gradients and weights against data parallelism; 0: every bit. The costs and the picture follow where t is
// recorded.
void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, const char *name, double limit);
#endif
