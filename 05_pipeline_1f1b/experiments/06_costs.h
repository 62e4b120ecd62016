// 06_costs.h: what 06_zero_bubble predicts, from sizes and lists alone, and its table.
#ifndef ZERO_BUBBLE_COSTS_H
#define ZERO_BUBBLE_COSTS_H
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// A way to make the lists; twice: of two steps without a barrier in between, m the micro-batches of both; units: made
// for F = B = W = 1; draw: what --draw calls it.
enum { ZB_WAYS = 4 };
typedef struct { const char *name, *draw; ScheduleRule rule, twice, units; } ZeroBubbleWay;
typedef struct { Played one; Picoseconds two; size_t messages; } ZeroBubbleStep;       // what this rank has measured

OpTimes zb_times(const Stack *s);                          // F, B, W and a message under the simulated clock
// The lists that this rule makes for p stages: the time of a step, SIZE_MAX for a deadlock; most micro-batches on a
// stage between their forward and their W; whether no stage gets stuck, and every forward, B and W stands there once,
// each kind in ascending order.
typedef struct { size_t step, in_flight; bool legal; } JudgedLists;
JudgedLists zb_judge(ScheduleRule rule, size_t p, size_t m, const OpTimes *times);

// Most bytes of activations on stage i of equal ones, which works down this list.
size_t zb_stack_peak(const Stack *stack, const Schedule *list, size_t p, size_t i);
void zb_equal_costs(Run *run, const Stack *stack, size_t m, const ZeroBubbleWay *ways, const ZeroBubbleStep *seen);
void zb_costs(Run *run, const Training *t, const ZeroBubbleWay *way, const StageCosts *seen);
void zb_table(Run *run, const ZeroBubbleWay *ways, const Stack *stack, size_t m);     // after the costs
#endif
