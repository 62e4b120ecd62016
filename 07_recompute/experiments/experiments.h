// experiments.h: shared by the experiments of chapter 07. A layer that counts the forwards of a
// block, costs of one way to recompute, the two utilisations MFU and HFU (counted.c); predictions
// for a pipeline's stages (stage_costs.c); the paper's figures (published.c); plans compared with
// exhaustive search (search.c); segments of blocks (segments.c).
#ifndef RECOMPUTE_EXPERIMENTS_H
#define RECOMPUTE_EXPERIMENTS_H
#include "07_recompute/recompute.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

// ---- counted.c ----
// How often a block ran its forward, and how often it rebuilt only its attention probabilities.
typedef struct {
    size_t forwards, rebuilds;
} Counts;
// Wraps the blocks of a described model; call it before recompute(). counts [m->n_layers] belongs
// to the caller: one per layer.
void counted_wrap_blocks(Model *m, Counts *counts);
Counts counted_sum(const Counts *counts, size_t n);

Picoseconds counted_computing(void); // time this rank computed in the recorded step
// Checks a cost of one way to recompute, predicted by a formula or by a recurrence. The id becomes
// "blocks.peak", the name "recompute blocks: activation peak".
typedef struct {
    const char *id, *name;
} WayName;
void way_cost(Run *run, WayName way, const char *id, const char *name, const char *unit,
              double predicted, double measured);
void way_cost_played(Run *run, WayName way, const char *id, const char *name, const char *unit,
                     double predicted, double measured);
// The share of the devices' FLOPs that was used. MFU counts the FLOPs that the model needs, HFU all
// FLOPs that were done. counted_utilisations() prints both with --verbose; counted_percent() gives
// two cells of a table.
void counted_utilisations(Run *run, const char *way, const Timing *t, double model_flops);
void counted_percent(char mfu[32], char hfu[32], const Timing *t, double model_flops);

// One step of a stage in GPipe's order: m forwards, m backwards with their messages
// (04_pipeline_naive), the tied sum, the optimizer. pp: all stages; tied: the first and the last,
// NULL on others.
typedef struct {
    Comm *pp, *tied;
    Counts counts[100];
} RecomputeStage;
StepResult recompute_stage_step(void *stage, Model *m, Optimizer *o, const Training *t,
                                const Batch *batch);

// ---- stage_costs.c: for 02_full ----
typedef enum { KEEP_EVERYTHING, RECOMPUTE_BLOCKS, RECOMPUTE_STAGES, FULL_WAYS } Way;
// elements at the peak, stage i of p
size_t way_kept(const Training *t, size_t p, size_t i, Way way);
Work way_work(const Training *t, size_t p, size_t i, Way way); // of stage i in a step
double way_step_time(const Training *t, size_t p, Way way);    // picoseconds

// ---- published.c: for 03_selective. Checks; --verbose prints the tables. ----
void published_items(Run *run, const ModelConfig *c);
void published_figure7(Run *run);
void published_overhead(Run *run);

// ---- 04_budget.c, budget_costs.c, search.c, segments.c: for 04_budget ----
// Measured in the last step of a stage.
typedef struct {
    Counts counts;         // of all its layers
    size_t peak;           // bytes of activations
    Picoseconds computing; // of this rank
    Timing timing;         // of all ranks
} StageMeasured;
// Trains a stage whose blocks recompute as choice says; choice NULL: segments of k blocks.
StageMeasured budget_train(Comm *pp, const Training *t, const Recompute *choice, size_t k,
                           Trajectory *c);
CutSizes budget_sizes(const Training *t, size_t p, size_t i); // of stage i of p
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
void budget_costs(Run *run, const Training *t, WayName name, const BudgetPlan *plan,
                  const StageMeasured *got);
// Compares budget_choose() with all possible plans, on random stages of a few unequal blocks.
void budget_search(Run *run);
// Trains with segments of every k-th block, and with whole stages as segments.
void budget_segments(Run *run, Comm *pp, Training t);
enum { BUDGET_LONG = 64 }; // blocks of the model of which segments are made
#endif
