// trainer.h: data x tensor x pipeline parallelism, with ZeRO and recomputation: what chapters 01-07 taught, composed.
#ifndef TRAINER_H
#define TRAINER_H
#include "01_data_parallel/data_parallel.h"
#include "04_pipeline_naive/pipeline.h"
#include "07_recompute/recompute.h"
#include "08_3d/mesh.h"
#include "common/model/data.h"
#include "common/model/optimizer.h"

typedef struct {
    ModelConfig model;
    Degrees mesh;
    size_t batch, micro_batch;                     // sequences of a step; of one replica and micro-batch, at most
    ScheduleRule schedule;
    const size_t *stage_blocks;                    // blocks of each stage, or NULL: as equal as possible
    bool rebalanced;                               // trainer_rebalance will be called: layers are timed
    size_t zero;                                   // 0..3
    bool prefetch;                                 // of stage 3: weights are gathered a layer ahead
    bool overlap;                                  // of stage 0: gradients are reduced while the last backward runs
    bool sequence;                                 // sequence parallelism: each tp rank has some rows outside of products
    Recompute recompute;
    double clip;                                   // largest gradient norm; 0: no clipping
} TrainerConfig;
void trainer_require(const TrainerConfig *c);      // usage_error() for what cannot work

typedef struct {
    TrainerConfig config;
    Mesh mesh;
    Buckets *buckets;                              // with overlap; else NULL
    Model *model;                                  // my stage's layers, my part of their tensors
    Optimizer optimizer;
    Schedule schedule;
    size_t *blocks;                                // of each stage, now; of a pipeline that is rebalanced
    double *cost;                                  // and what its layers took in the last step
    size_t micro_batches;                          // m, the same on every replica
    Range sequences;                               // of each global batch: my replica's
} Trainer;

Trainer *trainer_new(Comm *world, const TrainerConfig *c, Optimizer optimizer);    // collective
StepResult trainer_gradients(Trainer *t, const Data *d, uint64_t step);    // all but the update: gradients are final
void trainer_update(Trainer *t, StepResult r);                             // clip, optimizer, ZeRO's gather
// After an update: the stages' blocks are cut anew for the times of this step, and layers move. Collective. False: all
// stay where they are.
bool trainer_rebalance(Trainer *t);
// Mean loss a byte over this many windows, spread over the held-out text. Forwards only: nothing is kept.
double trainer_evaluate(Trainer *t, const Data *d, size_t windows);
void trainer_free(Trainer *t);
#endif
