// finite.h: which steps a training skips because their loss or gradient norm is not finite, and
// when it ends. A single NaN in a gradient reaches every weight within two steps, so such a step
// changes nothing.
#ifndef FINITE_H
#define FINITE_H
#include "common/model/model.h"

typedef struct {
    // --skip-nonfinite: how many steps in a row may be skipped
    size_t skip_most;
    size_t skipped;                                // in a row, until now
    bool lost;                                     // the training has ended
} FiniteRule;
// Between a step's gradients and its update; the same on all ranks, because the loss is a sum
// over the world, added in rank order, and the norm comes from bits that all replicas have
// alike, or is such a sum.
typedef enum { STEP_FINITE, STEP_SKIPPED, STEP_LOST } StepOutcome;
StepOutcome finite_step(FiniteRule *rule, StepResult r);
// Are the weights, or the final gradients, that this rank owns finite numbers?
bool finite_tensors(const Model *m, UnitTensor what);
#endif
