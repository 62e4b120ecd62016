// 04_costs.h: the sizes from which 04_budget plans, and what its plans must cost, held against what was measured.
#ifndef BUDGET_COSTS_H
#define BUDGET_COSTS_H
#include "07_recompute/recompute.h"
#include "07_recompute/experiments/counted.h"
#include "judge/frame/training.h"

enum { BUDGET_WAYS = 4, BUDGET_DRAWN = 2, BUDGET_SEGMENTS = 4 };
extern const char *const budget_name[BUDGET_WAYS];
// Where the budget lies between the least peak that there is, 0, and that of keeping everything, 1.
extern const double budget_share[BUDGET_WAYS];

typedef struct {
    BudgetStage stage;
    size_t budget;                                 // bytes
    Recompute *choice;                             // [stage.blocks]
} BudgetPlan;
BudgetPlan budget_plan(const Training *t, size_t p, size_t i, double share);   // of stage i of p; budget_plan_free()
void budget_plan_free(BudgetPlan *plan);

typedef struct {
    Counts counts[100];                            // of my layers, in the last step
    size_t peak;                                   // bytes of activations, in the last step
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} BudgetMeasured;

void budget_costs(Run *run, const Training *t, size_t way, const BudgetPlan *plan, const BudgetMeasured *got);
void budget_results(Run *run, const BudgetMeasured got[BUDGET_WAYS]);
// Every k-th block's input is kept.
void segment_costs(Run *run, const char *name, const Training *t, size_t k, const BudgetMeasured *got);
void segment_results(Run *run, const Training *t, const size_t every[BUDGET_SEGMENTS]);

// budget_choose() held against all plans there are, on random stages of a few unequal blocks. 04_search.c.
void budget_search(Run *run);
#endif
