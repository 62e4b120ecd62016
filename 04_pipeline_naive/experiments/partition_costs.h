// partition_costs.h: the measurements of a training whose blocks may move between stages
// (04_partition.c), and their checks against predictions from sizes alone.
#ifndef PARTITION_COSTS_H
#define PARTITION_COSTS_H
#include "04_pipeline_naive/experiments/stages.h"
#include "judge/draw/picture.h"

enum { MOST_STAGES = 16, MOST_STEPS = 6 };
// From step GROWN on, the first GROWN_BLOCKS blocks cost GROWTH times as much, because their FLOPs
// are charged to the clock again. Blocks may move before every EVERY-th step.
enum { STEPS = 6, EVERY = 2, GROWN = 3, GROWN_BLOCKS = 3, GROWTH = 3 };

// What this rank sends for one new cut: blocks, and the sums of the costs.
typedef struct { double messages, bytes, sum_bytes; } Moved;
// Measured in a training on this rank.
typedef struct {
    size_t blocks[MOST_STEPS][MOST_STAGES];                    // of each stage, in each step
    Timing timing[MOST_STEPS];
    Moved moved[MOST_STEPS];                                   // before each step
    size_t parameters, optimizer;                              // bytes at the end
} Rebalanced;

// Checks step times, slowest stages, messages, sums, parameters and optimizer state. stays, moved:
// the trainings with the fixed and with the moving cut.
void partition_check_costs(Run *run, const Training *t, const Rebalanced *stays,
                           const Rebalanced *moved);
#endif
