// 09_costs.h: what 09_summa measures on a rank, held against the closed forms; and its page.
#ifndef SUMMA_COSTS_H
#define SUMMA_COSTS_H
#include "03_tensor_parallel/experiments/grid_costs.h"
#include "judge/frame/lesson.h"

typedef struct {
    GridTraffic traffic;
    Picoseconds took;                                      // by this rank's clock
    size_t panels;                                         // bytes: room for other ranks' blocks, at most
    size_t block, parameters, gradients, optimizer, activations;       // bytes; of a block's parameters; the last: peak
} SummaMeasured;
void summa_measure_begin(const CommGrid *g, SummaMeasured *r);         // resets the ledgers of the grid's groups
void summa_measure_end(const CommGrid *g, SummaMeasured *r);
void summa_measure_state(SummaMeasured *r, const Model *m);            // before the model is freed

// Of one linear layer, forward and backward, in equal blocks; with its picture.
void summa_layer_costs(Run *run, const CommGrid *g, size_t M, size_t K, size_t N, const SummaMeasured r[2]);
// The cost lines of one axis; and of what a rank holds, for a step of `sequences` on all ranks.
void summa_axis_costs(Run *run, const char *axis, const AxisTraffic *want, const AxisTraffic *got);
void summa_memory_costs(Run *run, const GridPlace *at, size_t sequences, const SummaMeasured *r);
// Of a step of GPT, and the page's table.
void summa_costs(Run *run, const CommGrid *g, const ModelConfig *c, size_t sequences, const SummaMeasured *r);
#endif
