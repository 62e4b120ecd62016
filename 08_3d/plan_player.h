// plan_player.h: plays the schedule of one replica (plan_time.c). plan_step.c makes a step of it.
#ifndef PLAN_PLAYER_H
#define PLAN_PLAYER_H
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "01_data_parallel/experiments/experiments.h"
#include "08_3d/plan.h"

// A layer in an op, without communication over dp. sums: of its partial gradients over tp.
typedef enum { PLAN_EMBEDDING, PLAN_BLOCK, PLAN_HEAD, PLAN_LAYER_KINDS } PlanLayerKind;
typedef struct {
    double takes, sums;
} PlanLayer;
// The forwards and backwards of a chunk. Index [forward or backward][larger or smaller
// micro-batch].
typedef struct {
    PlanStage stage;
    PlanOp op[2][2];
    PlanOp *each[2][2];                      // one op per rank of cp, if they differ
    double held[2], working[2];              // bytes per micro-batch: kept; while it computes
    PlanLayer layer[2][2][PLAN_LAYER_KINDS]; // only if `layered`
} PlanChunk;
typedef struct {
    PlanChunk *chunk;
    Schedule list;
    size_t done;        // ops of the list
    double now, busy;   // picoseconds
    double lane[2];     // the time from which the lane to the previous, next stage is free
    double *arrives[2]; // the time at which each op's message arrives; below 0: not sent
    bool near[2];       // is the previous, the next stage in this node?
    double held, peak;  // bytes in flight
    PlanOp sum;
    // Unequal ranks of cp: the time by which each ended before the last rank; the same for each
    // message.
    double *early, *sent_early[2];
    // Only if `layered` (plan_overlap.c): the time from which the lane of the group over dp is
    // free, the end of the last reduction, and the time from which each layer has the new weights.
    // Buckets in the order of their starts; with shares_table the last one waits for the other
    // stage.
    double dp_lane, reduced, *gathered;
    BucketPiece *piece;
    size_t pieces, started;
    bool shares_table;
} PlanStageTime;
typedef struct {
    const PlanTask *t;
    const PlanLayout *l;
    size_t ring;             // ranks of cp that are played; 1: all are alike
    bool layered;            // communication over dp runs beside the layers
    size_t d, m;             // the replica; its micro-batches that are played
    size_t sequences, large; // sequences of the m micro-batches; of the largest one
    PlanStageTime *stage;
} PlanPlayer;

// Plays replica d from the first forward to the last backward.
void plan_play_replica(PlanPlayer *p);
void plan_player_free(PlanPlayer *p);
// Does each rank of stage `from` share a node with its peer of stage `to`?
bool plan_stages_near(const PlanPlayer *p, size_t from, size_t to);
size_t plan_message_bytes(const PlanPlayer *p, size_t B);

// ---- Communication over dp beside computation (plan_overlap.c) ----
bool plan_is_layered(const PlanTask *t, const PlanLayout *l);
void plan_layer_times(const PlanPlayer *p, PlanChunk *c, bool forward, size_t small, size_t B);
void plan_overlap_begin(const PlanPlayer *p, PlanStageTime *s, size_t i);
void plan_overlap_free(PlanStageTime *s);
// Plays an op that begins at time `at`. Returns its end.
double plan_play_layers(const PlanPlayer *p, PlanStageTime *s, PipeOp op, size_t small, double at);
// The time when all reductions of a stage have ended, if its replicas are ready at `ready`.
double plan_overlap_end(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage,
                        double ready);
double plan_bucket_bytes(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage);
#endif
