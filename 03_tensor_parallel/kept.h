// kept.h: declares functions that count the elements that a rank keeps between forward and
// backward. The rank belongs to a grid (09_summa.c, 10_tesseract.c) or to a cube (11_cube.c). The
// functions count from sizes alone, as those of common/model/costs.h do for 1D.
#ifndef KEPT_IN_SHARDS_H
#define KEPT_IN_SHARDS_H
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"

// Returns the sizes of the given rank of a q x q x depth grid. With these sizes kept_block() and
// similar functions of costs.h count per token of the rank's own sequences.
CutSizes grid_kept_sizes(const ModelConfig *c, TesseractSides n, size_t rank);
// Returns how many of B sequences the given rank of the grid has.
size_t grid_kept_sequences(TesseractSides n, size_t rank, size_t B);

// The kept elements of a rank of a q x q x q cube that gathers X and W again in backward.
typedef struct {
    size_t block;       // of a block
    size_t scores;      // of a block's attention scores, which selective recomputation drops
    size_t head;        // of the head
    size_t between;     // of the tensors between a stage's layers
    size_t block_reals; // the elements of `block` that are reals in any storage
    size_t head_reals;  // the elements of `head` that are reals in any storage
} KeptElements;
// Counts the kept elements. If `blockwise`, attention keeps one element per query and head instead
// of the scores.
KeptElements cube_kept(const ModelConfig *c, size_t q, size_t rank, bool blockwise,
                       const CutSizes *stage, size_t B);
#endif
