// sequence_costs.h: predictions of the experiment of 07_sequence_parallel.c: the messages of a
// step, the paper's closed forms, and the paper's figure 7.
#ifndef SEQUENCE_COSTS_H
#define SEQUENCE_COSTS_H
#include "common/model/costs.h"
#include "judge/frame/training.h"

size_t sequence_micro_batch(const Training *t, size_t k);          // sequences of micro-batch k
// Messages in the layers in one step, which has several micro-batches.
SequenceTraffic sequence_step_traffic(const CutSizes *z, const Training *t);
// Checks, where t divides everything, that the exact sums equal the paper's closed forms.
void sequence_closed_forms(Run *run, const Training *t, const char *name, bool kept_whole,
                           const CutSizes *z);
// Checks that the cost model gives figure 7 of Korthikanti et al. 2022.
void sequence_figure7(Run *run);
#endif
