// stage_costs.h: what stage i of p costs, from sizes alone: no Model and no ledger is asked. For chapters 04 and 05.
#ifndef STAGE_COSTS_H
#define STAGE_COSTS_H
#include "04_pipeline_naive/stages.h"
#include "common/measure/clock.h"
#include "common/model/formulas.h"

size_t stage_parameters(const ModelConfig *c, size_t p, size_t i);         // elements
size_t stage_gradients(const ModelConfig *c, size_t p, size_t i);
size_t stage_kept(const ModelConfig *c, size_t p, size_t i);               // of one token, from forward to backward
size_t tokens_of(const Training *t, size_t k);                             // of micro-batch k
size_t message_buffers(const Training *t, size_t p, size_t i);             // bytes, peak
// Under the simulated clock: stage i's forward for B sequences (backward: twice that), and their message to a
// neighbour.
Picoseconds stage_forward_time(const ModelConfig *c, size_t p, size_t i, size_t B);
Picoseconds message_time(const ModelConfig *c, size_t B);
// The cost lines that are alike whatever the order of forwards and backwards is; stage i is rank i.
void cost_of_stage(Run *run, const Training *t, const StageCosts *seen);
#endif
