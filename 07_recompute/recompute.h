// recompute.h: declares layers around blocks that drop activations in forward and compute them
// again in backward.
//
// Full (02_full.c; Chen et al. 2016): a block keeps only its input, which the walker holds anyway.
// Backward runs the block's forward again. Selective (03_selective.c; Korthikanti et al. 2022,
// section 5): a block drops only the attention probabilities [B*H/tp*T, T] and computes them again
// from q and k. When T is long, this saves most of the memory for little work.
//
// The same layers run with the same inputs, and dropout masks are functions of position. So
// gradients are equal in every bit.
#ifndef RECOMPUTE_H
#define RECOMPUTE_H
#include "04_pipeline_naive/pipeline.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;

// ---- 02_full.c ----
extern const LayerKind recompute_full; // a layer around a block that keeps only the block's input
void recompute_blocks(Model *m);       // wraps every block of a described model in recompute_full
// Makes layers [lo, lo + n) of a described model recompute together. Only the first layer's input
// is kept.
void recompute_wrap_range(Model *m, size_t lo, size_t n);

// ---- 03_selective.c ----
// Wraps a block and drops the block's attention probabilities.
extern const LayerKind recompute_selective;
// Wraps the blocks of a described model, whole or tensor-parallel. Call recompute() before the
// model is allocated. The embedding and the head stay as they are.
void recompute(Model *m, Recompute how);

// ---- 04_budget.c ----
// Chooses none, selective or full for each block, so that the activations of a stage fit into a
// budget. The caller gives the sizes; the plan needs no model.

enum { RECOMPUTE_CHOICES = RECOMPUTE_FULL + 1 };
// The sizes of one block, in elements per token.
typedef struct {
    size_t kept[RECOMPUTE_CHOICES];  // from forward to backward, under each choice
    size_t at_work;                  // held while its forward or backward runs
    double again[RECOMPUTE_CHOICES]; // work of the recomputation, in any unit
    size_t deferred; // kept between the two halves of its backward (05.06), if it has halves
} BudgetBlock;
typedef struct {
    const BudgetBlock *block; // [blocks], in the order of the model
    size_t blocks;
    size_t input;     // each block's input, which is always kept
    bool last;        // the head follows the blocks, so the last block's output stays, too
    size_t head;      // kept by the head
    size_t in_flight; // the most tokens between forward and backward
    size_t one;       // tokens of a micro-batch
    // These fields are only for backwards in two halves. The first half of the head's backward
    // allocates head_added elements and frees head_freed at its end. The embedding keeps
    // first_deferred for the second half.
    size_t head_added, head_freed, first_deferred;
} BudgetStage;
// Returns the most elements that this stage holds in a step whose backwards are whole.
size_t budget_peak(const BudgetStage *s, const Recompute *choice);
// Finds the choices [blocks] with the least recomputation whose peak is at most `budget` elements.
// Returns false if even recomputing every block needs more.
bool budget_choose(const BudgetStage *s, size_t budget, Recompute *choice);
// Wraps block i of a described model as choice[i] says.
void recompute_each(Model *m, const Recompute *choice);

// ---- budget_schedule.c ----
// These functions compute peak and choice for any list of forwards and backwards, with chunks and
// with backwards in halves.

// The operations of a stage in a step, and the sizes of every part. part[c * micro_batches + k] is
// micro-batch k in chunk c. Its sizes are elements of the whole micro-batch, so its `one` and
// `in_flight` are 1. Micro-batch 0 is the largest.
typedef struct {
    const Schedule *list;
    const BudgetStage *part;
    size_t chunks, micro_batches;
} BudgetSchedule;
// Returns the most elements that the stage holds while it works through the list. `choice` has an
// entry per block, chunk after chunk.
size_t budget_schedule_peak(const BudgetSchedule *s, const Recompute *choice);
// Finds the choices with the least recomputation within `budget` elements. For one chunk with whole
// backwards this function calls budget_choose(), with the largest number of micro-batches that the
// list has in flight. For other lists the first blocks of the stage, which wait longest, are
// recomputed in full, and the next ones selectively. The function searches both counts. Returns
// false if nothing fits.
bool budget_within(const BudgetSchedule *s, size_t budget, Recompute *choice);
// Returns the least budget for which budget_within() finds a plan: every block is recomputed in
// full.
size_t budget_least(const BudgetSchedule *s);
#endif
