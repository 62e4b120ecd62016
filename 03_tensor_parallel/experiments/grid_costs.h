// grid_costs.h: what the layers of grid_layers.c cost one rank of a q x q x depth grid, from sizes alone; and the same
// as it was measured.
#ifndef GRID_COSTS_H
#define GRID_COSTS_H
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"

typedef struct { double calls[COMM_KINDS], sent, received; } AxisTraffic;          // bytes of this rank
typedef struct {
    AxisTraffic row, col, depth;                           // over the ranks of its row, its column, its place in depth
    Work products;                                         // of this rank
    double transfers;                                      // ps, one after the other: where all blocks are equal
} GridTraffic;
GridTraffic grid_measured(const CommGrid *g);              // since the ledgers of its groups were reset

typedef struct { const ModelConfig *c; size_t q, depth, row, col, layer; } GridPlace;
GridPlace grid_place(const ModelConfig *c, const CommGrid *g);
GridPlace grid_place_of(const ModelConfig *c, size_t q, size_t depth, size_t rank);
size_t grid_sequences(const GridPlace *at, size_t B);      // of B, those of this rank's row
bool grid_even(const GridPlace *at, size_t B);             // are all blocks equal?

// Of one linear layer x [M, K] a [K, N] + b in equal blocks.
GridTraffic grid_linear_forward(const GridPlace *at, size_t M, size_t K, size_t N);
GridTraffic grid_linear_backward(const GridPlace *at, size_t M, size_t K, size_t N);
// Of a stage: forward, if `again` forward of its blocks once more, and backward, of B sequences.
GridTraffic grid_stage(const GridPlace *at, const CutSizes *stage, size_t B, bool again);
// The sums over depth of the gradients of a stage, one all-reduce a unit: of each use of wte, and of all others.
GridTraffic grid_table_sums(const GridPlace *at, const CutSizes *stage);
GridTraffic grid_unit_sums(const GridPlace *at, const CutSizes *stage);

// The sizes of the stage on this rank: kept_block() and such are then per token of its row's sequences.
CutSizes grid_sizes(const GridPlace *at);
void grid_elements_tensors(const GridPlace *at, size_t tensor[TENSORS_OF_BLOCK]);          // of a block, in model order
size_t grid_elements_block(const GridPlace *at);
size_t grid_elements_wte(const GridPlace *at);
size_t grid_elements_unit(const GridPlace *at, const CutSizes *stage, size_t i);   // as elements_unit of costs.h
size_t grid_elements_stage(const GridPlace *at, const CutSizes *stage);            // wte once
#endif
