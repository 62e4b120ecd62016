// cube_costs.h: what the layers of cube_layers.c cost one rank of a q x q x q cube, from sizes alone.
#ifndef CUBE_COSTS_H
#define CUBE_COSTS_H
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"

// Along the axes of a cube: the ranks of my row, of my column, and of my row and column in all layers.
enum { CUBE_ROW, CUBE_COL, CUBE_DEPTH, CUBE_AXES };
// What a rank sends, and receives, as everything is a ring; ps, one call after the other, if nobody is waited for.
typedef struct { double calls, bytes[CUBE_AXES], time; } CubeTraffic;
double cube_bytes(const CubeTraffic *t);                   // along all axes

typedef struct {
    const ModelConfig *c;
    size_t q, row, col, layer;
    bool gather_again;                                     // backward gathers X and W again
    bool blockwise;                                        // attention keeps one element a query and head, no scores
} CubePlace;
CubePlace cube_place_of(const ModelConfig *c, size_t q, size_t rank, bool gather_again);

// Forward and backward of y = x w for B sequences of T positions; K, N: of the gathered x and y on this rank.
CubeTraffic cube_linear(const CubePlace *at, size_t B, size_t T, bool swapped, size_t K, size_t N);
// Of a stage: forward, if `again` forward of its blocks once more, and backward, of B sequences.
CubeTraffic cube_stage(const CubePlace *at, const CutSizes *stage, size_t B, bool again);
// The sums of the gradients of vectors over the q^2 ranks of a plane, in bytes[0]: of a stage.
CubeTraffic cube_plane_sums(const CubePlace *at, const CutSizes *stage);
Work cube_work(const CubePlace *at, const CutSizes *stage, size_t B);      // forward

void cube_elements_tensors(const CubePlace *at, size_t tensor[TENSORS_OF_BLOCK]);          // of a block, in model order
size_t cube_elements_block(const CubePlace *at);
size_t cube_elements_wte(const CubePlace *at);
size_t cube_elements_unit(const CubePlace *at, const CutSizes *stage, size_t i);       // as elements_unit of costs.h
size_t cube_elements_stage(const CubePlace *at, const CutSizes *stage);                // wte once

// Elements that forward keeps of B sequences, as activations_block() and so on of costs.h.
size_t cube_kept_block(const CubePlace *at, size_t B);
size_t cube_kept_scores(const CubePlace *at, size_t B);
size_t cube_kept_head(const CubePlace *at, size_t B);
size_t cube_kept_between(const CubePlace *at, const CutSizes *stage, size_t B);
size_t cube_kept_stage(const CubePlace *at, const CutSizes *stage, size_t B);
size_t cube_message(const CubePlace *at, size_t B);        // between stages, one way
#endif
