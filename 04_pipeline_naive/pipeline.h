// pipeline.h: a model cut into stages of neighbouring layers, one rank each. 02_naive.c has the messages, the end of a
// step and what a stage computes; 03_gpipe.c has schedules, which are lists of forwards and backwards, and the executor
// that runs any of them. p stages, m micro-batches; stage i is rank i of pp.
#ifndef PIPELINE_H
#define PIPELINE_H
#include "common/lesson/training.h"

// ---------------------------------------------------------------- 02_naive.c: one stage

// The layers of stage i. Blocks per stage: blocks[] of {3, 4, 3}, or NULL: as equal as possible. The embedding stands
// before stage 0's blocks, head and loss after the last stage's.
Range pipeline_stage_layers(const ModelConfig *c, const size_t *blocks, size_t p, size_t i);

// One micro-batch on this stage. Whoever receives and sends sets the four tensors before they are used.
typedef struct {
    Shape in, out;                                 // of x and dx, of y and dy: as my first and last layer say
    Tensor x, y;                                   // my layers' input (first stage: none) and output (last: none)
    Tensor dy, dx;                                 // the gradients of y (last stage: none) and of x (first: none)
    Arena input;                                   // holds x until the backward is done
    ActivationStash *kept;                                  // what my layers keep from forward to backward
} PipelineBatch;
typedef struct {
    double loss;                                   // sum of token losses; on the last stage, 0 elsewhere
    size_t in_flight;                              // most micro-batches between their forward and their backward
} PipelineResult;
typedef struct {
    Model *m;                                      // my layers
    const Batch *batch;                            // [m] tokens and targets of the micro-batches
    PipelineBatch *micro;                          // [m]
    bool first, last;
    size_t before, next;                           // ranks of the neighbours
    size_t in_flight;                              // now
    PipelineResult result;
} PipelineStage;
PipelineStage pipeline_begin(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
void pipeline_forward(PipelineStage *s, size_t k); // my layers, micro-batch k: y from x; no message
void pipeline_backward(PipelineStage *s, size_t k);        // dx from dy; gradients of my weights are added; frees x
PipelineResult pipeline_end(PipelineStage *s);

// All forwards and backwards of a step on this stage, with their messages. Gradients are added to m's.
typedef PipelineResult PipelineLoop(Comm *pp, Model *m, const Batch *batch, size_t micro_batches);
PipelineLoop pipeline_naive, pipeline_gpipe;       // 02_naive.c, 03_gpipe.c

// Sums the gradients of the tied embedding over the two stages that hold a copy of it: {first, last}, a group of its
// own (NULL on other stages). Where first and last are one stage, it adds the two uses. Call on whole local gradients.
void pipeline_tied_sum(Model *m, Comm *tied);
// The group {first, last} of a pipeline: collective over pp. NULL in the middle, and for pipelines of one stage.
Comm *pipeline_tied_group(Comm *pp);

// One micro-batch forward only, as evaluation wants it: nothing is kept, and no stage runs ahead of the next one, which
// must have received the last micro-batch's activations. The sum of token losses on the last stage, 0 elsewhere.
double pipeline_loss(Comm *pp, Model *m, const Batch *b);

// ---------------------------------------------------------------- 03_gpipe.c: schedules and their executor

typedef struct { enum { FORWARD, BACKWARD } what; size_t micro_batch; } PipeOp;
typedef struct { PipeOp *ops; size_t n; } Schedule;              // of one stage; free with schedule_free
typedef Schedule (*ScheduleRule)(size_t p, size_t m, size_t i);  // the list of stage i
Schedule schedule_naive(size_t p, size_t m, size_t i);           // a micro-batch there and back, then the next one
Schedule schedule_gpipe(size_t p, size_t m, size_t i);           // all forwards, then all backwards (Huang et al. 2018)
void schedule_add(Schedule *s, int what, size_t micro_batch);    // (schedule_1f1b is chapter 05's)
void schedule_free(Schedule *s);

// Runs one step's schedule: gradients are added to m's, in the order of the list's backwards. batch[k]: micro-batch k.
// For each neighbour MEM_COMMUNICATION holds two messages that are being sent, as large as the largest micro-batch's
// (one, if there is only one micro-batch), and the next one to be received, until it is there.
PipelineResult pipeline_run(Comm *pp, Model *m, const Schedule *s, const Batch *batch, size_t micro_batches);

// ---------------------------------------------------------------- the step of a lesson (chapters 04 and 05)

// This rank in a pipeline that is trained: the first argument of a Step.
typedef struct {
    Comm *pp, *tied;                               // all stages; {first, last}, or NULL
    ScheduleRule schedule;                         // which list pipeline_step runs
    size_t in_flight;                              // of the last step
} PipelineRank;
StepResult pipeline_step(void *rank, Model *m, Optimizer *o, const Training *t, const Batch *batch);     // 03_gpipe.c
// What follows the last backward, whatever the schedule was: tied sum, sums of loss and squares, update. 02_naive.c.
StepResult pipeline_update(PipelineRank *rank, Model *m, Optimizer *o, const Training *t, const Batch *batch,
                           PipelineResult r);
#endif
