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
// around every block of a described model. 03_selective.c has the layer that sheds attention's probabilities.
extern const LayerKind recompute_full, recompute_selective;
void recompute_wrap_blocks(Model *m, const LayerKind *wrapper);
// Layers [lo, lo + n) of a described model recomputed together: of all of them only the first one's input is kept.
void recompute_wrap_range(Model *m, size_t lo, size_t n);

// ---- 04_budget.c: a choice for each block, so that the activations of a stage fit into a budget ----

enum { RECOMPUTE_CHOICES = RECOMPUTE_FULL + 1 };
// One block: elements per token that it keeps from forward to backward, and what it costs to compute the rest again (in
// any unit of work), under each choice; and the elements per token that it holds while its forward or backward runs.
typedef struct { size_t kept[RECOMPUTE_CHOICES], at_work; double again[RECOMPUTE_CHOICES]; } BudgetBlock;
typedef struct {
    const BudgetBlock *block;                      // [blocks], in the order of the model
    size_t blocks;
    size_t input;                                  // elements per token of each block's input, which is always kept
    bool last;                                     // the head stands after them, so the last block's output stays, too
    size_t head;                                   // elements per token that the head keeps
    size_t in_flight, one;                         // tokens between forward and backward, at most; of one micro-batch
} BudgetStage;
// The most elements that this stage holds in a step.
size_t budget_peak(const BudgetStage *s, const Recompute *choice);
// The choices [blocks] that compute least again among all whose peak is at most `budget` elements. Returns false when
// there are none: when not even recomputing every block is enough.
bool budget_choose(const BudgetStage *s, size_t budget, Recompute *choice);
// Wraps block i of a described model as choice[i] says.
void recompute_each(Model *m, const Recompute *choice);
#endif
