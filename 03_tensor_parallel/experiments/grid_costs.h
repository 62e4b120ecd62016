// grid_costs.h: the costs of the layers of grid_layers.c for one rank of a q x q x depth grid: as
// measured, and from sizes alone.
#ifndef GRID_COSTS_H
#define GRID_COSTS_H
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"

typedef struct { double calls[COMM_KINDS], sent, received; } AxisTraffic;  // bytes of this rank
typedef struct {
    AxisTraffic row, col, depth;                           // along the three axes of the grid
    Work products;                                         // of this rank
    double transfers;                                      // ps, one after another; equal blocks
} GridTraffic;
GridTraffic grid_measured(const CommGrid *g);              // since the ledgers were reset

typedef struct { const ModelConfig *c; size_t q, depth, row, col, layer; } GridPlace;
GridPlace grid_place(const ModelConfig *c, const CommGrid *g);
GridPlace grid_place_of(const ModelConfig *c, size_t q, size_t depth, size_t rank);
size_t grid_sequences(const GridPlace *at, size_t B);      // of B, those of the rank's row
bool grid_even(const GridPlace *at, size_t B);             // are all blocks equal?

// One linear layer x [M, K] a [K, N] + b in equal blocks.
GridTraffic grid_linear_forward(const GridPlace *at, size_t M, size_t K, size_t N);
GridTraffic grid_linear_backward(const GridPlace *at, size_t M, size_t K, size_t N);
// A stage with B sequences: forward, forward of its blocks once more if `again`, and backward.
GridTraffic grid_stage(const GridPlace *at, const CutSizes *stage, size_t B, bool again);
// Sums of a stage's gradients over depth, one all-reduce each: both uses of wte; all other units.
GridTraffic grid_table_sums(const GridPlace *at, const CutSizes *stage);
GridTraffic grid_unit_sums(const GridPlace *at, const CutSizes *stage);

// The sizes of the stage on this rank, with its own columns. kept_block() and similar functions
// then count per token of its row's sequences.
CutSizes grid_sizes(const GridPlace *at);
// The tensors of a block, in model order.
void grid_elements_tensors(const GridPlace *at, size_t tensor[TENSORS_OF_BLOCK]);
size_t grid_elements_block(const GridPlace *at);
size_t grid_elements_wte(const GridPlace *at);
// Like elements_unit() of costs.h. The stage counts wte once.
size_t grid_elements_unit(const GridPlace *at, const CutSizes *stage, size_t i);
size_t grid_elements_stage(const GridPlace *at, const CutSizes *stage);
#endif
