// experiments.h: what the experiments of this chapter share: how much does a model really compute?
// A counting layer around a block; costs of one way to recompute; the two utilisations, MFU and
// HFU. (counted.c)
#ifndef RECOMPUTE_EXPERIMENTS_H
#define RECOMPUTE_EXPERIMENTS_H
#include "07_recompute/recompute.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

// Of one block: whole forwards, and attention probabilities alone.
typedef struct { size_t forwards, rebuilds; } Counts;
// Wraps the blocks of a described model; call it before recompute(). counts [m->n_layers] is the
// caller's, one for each layer.
void counted_wrap_blocks(Model *m, Counts *counts);
Counts counted_sum(const Counts *counts, size_t n);

Picoseconds counted_computing(void);    // how long this rank computed in the recorded stretch
// A cost of one way to recompute, by formula and by a recurrence. Its id is "blocks.peak", its name
// "recompute blocks: activation peak".
typedef struct { const char *id, *name; } WayName;
void way_cost(Run *run, WayName way, const char *id, const char *name, const char *unit,
              double predicted, double measured);
void way_cost_played(Run *run, WayName way, const char *id, const char *name, const char *unit,
                     double predicted, double measured);
// The share of the devices' FLOPs that was used: counting those that the model asks for (MFU), and
// all that were done (HFU). Printed with --verbose; and as two cells of a table of results.
void counted_utilisations(Run *run, const char *way, const Timing *t, double model_flops);
void counted_percent(char mfu[32], char hfu[32], const Timing *t, double model_flops);

// One step of a stage: m forwards, m backwards with their messages (04_pipeline_naive), the tied
// sum, the optimizer.
// all stages; {first, last}, or NULL
typedef struct { Comm *pp, *tied; Counts counts[100]; } RecomputeStage;
StepResult recompute_stage_step(void *stage, Model *m, Optimizer *o, const Training *t,
                                const Batch *batch);

// 04_budget: budget_choose() beside all plans there are, on random stages of a few unequal blocks.
// search.c.
void budget_search(Run *run);
#endif
