// finite.h: what a training does about a step that has no finite loss or gradient norm, and about weights that are no
// finite numbers. A single NaN in a gradient reaches every weight within two steps, so such a step changes nothing.
#ifndef FINITE_H
#define FINITE_H
#include "08_3d/trainer.h"

typedef struct {
    size_t skip_most;                              // --skip-nonfinite: how many steps in a row may be skipped
    size_t skipped;                                // in a row, until now
    bool lost;                                     // the training has ended: a check has failed and said why
} FiniteRule;
FiniteRule finite_rule(Run *run);                  // usage_error() beside options that need every step's gradient

// The three functions below are collective, and answer the same on all ranks.
// Between a step's gradients and its update. STEP_LOST: the page says which rank was first, and from where to
// resume.
typedef enum { STEP_FINITE, STEP_SKIPPED, STEP_LOST } StepOutcome;
StepOutcome finite_step(Run *run, FiniteRule *rule, const Trainer *t, size_t step, StepResult r);
// Before the weights are saved or judged. done: how many steps they have seen. False: the training is lost.
bool finite_weights(Run *run, FiniteRule *rule, const Trainer *t, size_t done);
bool finite_held_out(Run *run, FiniteRule *rule, double loss);
#endif
