// stages.h: trains a pipeline on all ranks of the world, and what the ledgers of a rank say afterwards. For the lessons
// of chapters 04 and 05, whose steps stand in the lessons themselves.
#ifndef STAGES_H
#define STAGES_H
#include "04_pipeline_naive/pipeline.h"

// What the ledgers of this rank say. Messages and sums are per step: an average, so that a step that differs from the
// others shows as a fraction.
typedef struct {
    double messages, message_bytes, tied_calls, tied_bytes, scalar_calls, scalar_bytes;
    size_t in_flight;                                    // in the last step
    size_t parameters, gradients, optimizer;             // bytes live
    size_t activations, message_buffers;                 // peak bytes of the last step
} StageCosts;

// Stage i is rank i, with its own layers. The step is called t->steps times, with a PipelineRank that has this
// schedule.
StageCosts stages_train(Run *run, const Training *t, Step *step, ScheduleRule schedule, Trajectory *out);

// The same for a model that the caller has made (and frees): its stage may have several chunks.
StageCosts stages_train_model(Run *run, const Training *t, Model *m, Step *step, ScheduleRule schedule,
                              Trajectory *out);

// Checks the loss of a batch by forwards alone (pipeline_loss): on even stages, and where all but the last one have one
// block.
void stages_check_evaluation(Run *run, const Training *t);

// Checks that one step's gradients and loss have the same bits, once by a lesson's own loop and once by the executor.
// Returns what the loop has sent and held: messages, in_flight, activations and message_buffers; the rest is 0.
StageCosts stages_same_bits(Run *run, const char *what, const Training *t, PipelineLoop *loop, ScheduleRule schedule);
// Of two equal models, which the caller frees, and of this rank's list.
StageCosts stages_same_bits_models(Run *run, const char *what, const Training *t, Model *a, Model *b,
                                   PipelineLoop *loop, const Schedule *list);
#endif
