// costs.h: the cost lines of 02_1f1b and 03_interleaved: what chapter 04 predicts of a stage, and what they change.
#ifndef PIPELINE_1F1B_COSTS_H
#define PIPELINE_1F1B_COSTS_H
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"

void pipeline_1f1b_costs(Run *run, const Training *t, const StageCosts *seen, const StageCosts *gpipe);
void pipeline_1f1b_loop_costs(Run *run, const Training *t, const StageCosts *loop);        // of pipeline_1f1b itself

// One step on equal stages: what this rank has measured.
typedef struct { Timing timing; size_t in_flight, activations, messages; } EqualStep;      // bytes, peak; calls
void pipeline_1f1b_equal_costs(Run *run, const Stack *stack, size_t m, const EqualStep *gpipe, const EqualStep *seen);
void pipeline_1f1b_table(Run *run);                    // the page's results, of these two steps

// ---- 03_costs.c: v chunks on each stage ----
void interleaved_list_checks(Run *run, size_t p, size_t m, size_t v);          // step time and in flight, from lists
void interleaved_costs(Run *run, const Training *t, size_t v, const StageCosts *seen, const StageCosts *loop);
// stack->chunks is v; one: the same stages with one chunk.
void interleaved_equal_costs(Run *run, const Stack *stack, size_t m, const EqualStep *one, const EqualStep *seen);
// A message of `count` elements between two stages of t ranks; in: this rank is one of them.
void interleaved_scatter_costs(Run *run, size_t count, bool in, size_t t, size_t stage, const Comm *pp, const Comm *tp);
void interleaved_table(Run *run, const Stack *stack, size_t m);
#endif
