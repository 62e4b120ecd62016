// kept.h declares functions that compute the sizes of a stage's activations, and choose what each
// block recomputes so that the activations fit into a budget. No function reads a model or the
// ledger.
#ifndef KEPT_H
#define KEPT_H
#include "03_tensor_parallel/kept.h"
#include "08_3d/trainer.h"
#include "common/model/costs.h"

// Returns the sizes of part `part` of the model on the rank at these coordinates. A part is a
// stage, or a chunk of a stage. Chunk k of a stage is part k pp + stage.
CutSizes kept_part_sizes(const TrainerConfig *c, Coordinates at, size_t part);
// Returns the number of sequences in micro-batch k of a replica.
size_t kept_sequences(const TrainerConfig *c, size_t dp_rank, size_t k);

// The bytes that a forward of B sequences keeps for backward in a part of the model, if no block
// recomputes. z has the sizes of the part. With 16-bit storage only statistics, logits and the sums
// of the loss are reals.
// scores: the bytes of the attention scores in a block.
// between: the bytes of the tensors between layers.
typedef struct {
    size_t block, scores, head, between;
} KeptBytes;
KeptBytes kept_bytes_of(const TrainerConfig *c, Coordinates at, const CutSizes *z, size_t B);
// The bytes that the first half of a backward keeps for the second half (05.06).
typedef struct {
    size_t block, embedding;
    // The head first adds head_added, then frees head_freed. head_freed does not include the
    // logits, because their memory then holds the gradient of the logits.
    size_t head_added, head_freed;
} DeferredBytes;
DeferredBytes kept_deferred(const CutSizes *z, size_t B, size_t kept_head);

// Fills choice [blocks of the stage] with each block's recomputation. With this choice no rank of
// the stage has more bytes of activations than c->activation_budget. Of the choices that
// budget_within() tries (07.04), the one with the least work is taken. All ranks of the stage get
// the same choice. Returns false if no choice fits the budget. kept_least() returns the least
// budget, in bytes, for which a choice fits.
bool kept_choices(const TrainerConfig *c, size_t stage, Recompute *choice);
size_t kept_least(const TrainerConfig *c, size_t stage);
// Returns the first stage for which no choice fits, or pp if all stages have a choice.
size_t kept_stage_without_plan(const TrainerConfig *c);
#endif
