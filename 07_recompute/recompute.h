// recompute.h: declares layers around blocks, and the choice of blocks for a memory budget. These
// layers drop activations in forward and compute the dropped activations again in backward.
//
// Full (02_full.c; Chen et al. 2016): a block keeps only its input, which the walk over the layers
// (layer.h) holds anyway. Backward runs the block's forward again. Selective (03_selective.c;
// Korthikanti et al. 2022, section 5): a block drops only the attention probabilities [B*H/tp*T,
// T], before and after dropout. Backward computes the probabilities again from q and k. If T is
// large, the probabilities are most of the memory, and the recomputation is little work.
//
// The second forward runs the same layers with the same inputs, and dropout masks are functions of
// position. So the gradients equal those without recomputation in every bit.
#ifndef RECOMPUTE_H
#define RECOMPUTE_H
#include "04_pipeline_naive/pipeline.h"

typedef enum { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL } Recompute;

// ---- 02_full.c ----
extern const LayerKind recompute_full; // wraps a block and keeps only its input
void recompute_blocks(Model *m);       // wraps every block of a described model in recompute_full
// Replaces layers [lo, lo + n) of a described model by one layer, which keeps only its input and
// recomputes the n layers together.
void recompute_wrap_range(Model *m, size_t lo, size_t n);

// ---- 03_selective.c ----
// Wraps a block and drops the block's attention probabilities.
extern const LayerKind recompute_selective;
// Wraps every block of a described model, whole or tensor-parallel. Call recompute() before other
// wrappers and before the model is allocated. Embedding and head are not recomputed.
void recompute(Model *m, Recompute how);

// ---- 04_budget.c ----
// These functions choose none, selective or full for each block, so that the activations of a stage
// fit into a budget. The caller gives the sizes, so planning needs no model.

enum { RECOMPUTE_CHOICES = RECOMPUTE_FULL + 1 };
// The sizes of one block, in elements per token.
typedef struct {
    size_t kept[RECOMPUTE_CHOICES];  // elements kept until backward, without the input
    size_t at_work;                  // held while the block's forward or backward runs
    double again[RECOMPUTE_CHOICES]; // work of the recomputation, in any unit
    size_t deferred;                 // kept between the two halves of a backward (05.06)
} BudgetBlock;
typedef struct {
    const BudgetBlock *block; // [blocks], in the order of the model
    size_t blocks;
    size_t input;     // a block's input, which is always kept, per token
    bool last;        // the head follows the blocks, so the last block's output stays, too
    size_t head;      // elements per token that the head keeps
    size_t in_flight; // the largest number of tokens between forward and backward
    size_t one;       // tokens of a micro-batch
    // The following fields are only for backwards in two halves. The first half of the head's
    // backward allocates head_added elements and frees head_freed elements at its end. The
    // embedding keeps first_deferred elements for the second half.
    size_t head_added, head_freed, first_deferred;
} BudgetStage;
// Returns the most elements that this stage holds in a step without backwards in halves.
size_t budget_peak(const BudgetStage *s, const Recompute *choice);
// Finds the choices [blocks] with the least recomputation whose peak is at most `budget` elements.
// Returns false if no choices have such a peak.
bool budget_choose(const BudgetStage *s, size_t budget, Recompute *choice);
// Wraps block i of a described model as choice[i] says.
void recompute_each(Model *m, const Recompute *choice);

// ---- budget_schedule.c ----
// These functions compute the peak and choose a plan for any list of forwards and backwards, also
// with chunks and with backwards in halves.

// The operations of a stage in a step, and the sizes of every part. part[c * micro_batches + k] is
// micro-batch k in chunk c. The sizes of a part are elements of the whole micro-batch, so the
// fields `one` and `in_flight` of a part are 1. Micro-batch 0 is the largest micro-batch.
typedef struct {
    const Schedule *list;
    const BudgetStage *part;
    size_t chunks, micro_batches;
} BudgetSchedule;
// Returns the most elements that the stage holds while it runs the list. `choice` has an entry per
// block, chunk after chunk.
size_t budget_schedule_peak(const BudgetSchedule *s, const Recompute *choice);
// Finds choices whose peak is at most `budget` elements. If the list has one chunk, whole backwards
// and no update, this function calls budget_choose(). budget_choose() then gets as in_flight the
// largest number of micro-batches that the list has in flight. For other lists the first blocks of
// the stage are recomputed in full, because the items of the first blocks wait longest. The next
// blocks are recomputed selectively. The function searches for the numbers of full and selective
// blocks that need the least work. Returns false if no choices fit.
bool budget_within(const BudgetSchedule *s, size_t budget, Recompute *choice);
// Returns the least budget for which budget_within() finds a plan. This budget is the peak of the
// plan that recomputes every block in full.
size_t budget_least(const BudgetSchedule *s);
#endif
