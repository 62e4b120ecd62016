// 04_costs.h: what 04_partition predicts, from sizes alone; the cuts by other ways that it is compared with; its table;
// and PipeDream's planner.
#ifndef PARTITION_COSTS_H
#define PARTITION_COSTS_H
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

enum { MOST_STAGES = 16, MOST_STEPS = 6 };

// ---- Other cuts of cost [n] into p neighbouring parts, none empty: all of them are tried. ----
double partition_exhaustive(const double *cost, size_t n, size_t p);           // the smallest largest part
double partition_max_min(const double *cost, size_t n, size_t p);      // its largest part, where max - min is least
double partition_largest(const double *cost, size_t p, const size_t *first);   // of this cut

// ---- What a training did, and what it should have. ----
typedef struct { double messages, bytes, sum_bytes; } Moved;           // sent by this rank between two steps
typedef struct {
    size_t blocks[MOST_STEPS][MOST_STAGES];                            // of each stage, in each step
    Timing timing[MOST_STEPS];
    Moved moved[MOST_STEPS];                                           // before each step
    size_t parameters, optimizer;                                      // bytes at the end
} Rebalanced;
// Which blocks cost how much more, from which step on; the cut is solved every so many steps.
typedef struct { size_t blocks, times, from, every; } Growth;
void partition_blocks(Run *run, size_t layers, size_t *blocks);        // --blocks; 3, 4, 3; as equal as possible
void partition_cost_lines(Run *run, const Training *t, Growth g, const Rebalanced *stays, const Rebalanced *moved);

// ---- 04_planner.c: PipeDream's planner (Harlap et al. 2018, section 3.2), where a stage may have replicas. ----
void planner(Run *run);
#endif
