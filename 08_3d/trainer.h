// trainer.h declares the trainer, which composes chapters 01 to 07: data x context x tensor x
// pipeline parallelism, with ZeRO and recomputation.
#ifndef TRAINER_H
#define TRAINER_H
#include "01_data_parallel/compression.h"
#include "01_data_parallel/data_parallel.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_pipeline_naive/pipeline.h"
#include "06_zero/zero.h"
#include "07_recompute/recompute.h"
#include "08_3d/mesh.h"
#include "common/model/data.h"
#include "common/model/optimizer.h"

// The cut of a layer over a tp group.
// TENSOR_1D: by columns and rows (03.06).
// TENSOR_2D: in blocks on a square (03.09).
// TENSOR_25D: on several squares, each with a part of the sequences (03.10).
// TENSOR_3D: on a cube (03.11).
typedef enum { TENSOR_1D, TENSOR_2D, TENSOR_25D, TENSOR_3D } TensorKind;

// The ways to sum the replicas' gradients. A training uses one of these ways.
typedef enum {
    REDUCE_AT_END,     // one all-reduce after the last backward (chapter 01)
    REDUCE_IN_BUCKETS, // all-reduces of parts while the last backward runs (01.04)
    REDUCE_COMPRESSED, // compressed; the rest is added to the next gradient (01.06, 01.08)
    REDUCE_ZERO_1,     // ZeRO's stages (chapter 06): each rank gets only the sums of its part
    REDUCE_ZERO_2,
    REDUCE_ZERO_3,
    REDUCE_PREFETCH // ZeRO-3, gathering weights a layer ahead (06.05)
} Reduction;

typedef struct {
    ModelConfig model;
    Degrees mesh;
    TensorKind tensor;
    size_t depth; // squares of 2.5D; 0: as few as the number of ranks allows
    // batch: sequences of a step.
    // micro_batch: most sequences of one micro-batch of a replica.
    size_t batch, micro_batch;
    ScheduleRule schedule;
    size_t chunks; // per stage; if more than 1, the schedule is interleaved (05.03)
    // Blocks of each stage, or of each chunk in model order; NULL: as equal as possible.
    const size_t *stage_blocks;
    bool rebalanced; // trainer_rebalance() will be called: layers are timed
    Reduction reduction;
    CompressionPlan compression; // for REDUCE_COMPRESSED: TOP_K or POWER_SGD
    bool sequence;               // sequence parallelism (03.07)
    bool blockwise;              // blockwise attention; ignored if cp > 1
    Recompute recompute;
    size_t activation_budget; // most bytes of activations per rank; 0: no limit
    double clip;              // largest gradient norm; 0: no clipping
    // The loss scale of the first step (06.06). Factor 0 stands for 1, which scales nothing.
    // patience 0: the factor is fixed.
    LossScale loss_scale;
} TrainerConfig;
// Calls usage_error() for options that cannot work (refused.c).
void trainer_require(const TrainerConfig *c);
// Returns the Reduction that these four options name. Calls usage_error() if two options exclude
// each other (refused.c).
Reduction trainer_reduction(size_t zero, bool prefetch, bool overlap, bool compressed);
// Returns ZeRO's stage, 0 to 3. Stage 0 is data parallelism.
static inline size_t trainer_zero(const TrainerConfig *c) {
    if (c->reduction == REDUCE_PREFETCH) return 3;
    return c->reduction < REDUCE_ZERO_1 ? 0 : 1 + (size_t)(c->reduction - REDUCE_ZERO_1);
}
static inline bool tensor_is_grid(const TrainerConfig *c) {
    return c->tensor == TENSOR_2D || c->tensor == TENSOR_25D;
}
// Returns the sides of the tp group's grid. Only for 2D and 2.5D (tensor_is_grid).
TesseractSides tensor_sides(const TrainerConfig *c);
// Returns dp x cp: the number of ranks with the same parameters, over which ZeRO shards.
static inline size_t trainer_replicas(const TrainerConfig *c) {
    return c->mesh.dp * mesh_cp(c->mesh);
}
// Returns the number of chunks per stage, at least 1.
size_t trainer_chunks(const TrainerConfig *c);
// Returns the number of micro-batches per replica and step.
size_t trainer_micro_batches(const TrainerConfig *c);
// Returns the ops of a stage for m micro-batches, in the order in which the stage runs them. The
// caller calls schedule_free().
Schedule trainer_schedule(const TrainerConfig *c, size_t m, size_t stage);

typedef struct {
    TrainerConfig config;
    Mesh mesh;
    CommGrid grid; // the tp group's grid for 2D and 2.5D
    Cube cube;     // the tp group's cube for 3D
    Model *model;  // this stage's layers, this rank's part of their tensors
    Optimizer optimizer;
    LossScale loss_scale; // the scale of the next step, the same on every rank
    Schedule schedule;
    Range sequences;          // this replica's sequences of each global batch
    Positions positions;      // this rank's positions of each sequence; n 0: all
    size_t micro_batches;     // m, the same on every replica
    Buckets *buckets;         // for REDUCE_IN_BUCKETS; else NULL
    Compression *compression; // for REDUCE_COMPRESSED; else NULL
    size_t *blocks;           // with rebalancing: present number of blocks of each stage or chunk
    double *cost;             // with rebalancing: picoseconds of each layer in the last step
    // local_loss: the sum of the losses of this rank's tokens in the last step; 0 except on the
    // last stage. reduction: the times at which the last sum over the replicas began and ended;
    // unused with buckets.
    double local_loss;
    Picoseconds reduction[2];
} Trainer;

// Runs a step of dp x tp x pp by 1F1B, without any option: the whole idea of the chapter. stage has
// the layers of pipeline_stage_layers(), is cut by tensor_parallel(), and is allocated.
// tests/plain-step.t compares this step with trainer_gradients() and trainer_update().
StepResult train_step_plain(const Mesh *mesh, Model *stage, Optimizer *o, const TrainerConfig *c,
                            const Data *d, uint64_t step);

// ---- All functions below are collective, except trainer_overflowed(). ----
Trainer *trainer_new(Comm *world, const TrainerConfig *c, Optimizer optimizer);
// Runs a step without its update. The gradients are final afterwards, times the factor of the loss
// scale. The norm is without the factor.
StepResult trainer_gradients(Trainer *t, const Data *d, uint64_t step);
// Returns whether the factor of a dynamic loss scale was too large for this step's gradients. All
// ranks return the same, because all ranks have the same norm. A step that overflowed must be
// skipped, and the next factor is smaller. At factor 1 the result is false: no smaller factor
// helps, because the gradient itself is not finite.
bool trainer_overflowed(const Trainer *t, StepResult r);
// Clips the gradient and updates the weights. Under ZeRO-1 and ZeRO-2 also gathers the weights.
void trainer_update(Trainer *t, StepResult r);
// Skips the update of a step, in place of trainer_update(). After an overflow the loss scale
// changes.
void trainer_skip(Trainer *t, StepResult r);
// Cuts the model into stages by the times of the last step, and moves layers. Call this function
// after an update. Returns false if no layer moves.
bool trainer_rebalance(Trainer *t);
// Returns the mean loss per token over this many windows, spread over the held-out text. Runs only
// forwards.
double trainer_evaluate(Trainer *t, const Data *d, size_t windows);
void trainer_free(Trainer *t);
#endif
