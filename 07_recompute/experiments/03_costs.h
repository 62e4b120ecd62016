// 03_costs.h: what 03_selective must cost, from the sizes alone, held against what was measured; and what the paper
// (Korthikanti et al. 2022) publishes, recomputed.
#ifndef SELECTIVE_COSTS_H
#define SELECTIVE_COSTS_H
#include "07_recompute/recompute.h"
#include "07_recompute/experiments/counted.h"
#include "judge/frame/training.h"

extern const char *const selective_way_name[];     // of every Recompute

typedef struct {
    Counts counts[8];                              // of every layer, in the last step
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations, in the last step
    size_t calls, bytes;                           // all-reduces of its layers, in the last step
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} SelectiveMeasured;

// All ranks of the run are one tensor-parallel group.
void selective_costs(Run *run, const Training *t, Recompute how, const SelectiveMeasured *got);
// The page's table, after the costs of every way.
void selective_results(Run *run, const Training *t, const SelectiveMeasured got[RECOMPUTE_FULL + 1]);
// The paper's list of a block's items beside this tree's, its figure 7, and the extra work it states.
void selective_published(Run *run, const ModelConfig *c);
#endif
