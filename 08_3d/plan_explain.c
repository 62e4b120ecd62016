// plan_explain.c: see plan.h. One layout, line by line.
#include "08_3d/plan.h"
void plan_explain(Run *run, const PlanTask *t, const PlanResult *r) {
    (void)t;
    say(run, "step %.0f ps", r->step);
}
