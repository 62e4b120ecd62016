// pipeline.h: a model cut into stages of neighbouring layers, one rank each; the one executor that runs every schedule.
//
// A schedule is data: per stage, a list of forwards and backwards of micro-batches. The executor walks the list. It
// waits for what an op needs, and for nothing else: receives are posted ahead, sends are started. Who talks to whom
// follows from the list alone: activations [B*T, C] go to the next stage, their gradients come back.
#ifndef PIPELINE_H
#define PIPELINE_H
#include "common/model/model.h"

typedef struct { enum { FORWARD, BACKWARD } what; size_t micro_batch; } PipeOp;
typedef struct { PipeOp *ops; size_t n; } Schedule;              // of one stage; free with schedule_free
typedef Schedule (*ScheduleRule)(size_t p, size_t m, size_t i);  // p stages, m micro-batches: the list of stage i
// (PipeDream-Flush's schedule is chapter 05's.)
Schedule schedule_naive(size_t p, size_t m, size_t i);           // a micro-batch there and back, then the next one
Schedule schedule_gpipe(size_t p, size_t m, size_t i);           // all forwards, then all backwards (Huang et al. 2018)
void schedule_add(Schedule *s, int what, size_t micro_batch);
void schedule_free(Schedule *s);

// Blocks per stage, for stages [0, p): the embedding stands before stage 0's blocks, the head after the last stage's.
// blocks[] of {3, 4, 3} or NULL: as equal as possible.
Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i);

typedef struct {
    double loss;                                                 // sum of token losses; on the last stage, 0 elsewhere
    size_t in_flight;                                            // most micro-batches between forward and backward
} PipelineResult;
// Runs one step's schedule: gradients are added to m's, in the order of the list's backwards. batch[k]: micro-batch k.
// For each neighbour MEM_COMMUNICATION holds two messages on their way out, as large as the largest micro-batch's (one,
// if there is only one micro-batch), and the next one that is to come in, until it is received.
PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *s, const Batch *batch, size_t micro_batches);
// One micro-batch forward only, as evaluation wants it: nothing is kept, and no stage runs ahead of the next one, which
// must have taken the last micro-batch's activations. The sum of token losses on the last stage, 0 elsewhere.
double pipeline_loss(Comm *pp, Model *m, const Batch *b);

// Sums the gradients of the tied embedding over the two stages that hold a copy of it: {first, last}, a group of its
// own (NULL on other stages). Where first and last are one stage, it adds the two uses. Call on whole local gradients.
void pipeline_tied_sum(Model *m, Comm *tied);
// The group {first, last} of a pipeline: collective over pp. NULL in the middle, and for pipelines of one stage.
Comm *pipeline_tied_group(Comm *pp);
#endif
