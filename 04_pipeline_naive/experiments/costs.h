// costs.h: what stage i of p costs, predicted from sizes alone: no Model and no ledger is asked.
// Chapters 04 and 05, whatever the order of forwards and backwards is.
#ifndef PIPELINE_COSTS_H
#define PIPELINE_COSTS_H
#include "04_pipeline_naive/experiments/stages.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"

CutSizes stage_sizes(const ModelConfig *c, size_t p, size_t i);
// Elements per token that a stage keeps from forward to backward.
size_t stage_kept(const ModelConfig *c, size_t p, size_t i);
size_t stage_tokens(const Training *t, size_t k);                  // of micro-batch k
size_t stage_neighbours(const Run *run);  // 1 at the ends, 0 where there is one stage
// Peak bytes under the executor.
size_t stage_message_buffers(const Training *t, size_t p, size_t i);
// Under the simulated clock: stage i's forward for B sequences (backward: twice that), and their
// message to a neighbour.
Picoseconds stage_forward_time(const ModelConfig *c, size_t p, size_t i, size_t B);
Picoseconds stage_message_time(const ModelConfig *c, size_t B);
// The costs of a training: messages, sums, state. Stage i is rank i. Their ids begin with `way` and
// a dot; NULL: with nothing.
void stage_check_costs(Run *run, const Training *t, const char *way, const StageCosts *seen);
// Messages of a lesson's own loop.
void stage_check_loop(Run *run, const Training *t, const StageCosts *seen);

double sum_of_ranks(Run *run, double of_this_rank);        // uncounted

// "id.name" or "name of way", as snprintf. The text stands until the next call with this buffer.
typedef struct { char text[96]; } CostName;
const char *cost_name(CostName *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#endif
