// stages.h: trains a pipeline on all ranks of the world, then reads this rank's ledgers. For the
// experiments of chapters 04 and 05.
#ifndef STAGES_H
#define STAGES_H
#include "04_pipeline_naive/pipeline.h"
#include "judge/frame/training.h"

// Numbers from the ledgers of this rank. Messages and sums are averages per step, so a step that
// differs from the others shows as a fraction.
typedef struct {
    double messages, message_bytes, tied_calls, tied_bytes, scalar_calls, scalar_bytes;
    size_t in_flight;                                    // in the last step
    size_t parameters, gradients, optimizer;             // bytes live
    size_t activations, message_buffers;                 // peak bytes of the last step
} StageCosts;

// A training of three steps, of `sequences` synthetic sequences in --micro-batches pieces. Calls
// usage_error() where there are more ranks than blocks, or more pieces than sequences. The caller
// calls data_free() on the data.
Training stages_training(Run *run, const ModelConfig *model, size_t sequences);

// Calls the step t->steps times, with a PipelineRank that has this schedule. m: this rank's stage,
// which may have several chunks and which the caller frees; NULL: stages as equal as possible.
StageCosts stages_train(Run *run, const Training *t, Model *m, PipelineStep *step,
                        ScheduleRule schedule, Trajectory *out);

// Runs one step twice: by a lesson's own loop, and by `runner` with a list. Checks that gradients
// and loss have the same bits. Returns the loop's messages, in_flight, activations and
// message_buffers; the other numbers are 0. a, b: equal models, which the caller frees; both NULL:
// stages as equal as possible.
typedef PipelineResult ListRunner(Comm *pp, Model *m, const Schedule *list, const Batch *batch,
                                  size_t micro_batches);
StageCosts stages_same_bits(Run *run, const char *what, const Training *t, Model *a, Model *b,
                            PipelineLoop *loop, const Schedule *list, ListRunner *runner);
#endif
