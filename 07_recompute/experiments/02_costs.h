// 02_costs.h: what 02_full must cost, from the sizes alone, held against what was measured. Rank i is stage i.
#ifndef FULL_COSTS_H
#define FULL_COSTS_H
#include "07_recompute/experiments/counted.h"
#include "07_recompute/experiments/gpipe_time.h"

extern const char *const full_way_name[WAYS];

typedef struct {
    Counts counts[16];                             // of my layers, in the last step
    size_t parameters, gradients, optimizer, peak; // bytes; peak: of activations, in the last step
    size_t sends, send_bytes, other_bytes;         // messages to neighbours; tied sum, loss and norm; in the last step
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} FullMeasured;

void full_costs(Run *run, const Training *t, Way way, const FullMeasured *got);
void full_results(Run *run, const FullMeasured got[WAYS]);             // the page's table, after the costs of every way
#endif
