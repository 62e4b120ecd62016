// kept.h: the activations of a stage in a step, in bytes, from sizes alone; and what each block
// recomputes, so that they fit into a budget. Nothing here looks at a model or at the ledger.
#ifndef KEPT_H
#define KEPT_H
#include "08_3d/trainer.h"
#include "common/model/costs.h"

// What the rank at these coordinates has of part `part` of the model: a stage, or a chunk of one.
CutSizes kept_part_sizes(const TrainerConfig *c, Coordinates at, size_t part);
// All of its stage: chunk k is part k pp + stage.
CutSizes kept_stage_sizes(const TrainerConfig *c, Coordinates at);
// Of micro-batch k of a replica.
size_t kept_sequences(const TrainerConfig *c, size_t dp_rank, size_t k);

// The peak of this rank's activations in a step. choice [blocks of the stage]: of each block;
// NULL: c->recompute.
size_t kept_peak(const TrainerConfig *c, Coordinates at, const Recompute *choice);
// choice [blocks of the stage]: what each block recomputes, so that no rank of the stage has
// more activations than c->activation_budget, and as little work as possible is done again
// (07.04). It is the same on all ranks of the stage. False: not even recomputing every block is
// enough. kept_least() bytes are.
bool kept_choices(const TrainerConfig *c, size_t stage, Recompute *choice);
size_t kept_least(const TrainerConfig *c, size_t stage);
// The first stage that no choice fits; pp: there is none.
size_t kept_stage_without_plan(const TrainerConfig *c);
#endif
