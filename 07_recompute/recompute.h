// recompute.h: forget in the forward pass, compute again in the backward pass.
//
// Full (02_full.c; Chen et al. 2016): of a block only its input is kept, which the walker holds
// anyway; backward runs the block's forward again. Selective (03_selective.c; Korthikanti et al.
// 2022, section 5): only the attention probabilities [B*H/tp*T, T] are dropped and computed again
// from q and k: most of the memory for little work, when T is long.
//
// The same layers run with the same inputs, and dropout masks are functions of position, so
// gradients are equal in every bit.
#ifndef RECOMPUTE_H
#define RECOMPUTE_H
#include "04_pipeline_naive/pipeline.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;

// ---- 02_full.c ----
extern const LayerKind recompute_full;  // a layer around a block that keeps only the block's input
void recompute_blocks(Model *m);    // puts it around every block of a described model
// Layers [lo, lo + n) of a described model recomputed together: of all of them only the first one's
// input is kept.
void recompute_wrap_range(Model *m, size_t lo, size_t n);

// ---- 03_selective.c ----
// a layer around a block that sheds attention's probabilities
extern const LayerKind recompute_selective;
// Wraps the blocks of a described model, whole or tensor-parallel, before it is allocated. The
// embedding and the head stay as they are.
void recompute(Model *m, Recompute how);

// ---- 04_budget.c ----
// A choice for each block, so that the activations of a stage fit into a budget. The caller gives
// the sizes; nothing here knows a model.

enum { RECOMPUTE_CHOICES = RECOMPUTE_FULL + 1 };
// One block. Sizes are elements per token of the stage's in_flight and one.
typedef struct {
    size_t kept[RECOMPUTE_CHOICES];                // from forward to backward, under each choice
    size_t at_work;                                // while the block's forward or backward runs
    double again[RECOMPUTE_CHOICES];               // work of computing the rest again, in any unit
    size_t deferred;    // kept between the two halves of its backward (05.06), if it has any
} BudgetBlock;
typedef struct {
    const BudgetBlock *block;                      // [blocks], in the order of the model
    size_t blocks;
    size_t input;                                  // each block's input, which is always kept
    bool last;  // the head stands after them, so the last block's output stays, too
    size_t head;                                   // kept by the head
    size_t in_flight, one;  // tokens between forward and backward, at most; of one micro-batch
    // Only where a backward is in two halves: what the first half of the head's backward allocates,
    // and what it frees at its end; what the embedding keeps for the second half.
    size_t head_added, head_freed, first_deferred;
} BudgetStage;
// The most elements that this stage holds in a step whose backwards are whole.
size_t budget_peak(const BudgetStage *s, const Recompute *choice);
// The choices [blocks] that compute least again among all whose peak is at most `budget` elements.
// Returns false when there are none: when not even recomputing every block is enough.
bool budget_choose(const BudgetStage *s, size_t budget, Recompute *choice);
// Wraps block i of a described model as choice[i] says.
void recompute_each(Model *m, const Recompute *choice);

// ---- budget_schedule.c ----
// The same for any list of forwards and backwards, in chunks and in halves.

// What a stage does in a step, and the sizes of every part: part[c * micro_batches + k] is
// micro-batch k in chunk c, and its one and in_flight are 1 (its sizes are elements of the whole
// micro-batch). Micro-batch 0 is the largest.
typedef struct {
    const Schedule *list;
    const BudgetStage *part;
    size_t chunks, micro_batches;
} BudgetSchedule;
// The most elements that the stage holds while it works through the list. choice: of its blocks,
// chunk after chunk.
size_t budget_schedule_peak(const BudgetSchedule *s, const Recompute *choice);
// The choices that compute least again within `budget` elements. One chunk with whole backwards:
// budget_choose(), with as many micro-batches in flight as the list has at most. Otherwise: the
// first blocks of the stage, which wait longest, are recomputed in full, the next ones selectively,
// and the counts of both are searched. False: nothing fits.
bool budget_within(const BudgetSchedule *s, size_t budget, Recompute *choice);
// The least budget with which budget_within() finds a plan: every block is recomputed in full.
size_t budget_least(const BudgetSchedule *s);
#endif
