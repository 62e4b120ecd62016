// stages.h: trains a pipeline on all ranks of the world, and reads the ledgers of a rank
// afterwards. For the experiments of chapters 04 and 05.
#ifndef STAGES_H
#define STAGES_H
#include "04_pipeline_naive/pipeline.h"
#include "judge/frame/training.h"

// Numbers from the ledgers of this rank. Messages and sums are per step: an average, so that a step
// that differs from the others shows as a fraction.
typedef struct {
    double messages, message_bytes, tied_calls, tied_bytes, scalar_calls, scalar_bytes;
    size_t in_flight;                                    // in the last step
    size_t parameters, gradients, optimizer;             // bytes live
    size_t activations, message_buffers;                 // peak bytes of the last step
} StageCosts;

// Three steps of `sequences` synthetic sequences in --micro-batches pieces. usage_error() where there
// are more ranks than blocks, or more pieces than sequences. data_free() the data.
Training stages_training(Run *run, const ModelConfig *model, size_t sequences);

// Calls the step t->steps times, with a PipelineRank that has this schedule. m: this rank's stage,
// which may have several chunks and stays the caller's; NULL: stage i of p as equal as possible.
StageCosts stages_train(Run *run, const Training *t, Model *m, PipelineStep *step,
                        ScheduleRule schedule, Trajectory *out);

// Checks that one step's gradients and loss have the same bits, once by a lesson's own loop and
// once by a list that `runner` runs. Returns what the loop has sent and held: messages, in_flight,
// activations and message_buffers; the rest is 0. a, b: equal models, which the caller frees; both
// NULL: stages as equal as possible.
typedef PipelineResult ListRunner(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                                  size_t micro_batches);
StageCosts stages_same_bits(Run *run, const char *what, const Training *t, Model *a, Model *b,
                            PipelineLoop *loop, const Schedule *list, ListRunner *runner);
#endif
