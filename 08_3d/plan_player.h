// plan_player.h: plays the schedule of one replica (plan_time.c). plan_step.c makes a step of it.
#ifndef PLAN_PLAYER_H
#define PLAN_PLAYER_H
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/plan.h"

// The forwards and backwards of a chunk. Index [forward or backward][larger or smaller
// micro-batch].
typedef struct {
    PlanStage stage;
    PlanOp op[2][2];
    PlanOp *each[2][2];         // one op per rank of cp, if they differ
    double held[2], working[2]; // bytes per micro-batch: kept; while it computes
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
} PlanStageTime;
typedef struct {
    const PlanTask *t;
    const PlanLayout *l;
    size_t ring;             // ranks of cp that are played; 1: all are alike
    size_t d, m;             // the replica; its micro-batches that are played
    size_t sequences, large; // sequences of the m; of the largest of them
    PlanStageTime *stage;
} PlanPlayer;

// Plays replica d from the first forward to the last backward.
void plan_play_replica(PlanPlayer *p);
void plan_player_free(PlanPlayer *p);
// Does each rank of stage `from` share a node with its peer of stage `to`?
bool plan_stages_near(const PlanPlayer *p, size_t from, size_t to);
size_t plan_message_bytes(const PlanPlayer *p, size_t B);
#endif
