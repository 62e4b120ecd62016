// finite.h declares the rule for steps whose loss or gradient norm is not finite. The training
// skips such a step, and ends after too many of these steps in a row. A skipped step changes no
// weight and no optimizer state, because a single NaN in a gradient would reach every weight within
// two steps.
#ifndef FINITE_H
#define FINITE_H
#include "common/model/model.h"

typedef struct {
    size_t skip_most; // --skip-nonfinite: most steps in a row that are skipped
    size_t skipped;   // steps in a row that the training has skipped until now
    bool lost;        // the training has ended, because a number is not finite
} FiniteRule;
// The outcome of a step. STEP_OVERFLOWED: trainer_overflowed() is true. An overflowed step is
// skipped, too, but does not count for skip_most, because a smaller loss scale repairs the next
// step. finite_step() never returns STEP_OVERFLOWED.
typedef enum { STEP_FINITE, STEP_SKIPPED, STEP_OVERFLOWED, STEP_LOST } StepOutcome;
// Decides, between a step's gradients and its update, whether the step counts. All ranks decide the
// same, because all ranks have the same bits of the loss and the norm.
StepOutcome finite_step(FiniteRule *rule, StepResult r);
// Returns whether the weights, or the final gradients, that this rank owns are finite numbers.
bool finite_tensors(const Model *m, UnitTensor what);
#endif
