// experiments.h: declares the functions that the experiments of chapter 07 share.
#ifndef RECOMPUTE_EXPERIMENTS_H
#define RECOMPUTE_EXPERIMENTS_H
#include "04_pipeline_naive/experiments/experiments.h"
#include "07_recompute/recompute.h"

static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

// ---- measured.c ----
// The measurements of a training. Peaks and times are of the last step.
typedef struct {
    double peak, workspace; // peak bytes of this rank: activations, and workspace
    double sent;            // bytes per step: of a stage's messages, or of the layers' all-reduces
    Picoseconds computing;  // time in which this rank computed
    Timing timing;          // times of all ranks
} RecomputeSeen;
// Describes this rank's stage of the model. Rank i of the world is stage i.
Model *recompute_stage(Run *run, const Training *t);
// Allocates the described stage m, trains m under GPipe's schedule, and frees m. Checks that the
// training equals the unsplit training in every bit.
RecomputeSeen recompute_train(Run *run, const Training *t, Model *m, const char *name,
                              Trajectory *unsplit);
// Returns the work of a stage in a step. The work has three forwards, because a backward has two
// products for each product of a forward. The work also has the second forwards of `full` blocks
// and the second computation of the scores in `selective` blocks. If `head` is true, the work also
// has the second forward of the stage's head.
Work recompute_work(const Training *t, const CutSizes *z, double full, double selective, bool head);
// Shows the recorded step and its memory on the page (the program's output) and in files, if
// `drawn` is true. Otherwise shows the step only with --verbose, and not in files.
void recompute_show(Run *run, const char *title, bool drawn, const Timing *t);
// Fills in the cells of the table of results and prints the table. `way` has the prefixes of the
// costs' ids. The first way recomputes nothing. The rows are peak, bytes sent, FLOPs, step, MFU,
// and perhaps HFU. MFU counts only the FLOPs of the first way, and HFU counts all FLOPs.
void recompute_results(Run *run, const char *const *way, const RecomputeSeen *seen,
                       const char *const *columns, Result *row);
const char *recompute_peak(Run *run, const char *way); // returns the cost WAY.peak as a text
// Returns how much longer the step of t is than the step of `before`, such as "2.2 % longer". The
// wall clock may measure a shorter step. Then the text ends with "shorter".
const char *recompute_longer(Run *run, int decimals, const Timing *t, const Timing *before);

// ---- budget_plans.c: for 04_budget ----
typedef struct {
    BudgetStage stage;
    size_t budget;     // bytes
    Recompute *choice; // [stage.blocks]
} BudgetPlan;
// Returns the sizes of stage i of p, and a budget. With share 0 the budget is the peak of
// recomputing every block, and with share 1 the peak of keeping everything. The caller fills
// `choice` with budget_choose().
BudgetPlan budget_plan(const Training *t, size_t p, size_t i, double share);
void budget_plan_free(BudgetPlan *plan);
size_t budget_count(const BudgetPlan *plan, Recompute how); // counts blocks whose choice is `how`
// Returns the most bytes that stage i of p holds with these choices.
size_t budget_walked_peak(const Training *t, size_t p, size_t i, const Recompute *choice);
#endif
