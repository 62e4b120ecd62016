// recompute.h: forget in the forward pass, compute again in the backward pass.
//
// Full (02_full.c; Chen et al. 2016): of a block only its input is kept, which the walker holds anyway; backward runs
// the block's forward again. Selective (03_selective.c; Korthikanti et al. 2022, section 5): only the attention
// probabilities [B*H/tp*T, T] are dropped and computed again from q and k: most of the memory for little work, when T
// is long.
//
// The same layers run with the same inputs, and dropout masks are functions of position, so gradients are equal in
// every bit.
#ifndef RECOMPUTE_H
#define RECOMPUTE_H
#include "common/model/model.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;
// Wraps the blocks of a described model, whole or tensor-parallel, before it is allocated. The embedding keeps nothing,
// and the head's product with the whole vocabulary would be expensive to run twice: they stay as they are.
void recompute(Model *m, Recompute how);

// Its parts, from 02_full.c: a layer around a block that keeps only the block's input; and what puts such a layer
// around every block of a described model.
extern const LayerKind recompute_full;
void recompute_wrap_blocks(Model *m, const LayerKind *wrapper);
// Layers [lo, lo + n) of a described model recomputed together: of all of them only the first one's input is kept.
void recompute_wrap_range(Model *m, size_t lo, size_t n);
#endif
