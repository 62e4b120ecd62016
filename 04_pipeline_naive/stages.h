// stages.h: what the lessons of chapters 04 and 05 share: one rank's end of a pipeline, and what its ledgers say after
// a training. The step itself stands in each lesson.
#ifndef STAGES_H
#define STAGES_H
#include "04_pipeline_naive/timeline.h"
#include "common/lesson/training.h"

// Stage i is rank i.
typedef struct {
    Comm *pp, *tied;                                     // all stages; {first, last}, or NULL
    Schedule schedule;                                   // my list
    size_t in_flight;                                    // of my list, as it ran last
    Step *step;                                          // the lesson's; it gets this as its first argument
} Stages;

// What the ledgers of this rank say about the last step.
typedef struct {
    size_t messages, message_bytes, tied_calls, tied_bytes, scalar_calls, scalar_bytes, in_flight;
    size_t parameters, gradients, optimizer;             // bytes live
    size_t activations, message_buffers;                 // peak bytes
} StageCosts;

// Trains on all ranks of the world, each with its own layers, stage i by rule(p, m, i).
StageCosts stages_train(Run *run, const Training *t, ScheduleRule rule, Step *step, Trajectory *out);
#endif
