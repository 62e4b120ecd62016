// experiments.h: shared by the experiments of chapter 07. A training of a stage, costs in time and
// the utilisations MFU and HFU (measured.c); the paper's figures (published.c); plans and segments
// of blocks (budget_plans.c, search.c, segments.c).
#ifndef RECOMPUTE_EXPERIMENTS_H
#define RECOMPUTE_EXPERIMENTS_H
#include "04_pipeline_naive/experiments/experiments.h"
#include "07_recompute/recompute.h"

static inline size_t larger(size_t a, size_t b) { return a > b ? a : b; }

// ---- measured.c ----
// The last step of a training.
typedef struct {
    double peak, sent;     // bytes: activations of this rank; messages or sums of the layers
    Picoseconds computing; // this rank's time
    Timing timing;         // times of all ranks
} RecomputeSeen;
// Trains a described stage under GPipe's schedule, and frees the model. Rank i of the world is
// stage i.
RecomputeSeen recompute_train(Run *run, const Training *t, Model *m, Trajectory *got);
Picoseconds recompute_computing(void); // time this rank computed in the recorded step
// The share of the devices' FLOPs that was used, as two cells of a table. MFU counts the FLOPs that
// the model needs, HFU all FLOPs that were done.
void recompute_percent(char mfu[32], char hfu[32], const Timing *t, double model_flops);
// Says how much longer the step is than `before`: "2.2 % longer". The wall clock may measure a
// shorter step.
void recompute_longer(char text[32], int decimals, const Timing *t, const Timing *before);

// ---- published.c: for 03_selective. Checks of the paper's figures. ----
void published_figures(Run *run, const ModelConfig *c);

// ---- budget_plans.c: for 04_budget ----
typedef struct {
    BudgetStage stage;
    size_t budget;     // bytes
    Recompute *choice; // [stage.blocks]
} BudgetPlan;
// The sizes of stage i, and a budget at `share` of the way from the least peak to the highest. The
// caller fills choice with budget_choose().
BudgetPlan budget_plan(const Training *t, size_t p, size_t i, double share);
void budget_plan_free(BudgetPlan *plan);
size_t budget_count(const BudgetPlan *plan, Recompute how); // blocks with this choice
// The most bytes that stage i of p holds with these choices.
size_t budget_walked_peak(const Training *t, size_t p, size_t i, const Recompute *choice);

// ---- search.c: for 04_budget ----
// Checks that budget_choose() finds a plan with the least work, by trying every plan.
void budget_search(Run *run);

// ---- segments.c: for 04_budget ----
enum { SEGMENTS_BLOCKS = 64 }; // blocks of the model of which segments are made
// Trains with segments of every k-th block, and with whole stages as segments.
void segments_train(Run *run, Training t);
#endif
