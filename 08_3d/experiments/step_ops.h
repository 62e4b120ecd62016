// step_ops.h declares functions that list the expected operations of a rank in a step of the
// trainer, for the player of judge/play.
#ifndef STEP_OPS_H
#define STEP_OPS_H
#include "08_3d/experiments/experiments.h"

// The numbers under which the player knows a rank's groups.
typedef struct {
    size_t world, tp, replicas, model, pp, tied;
} StepGroups;
// The place, the groups and the sizes of a rank. All ranks of a tensor-parallel group get the sizes
// of the largest rank, because the other ranks wait for that rank.
typedef struct {
    const TrainerConfig *c;
    size_t rank, m, B; // m: micro-batches; B: sequences of this replica
    Coordinates at;
    StepGroups group;
    bool cp_near;
    CutSizes stage, *chunk; // sizes of the whole stage, and of each chunk
} RankSteps;

// ---- step_ops.c: the operations of a forward or backward ----
// These two functions return the bytes of an element of a gradient, and of an activation.
static inline size_t step_gradient(const RankSteps *r) { return gradient_bytes(&r->c->model); }
static inline size_t step_stored(const RankSteps *r) { return element_size(r->c->model.storage); }
static inline size_t step_sequences(const RankSteps *r, size_t k) { // of micro-batch k
    return part_size(r->B, r->m, k);
}
// step_units() lists one call over the replicas for each unit of z except tables. step_table()
// lists one call for each table: wte, and an untied head's table.
void step_units(Play *play, const RankSteps *r, const CutSizes *z, CommKind kind);
void step_table(Play *play, const RankSteps *r, CommKind kind);
// Lists the sums of the partial gradients of sequence parallelism, before ZeRO reduces
// (traffic_partial_sums in costs.h).
void step_partial_sums(Play *play, const RankSteps *r, const CutSizes *z);
// Lists the work and calls of an op of the pipeline. context: the RankSteps of the rank.
void step_op(Play *play, size_t rank, PipeOp op, const void *context);

// ---- step_groups.c ----
// Sets group[r] to the number of rank r's group. The ranks of a group differ along these axes only.
void step_groups(Play *play, Degrees n, unsigned axes, const char *name, size_t *group);
// Returns whether each cp group of this replica's stage is in one node. The stage has a cp group
// for each rank of tp, and these groups wait for each other.
bool step_cp_near(Degrees n, Coordinates at);
#endif
