// costs.h: what stage i of p costs, predicted from sizes alone: no Model and no ledger is asked. Chapters 04, 05.
#ifndef PIPELINE_COSTS_H
#define PIPELINE_COSTS_H
#include "04_pipeline_naive/experiments/stages.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"

// ---- stage_costs.c: whatever the order of forwards and backwards is ----
CutSizes stage_sizes(const ModelConfig *c, size_t p, size_t i);
size_t stage_kept(const ModelConfig *c, size_t p, size_t i);               // elements per token, forward to backward
size_t stage_tokens(const Training *t, size_t k);                             // of micro-batch k
size_t stage_message_buffers(const Training *t, size_t p, size_t i);             // bytes, peak, under the executor
// Under the simulated clock: stage i's forward for B sequences (backward: twice that), and their message to a
// neighbour.
Picoseconds stage_forward_time(const ModelConfig *c, size_t p, size_t i, size_t B);
Picoseconds stage_message_time(const ModelConfig *c, size_t B);
void stage_cost_lines(Run *run, const Training *t, const StageCosts *seen);   // cost lines; stage i is rank i
void stage_loop_lines(Run *run, const Training *t, const StageCosts *seen);   // messages of a lesson's own loop

// ---- 02_costs.c, 03_costs.c: the cost lines of these lessons, and their tables; last: the model's last step ----
void pipeline_naive_costs(Run *run, const Training *t, const StageCosts *seen);
void pipeline_naive_each_costs(Run *run, const Training *t, const StageCosts *seen);       // with m = SEQUENCES
void pipeline_naive_time(Run *run, const Training *t, const Timing *last);
void pipeline_naive_results(Run *run, const Training *t, const double loss[2]);    // loss: unsplit, naive
void pipeline_gpipe_costs(Run *run, const Training *t, const StageCosts *gpipe, const StageCosts *naive);
void pipeline_gpipe_time(Run *run, const Training *t, const Timing *last);
void pipeline_gpipe_loop_costs(Run *run, const Training *t, const StageCosts *loops);      // of pipeline_gpipe itself
#endif
