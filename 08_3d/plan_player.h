// plan_player.h declares functions that play the schedule of one replica (plan_time.c), up to its
// last backward.
#ifndef PLAN_PLAYER_H
#define PLAN_PLAYER_H
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "01_data_parallel/experiments/experiments.h"
#include "08_3d/plan.h"

typedef enum { PLAN_EMBEDDING, PLAN_BLOCK, PLAN_HEAD, PLAN_LAYER_KINDS } PlanLayerKind;
// The times of a layer in an op, without communication over dp.
// takes: the time of the layer.
// sums: the time of the sums of the layer's partial gradients over tp.
typedef struct {
    double *takes, *sums; // [rank of the ring]
} PlanLayer;
// The times of one pass over dp of a layer's weights and of its gradient, for each kind of layer. A
// pass is an all-gather or a reduce-scatter.
typedef struct {
    double weights[PLAN_LAYER_KINDS], gradient[PLAN_LAYER_KINDS];
} PlanPass;
// The forwards and backwards of a chunk. The two indices are [forward or backward][larger or
// smaller micro-batch].
typedef struct {
    PlanStage stage;
    // Only if `layered`. slice: the chunk on each rank of tp, or on one rank if all groups are
    // placed on nodes alike. pass: the times of the passes of each slice.
    PlanStage *slice;
    PlanPass *pass;
    PlanOp op[2][2];
    // The bytes of a micro-batch. The index is [larger or smaller micro-batch].
    // held: the bytes while the micro-batch waits for its backward.
    // working: the bytes while the micro-batch computes.
    double held[2], working[2];
    // The times of a layer of each kind, if ops are played layer by layer.
    PlanLayer layer[2][2][PLAN_LAYER_KINDS];
    PlanRings *rings[2][2]; // only if each rank of a ring is played: the rings of a block
} PlanChunk;
// The communication of a slice over dp.
// free: the time from which the slice's lane is free.
// piece: the slice's buckets in the order of their starts. The first `started` buckets have
// started.
typedef struct {
    double free;
    BucketPiece *piece;
    size_t pieces, started;
} PlanLane;
typedef struct {
    PlanChunk *chunk;
    bool copied; // the chunks belong to another stage
    Schedule list;
    size_t done;      // ops of the list that have been played
    double now, busy; // picoseconds
    // Index 0: to the previous stage, 1: to the next stage.
    // lane: the time from which the lane is free.
    // near: all ranks share a node with the other stage.
    double lane[2];
    bool near[2];
    // The time at which each op's message arrives, or at which an op without a message ends. Below
    // 0: the op has not been played.
    double *arrives[2];
    double held, peak; // bytes in flight
    PlanOp sum;
    // These fields are used only if the ranks of cp are unequal. early[r]: how much earlier than
    // the last rank rank r ended. sent_early[what][op, r]: how much earlier than the last message
    // the message of rank r left.
    double *early, *sent_early[2];
    double *at; // [ranks of cp] room for one time per rank
    // Only if `layered` (plan_overlap.c). dp_lane: a lane for each PlanChunk.slice. reduced: the
    // end of the last reduction. gathered: the time from which each layer has the new weights.
    PlanLane *dp_lane;
    size_t dp_lanes;
    double reduced, *gathered;
    bool shares_table; // the last bucket waits for the other stage
} PlanStageTime;
typedef struct {
    const PlanTask *t;
    const PlanLayout *l;
    size_t ring;  // ranks of cp that are played; 1: one rank stands for all
    bool layered; // communication over dp runs beside the layers
    // d: the replica.
    // m: the number of micro-batches that are played.
    // sequences: the sequences of the m micro-batches together.
    // large: the sequences of the largest micro-batch.
    size_t d, m;
    size_t sequences, large;
    PlanStageTime *stage;
    // The stages of another play of the same replica. This play uses the chunks of these stages.
    // NULL: this play makes its own chunks.
    const PlanStageTime *twin;
} PlanPlayer;

// Frees the layers, rings, slices and passes of a chunk.
void plan_layers_free(PlanChunk *c);
// Plays replica p->d from the first forward to the last backward.
void plan_play_replica(PlanPlayer *p);
void plan_player_free(PlanPlayer *p);
// Returns whether each rank of stage `from` in replica p->d shares a node with its peer of stage
// `to`. Under ZeRO 2 and 3 this must hold in all replicas.
bool plan_stages_near(const PlanPlayer *p, size_t from, size_t to);
size_t plan_message_bytes(const PlanPlayer *p, size_t B);

// ---- Communication over dp beside computation (plan_overlap.c) ----
bool plan_is_layered(const PlanTask *t, const PlanLayout *l); // the value of PlanPlayer.layered
void plan_layer_times(const PlanPlayer *p, PlanChunk *c, bool forward, size_t small, size_t B);
void plan_layer_slices(const PlanPlayer *p, PlanChunk *c);
void plan_overlap_begin(const PlanPlayer *p, PlanStageTime *s, size_t i);
void plan_overlap_free(PlanStageTime *s);
// Plays an op layer by layer. at [p->ring]: on entry, the time when each rank begins; on return,
// the time when each rank ends.
void plan_play_layers(const PlanPlayer *p, PlanStageTime *s, PipeOp op, size_t small, double *at);
// Returns the time when all reductions of a slice of the stage have ended, if the replicas have
// ended their backwards at `ready`.
double plan_overlap_end(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage,
                        size_t slice, double ready);
double plan_bucket_bytes(const PlanPlayer *p, const PlanStageTime *s, const PlanStage *stage);
#endif
