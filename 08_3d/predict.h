// predict.h: what a step of the trainer must cost one rank, from the sizes alone (techniques: PTD-P section 3.2, ZeRO
// section 7, Korthikanti section 4). Nothing here looks at a model or at a ledger.
#ifndef PREDICT_H
#define PREDICT_H
#include "08_3d/trainer.h"

typedef struct {
    size_t tp_calls, dp_calls;                             // all-reduces on tp, or all calls on a grid; over dp
    size_t tp_received;                                    // bytes, on a grid
    size_t tp_gathers, tp_scatters;                        // all-gathers and reduce-scatters on tp
    size_t tp_bytes, pp_bytes, dp_bytes, tied_bytes;       // sent by this rank in one step; dp: over dp x cp
    size_t cp_bytes;
    size_t scalar_bytes;                                   // the loss, and the norm's squares, one a tensor
    size_t parameters, gradients, optimizer;               // bytes between steps
    size_t activations;                                    // peak bytes during the step
    // With --compress: kept between steps (PowerSGD's Q), and the most while gradients are summed; and picoseconds of
    // that sum on the simulated clock, from when the last replica has come.
    size_t compression, compression_peak;
    double dp_time;
} Prediction;
Prediction predict_step(const TrainerConfig *c, size_t rank, bool adamw);
// What each block of a stage keeps, so that no rank of the stage has more activations than c->activation_budget, and
// as little as possible is computed again (07.04): the same on all ranks of the stage. choice [its blocks]. False: not
// even recomputing all of them is enough; predict_least() bytes are.
bool predict_choices(const TrainerConfig *c, size_t stage, Recompute *choice);
size_t predict_least(const TrainerConfig *c, size_t stage);
#endif
