// plan_player.h: a replica's schedule, played: by plan_time.c for plan_step.c, which makes a step
// of it.
#ifndef PLAN_PLAYER_H
#define PLAN_PLAYER_H
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/plan.h"

typedef struct {
    // forwards and backwards of a chunk: of the larger micro-batches
    PlanStage stage;
    // [forward or backward][the larger or the smaller]
    PlanOp op[2][2];
    // the same of each rank of cp, where these are not alike
    PlanOp *each[2][2];
    double held[2], working[2]; // bytes of one micro-batch
} PlanChunk;
typedef struct {
    PlanChunk *chunk;
    Schedule list;
    size_t done;
    double now, busy, lane[2], *arrives[2]; // lane: to the stage before, to the next one
    bool near[2]; // are these in this node?
    double held, peak; // bytes in flight
    PlanOp sum;
    // ranks of cp that are not alike: by how much before the last one
    double *early, *sent_early[2];
} PlanStageTime;
typedef struct {
    const PlanTask *t;
    const PlanLayout *l;
    // ranks of cp that are played: 1 where they are alike
    size_t ring;
    // micro-batches that are played, of a replica's; the largest one
    size_t d, m, sequences, large;
    PlanStageTime *stage;
} PlanPlayer;

// Replica d from the first forward to the last backward.
void plan_play_replica(PlanPlayer *p);
void plan_player_free(PlanPlayer *p);
// all ranks of both, each and its peer
bool plan_stages_near(const PlanPlayer *p, size_t from, size_t to);
size_t plan_message_bytes(const PlanPlayer *p, size_t B);
#endif
