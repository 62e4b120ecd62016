// step_lines.h declares functions that write the table of the steps. The table has a line for the
// first and the last step, for each tenth of the steps, and about every ten seconds. Speed, time
// left and MFU are always in real time, also under the simulated clock.
#ifndef STEP_LINES_H
#define STEP_LINES_H
#include "08_3d/trainer.h"

enum { STEP_LINE = 240 };
typedef struct {
    size_t from, steps;
    // FLOPs of the unsplit model's step, without recomputation.
    double flops;
    double at_once; // ranks that compute at the same time
    // FLOP/s of one rank in a product of matrices; 0: not measured yet
    double peak;
    // begun: the time before the first step. shown: the time of the last line.
    double begun, shown;
    // Moving sums over the steps; `counted` sums 1 per step. The ratio of two of these sums is a
    // moving mean.
    double counted, tokens, seconds;
} StepLines;
StepLines step_lines_begin(const TrainerConfig *c, size_t from, size_t steps); // collective
// Counts a step, which took `seconds`. Call this function after each step that was not skipped.
// Returns true if `line` holds a line to print; only rank 0 has lines.
// scale: the factor of the step's loss scale; 0: the line shows no factor.
bool step_lines_add(StepLines *s, size_t step, StepResult r, double lr, double scale, size_t tokens,
                    double seconds, char line[STEP_LINE]);
#endif
