// cost.h: checks a cost of a test program. The cost's name is also the cost's id.
#ifndef COST_H
#define COST_H
#include "judge/frame/lesson.h"

static inline void cost(Run *run, const char *name, const char *unit, double predicted,
                        double measured) {
    check_cost(run, name, name, unit, formula(predicted), NOT_PREDICTED, measured);
}
#endif
