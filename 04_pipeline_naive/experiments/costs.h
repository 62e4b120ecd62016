// costs.h: predicts the costs of stage i of p from sizes alone, without a Model or a ledger. It
// serves chapters 04 and 05, for any order of forwards and backwards.
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
size_t stage_neighbours(const Run *run);  // 2; 1 at the ends; 0 where there is one stage
// Peak bytes of message buffers under the executor.
size_t stage_message_buffers(const Training *t, size_t p, size_t i);
// Times under the simulated clock: a forward of stage i for B sequences (a backward takes twice
// that), and the message of B sequences to a neighbour.
Picoseconds stage_forward_time(const ModelConfig *c, size_t p, size_t i, size_t B);
Picoseconds stage_message_time(const ModelConfig *c, size_t B);
// Checks the costs of a training: messages, sums, state. Stage i is rank i. The ids begin with
// `way` and a dot; NULL: no prefix.
void stage_check_costs(Run *run, const Training *t, const char *way, const StageCosts *seen);
// Checks the messages of a lesson's own loop.
void stage_check_loop(Run *run, const Training *t, const StageCosts *seen);

double sum_of_ranks(Run *run, double of_this_rank);        // not in the ledger

// Formats an id or a name into *name, as snprintf does. The text lasts until the next call with it.
typedef struct { char text[96]; } CostName;
const char *cost_name(CostName *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#endif
