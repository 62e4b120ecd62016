// finite.c holds the rule for steps that are not finite, and the test of a rank's tensors.
#include "08_3d/finite.h"
#include <math.h>

StepOutcome finite_step(FiniteRule *rule, StepResult r) {
    if (isfinite(r.loss) && isfinite(r.norm)) {
        rule->skipped = 0;
        return STEP_FINITE;
    }
    if (rule->skipped < rule->skip_most) {
        rule->skipped++;
        return STEP_SKIPPED;
    }
    rule->lost = true;
    return STEP_LOST;
}

// A sum is not finite if an element is not finite.
bool finite_tensors(const Model *m, UnitTensor what) {
    double sum = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        if (!u->tied_to && range_size(u->own)) sum += tensor_sum(unit_own(u, what));
    }
    return isfinite(sum);
}
