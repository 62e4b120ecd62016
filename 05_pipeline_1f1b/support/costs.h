// costs.h: the cost lines of 02_1f1b: what chapter 04 predicts of a stage, and what 1F1B changes.
#ifndef PIPELINE_1F1B_COSTS_H
#define PIPELINE_1F1B_COSTS_H
#include "04_pipeline_naive/support/costs.h"
#include "04_pipeline_naive/support/stack.h"

void pipeline_1f1b_costs(Run *run, const Training *t, const StageCosts *seen, const StageCosts *gpipe);
void pipeline_1f1b_loop_costs(Run *run, const Training *t, const StageCosts *loop);        // of pipeline_1f1b itself

// One step on equal stages: what this rank has measured.
typedef struct { Timing timing; size_t in_flight, activations, messages; } EqualStep;      // bytes, peak; calls
void pipeline_1f1b_equal_costs(Run *run, const Stack *stack, size_t m, const EqualStep *gpipe, const EqualStep *seen);
void pipeline_1f1b_table(Run *run);                    // the page's results, of these two steps
#endif
