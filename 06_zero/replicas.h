// replicas.h: what the lessons of this chapter are held against. The same training is done three times: by ZeRO (the
// step stands in the lesson), by data-parallel replicas that the same ranks keep beside it, and unsplit on rank 0.
#ifndef REPLICAS_H
#define REPLICAS_H
#include "common/data.h"
#include "common/optimizer.h"

typedef struct {
    ModelConfig model;
    Data data;
    // batch: sequences of all ranks in a step; micro_batches: of each rank
    size_t steps, batch, micro_batches;
    Optimizer optimizer;
    double clip;                                   // largest gradient norm; 0: no clipping
} Training;

// mean loss a counted token, gradient norm before clipping: alike on all ranks
typedef struct { double loss, norm; } StepResult;
// One step of m with my micro-batches. dp is NULL when there is nobody to talk to.
typedef StepResult (*Step)(Comm *dp, Model *m, Optimizer *o, const Training *t, const Batch *mine);

typedef struct {
    double *loss, *norm;                           // [steps]
    Snapshot *gradients, *weights;                 // of the last step, and after it
    size_t steps;
} Trained;
// All steps. Ledger and peaks are reset before each one, so that those of the last step stand afterwards.
Trained train(Run *run, Comm *dp, Model *m, const Training *t, Step step);
Trained train_replicas(Run *run, const Training *t);       // data parallel, ledger paused
Trained train_unsplit(Run *run, const Training *t);        // one device, one batch: rank 0 works, ledger paused
void trained_free(Trained *t);

// Compares losses, norms, gradients of the last step and weights. limit 0: every bit. weights_too: false leaves out
// gradients and weights: AdamW divides a gradient by its own size, which blows up the rounding of fp32 along a
// trajectory.
void judge(Run *run, const char *what, Trained *got, Trained *want, double limit, bool weights_too);
// The limit of what must be equal in every bit: 0, but under --reduce fast the library may add in another order.
double every_bit(const Run *run);
#endif
