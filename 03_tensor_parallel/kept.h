// kept.h: the number of elements that a rank of a grid (09_summa.c, 10_tesseract.c) or a cube
// (11_cube.c) keeps between forward and backward, from sizes alone. common/model/costs.h counts the
// elements for 1D.
#ifndef KEPT_IN_SHARDS_H
#define KEPT_IN_SHARDS_H
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"

// Returns the sizes of a rank of a q x q x depth grid. activations_block() and similar functions
// then count per token of the sequences of the rank's row.
CutSizes grid_kept_sizes(const ModelConfig *c, TesseractSides n, size_t rank);
// Returns how many of B sequences the rank's row has.
size_t grid_kept_sequences(TesseractSides n, size_t rank, size_t B);

// Elements on a rank of a q x q x q cube that gathers X and W again in backward: of a block, of its
// attention scores, of the head, and of the tensors between a stage's layers. Selective
// recomputation drops the scores. blockwise: attention keeps one element per query and head instead
// of the scores. block_reals and head_reals: those of block and of head that are
// reals in any storage.
typedef struct {
    size_t block, scores, head, between, block_reals, head_reals;
} KeptElements;
KeptElements cube_kept(const ModelConfig *c, size_t q, size_t rank, bool blockwise,
                       const CutSizes *stage, size_t B);
#endif
