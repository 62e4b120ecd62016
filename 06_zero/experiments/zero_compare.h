// zero_compare.h: a stage of ZeRO trains for some steps, and is compared with data parallelism and the unsplit model.
#ifndef ZERO_COMPARE_H
#define ZERO_COMPARE_H
#include "06_zero/experiments/zero_costs.h"

typedef struct {
    const char *name;                              // "ZeRO-1"
    size_t stage;
    void (*allocate)(Model *m, Comm *dp);
    Step *step;                                    // its first argument is dp
    ZeroCosts *costs;
    void (*free)(Model *m);                        // what allocate has made beside the model; NULL: nothing
} ZeroLesson;

// From --steps, --batch, --dropout and --seed: one micro-batch, no optimizer yet. usage_error() for what cannot work.
Training zero_training(Run *run, const Comm *dp, const ModelConfig *model);
// name: of the training. limit: of gradients and weights against data parallelism; 0: every bit. The costs
// follow where t is recorded.
void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, const char *name, double limit);
// zero_allocate() to zero_evaluation_end(), which the trainer calls: all stages must find the same losses and norms,
// and the same loss of the weights that they leave behind.
void zero_check_stages(Run *run, Comm *dp, Training t);
#endif
