// stages.h: what the lessons of chapters 04 and 05 share: the training loop around a pipeline's step (the step itself
// stands in each lesson), its unsplit twin, and the comparison of the two.
#ifndef STAGES_H
#define STAGES_H
#include "04_pipeline_naive/timeline.h"
#include "common/data.h"
#include "common/optimizer.h"

typedef struct {
    ModelConfig model;
    Data data;
    size_t sequences, micro_batches;                     // of a step's batch: sequences, cut into so many pieces
    Optimizer optimizer;
    double clip;                                         // largest gradient norm; 0: no clipping
} Training;

// One rank's end of the pipeline. Stage i is rank i.
typedef struct {
    Comm *pp, *tied;                                     // all stages; {first, last}, or NULL
    Model *model;                                        // my layers only
    Schedule schedule;                                   // my list
    Optimizer optimizer;
    const Training *training;
} Stages;

typedef struct { double loss, norm; size_t in_flight; } StageStep;         // loss and norm are alike on all ranks
typedef StageStep (*StepOfStages)(Stages *s, const Batch *batch);          // batch[micro-batch]

enum { STAGE_STEPS = 3 };
typedef struct {
    Snapshot *gradients[STAGE_STEPS], *weights;          // after each step; after the last one
    double loss[STAGE_STEPS], norm[STAGE_STEPS];
} Course;
Course course_new(Run *run);
void course_free(Course *c);

// What the ledgers of this rank say about the last step.
typedef struct {
    size_t messages, message_bytes, tied_calls, tied_bytes, scalar_calls, scalar_bytes, in_flight;
    size_t parameters, gradients, optimizer;             // bytes live
    size_t activations, send_buffers;                    // peak bytes
} StageCosts;

// Trains STAGE_STEPS steps on all ranks of the world, stage i by rule(p, m, i).
StageCosts stages_train(Run *run, const Training *t, ScheduleRule rule, StepOfStages step, Course *out);
// The same training on rank 0 alone, all layers, micro-batch after micro-batch: gradient accumulation (chapter 02).
// Not counted.
void stages_unsplit(Run *run, const Training *t, Course *out);
// Gradients of every step, final weights, loss and gradient norm of every step: every bit.
void stages_compare(Run *run, const char *what, const Course *got, const Course *want);
// Micro-batch k is sequences [lo, hi) of the batch.
Range stages_micro_batch(const Training *t, size_t k);
#endif
