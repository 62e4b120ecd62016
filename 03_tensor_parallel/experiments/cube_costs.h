// cube_costs.h: the costs of the layers of cube_layers.c for one rank of a q x q x q cube, from
// sizes alone.
#ifndef CUBE_COSTS_H
#define CUBE_COSTS_H
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"

// The axes of a cube: a rank's row, its column, and the ranks at its place in all layers.
enum { CUBE_ROW, CUBE_COL, CUBE_DEPTH, CUBE_AXES };
// Bytes that a rank sends, and receives, because every call is a ring. Time in ps: one call after
// another, if no rank waits for another.
typedef struct { double calls, bytes[CUBE_AXES], time; } CubeTraffic;
double cube_bytes(const CubeTraffic *t);                   // along all axes

typedef struct {
    const ModelConfig *c;
    size_t q, row, col, layer;
    bool gather_again;                                     // backward gathers X and W again
    bool blockwise;                                        // attention keeps no scores, but one
                                                           // element per query and head
} CubePlace;
CubePlace cube_place_of(const ModelConfig *c, size_t q, size_t rank, bool gather_again);

// Forward and backward of y = x w for B sequences of T positions. K, N: columns of the gathered x
// and y on this rank.
CubeTraffic cube_linear(const CubePlace *at, size_t B, size_t T, bool swapped, size_t K, size_t N);
// A stage with B sequences: forward, forward of its blocks once more if `again`, and backward.
CubeTraffic cube_stage(const CubePlace *at, const CutSizes *stage, size_t B, bool again);
// A stage's sums of the gradients of vectors over the q^2 ranks of a plane: in bytes[0].
CubeTraffic cube_plane_sums(const CubePlace *at, const CutSizes *stage);
Work cube_work(const CubePlace *at, const CutSizes *stage, size_t B);      // forward

// The tensors of a block, in model order.
void cube_elements_tensors(const CubePlace *at, size_t tensor[TENSORS_OF_BLOCK]);
size_t cube_elements_block(const CubePlace *at);
size_t cube_elements_wte(const CubePlace *at);
// Like elements_unit() of costs.h. The stage counts wte once.
size_t cube_elements_unit(const CubePlace *at, const CutSizes *stage, size_t i);
size_t cube_elements_stage(const CubePlace *at, const CutSizes *stage);

// Elements that forward keeps of B sequences, like activations_block() and others of costs.h.
size_t cube_kept_block(const CubePlace *at, size_t B);
size_t cube_kept_scores(const CubePlace *at, size_t B);
size_t cube_kept_head(const CubePlace *at, size_t B);
size_t cube_kept_between(const CubePlace *at, const CutSizes *stage, size_t B);
size_t cube_kept_stage(const CubePlace *at, const CutSizes *stage, size_t B);
size_t cube_message(const CubePlace *at, size_t B);        // between stages, one way
#endif
