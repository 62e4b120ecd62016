// trainer.h: data x context x tensor x pipeline parallelism, with ZeRO and recomputation: chapters 01 to 07, composed.
#ifndef TRAINER_H
#define TRAINER_H
#include "01_data_parallel/compression.h"
#include "01_data_parallel/data_parallel.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "04_pipeline_naive/pipeline.h"
#include "07_recompute/recompute.h"
#include "08_3d/mesh.h"
#include "common/model/data.h"
#include "common/model/optimizer.h"

// How the ranks of a tp group cut a layer: by columns and rows (03.06), in blocks on a square (03.09), on a square in
// layers (03.10), on a cube (03.11).
typedef enum { TENSOR_1D, TENSOR_2D, TENSOR_25D, TENSOR_3D } TensorKind;

// How the gradients of the replicas are added: one way at a time.
typedef enum {
    REDUCE_AT_END,                                 // one all-reduce after the last backward (chapter 01)
    REDUCE_IN_BUCKETS,                             // all-reduces of parts while the last backward runs (01.04)
    REDUCE_COMPRESSED,                             // in fewer bytes, the rest a step later (01.06)
    REDUCE_ZERO_1,                                 // ZeRO's stages (chapter 06): to the rank that owns a part
    REDUCE_ZERO_2,
    REDUCE_ZERO_3,
    REDUCE_PREFETCH                                // stage 3, which gathers weights a layer ahead (06.05)
} Reduction;

typedef struct {
    ModelConfig model;
    Degrees mesh;
    TensorKind tensor;
    size_t depth;                                  // of 2.5D, 0: the least that makes a grid of the tp ranks
    size_t batch, micro_batch;                     // sequences of a step; of one replica and micro-batch, at most
    ScheduleRule schedule;
    size_t chunks;                                 // of the model on each stage; above 1 the order is 05.03's
    const size_t *stage_blocks;                    // blocks of each stage, of each chunk in model order where there are
                                                   // several; or NULL: as equal as possible
    bool rebalanced;                               // trainer_rebalance will be called: layers are timed
    Reduction reduction;
    CompressionPlan compression;                   // of REDUCE_COMPRESSED: TOP_K or POWER_SGD
    bool sequence;                                 // sequence parallelism: a tp rank has some rows outside of products
    bool blockwise;                                // attention in blocks; with cp it always is
    Recompute recompute;
    size_t activation_budget;                      // bytes per rank for which each block's is chosen; 0: recompute's
    double clip;                                   // largest gradient norm; 0: no clipping
} TrainerConfig;
void trainer_require(const TrainerConfig *c);      // refused.c: usage_error() for what cannot work
// The way that these four options name. usage_error() where two of them exclude each other. (refused.c)
Reduction trainer_reduction(size_t zero, bool prefetch, bool overlap, bool compressed);
static inline size_t trainer_zero(const TrainerConfig *c) {    // ZeRO's stage: 0 is data parallelism
    if (c->reduction == REDUCE_PREFETCH) return 3;
    return c->reduction < REDUCE_ZERO_1 ? 0 : 1 + (size_t)(c->reduction - REDUCE_ZERO_1);
}
static inline bool tensor_is_grid(const TrainerConfig *c) { return c->tensor == TENSOR_2D || c->tensor == TENSOR_25D; }
TesseractSides tensor_sides(const TrainerConfig *c);           // of such a grid
size_t trainer_chunks(const TrainerConfig *c);     // 1 or more
size_t trainer_micro_batches(const TrainerConfig *c);          // of a step, on each replica
Schedule trainer_schedule(const TrainerConfig *c, size_t m, size_t stage);         // of m micro-batches; schedule_free

typedef struct {
    TrainerConfig config;
    Mesh mesh;
    CommGrid grid;                                 // of the tp group; 2D and 2.5D
    Cube cube;                                     // 3D
    Buckets *buckets;                              // of REDUCE_IN_BUCKETS; else NULL
    Compression *compression;                      // of REDUCE_COMPRESSED: what this rank has not sent yet; else NULL
    Picoseconds reduction[2];                      // of the last step: when its sum over dp began and ended
    Model *model;                                  // this stage's layers, this rank's part of their tensors
    Optimizer optimizer;
    Schedule schedule;
    size_t *blocks;                                // of each stage or chunk, now; of a pipeline that is rebalanced
    double *cost;                                  // and what its layers took in the last step
    Positions positions;                           // of each sequence: this rank's; n 0: all
    size_t micro_batches;                          // m, the same on every replica
    double local_loss;                             // of the last step: this rank's part, before the sum over ranks
    Range sequences;                               // of each global batch: those of this replica
} Trainer;

// The whole idea in one function: a step of dp x tp x pp by 1F1B, without any option. stage: pipeline_stage_layers(),
// cut by tensor_parallel(), allocated. tests/plain-step.t compares it with the two functions below.
StepResult train_step_plain(const Mesh *mesh, Model *stage, Optimizer *o, const TrainerConfig *c, const Data *d,
                            uint64_t step);

Trainer *trainer_new(Comm *world, const TrainerConfig *c, Optimizer optimizer);    // collective
StepResult trainer_gradients(Trainer *t, const Data *d, uint64_t step);    // all but the update: gradients are final
void trainer_update(Trainer *t, StepResult r);                             // clip, optimizer, ZeRO's gather
void trainer_skip(Trainer *t);                     // in place of the update: weights and optimizer stay as they are
// After an update: the stages' blocks are cut anew for the times of this step, and layers move. Collective. False: all
// stay where they are.
bool trainer_rebalance(Trainer *t);
// Mean loss a byte over this many windows, spread over the held-out text. Forwards only: nothing is kept.
double trainer_evaluate(Trainer *t, const Data *d, size_t windows);
void trainer_free(Trainer *t);
#endif
