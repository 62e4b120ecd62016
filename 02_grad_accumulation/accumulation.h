// accumulation.h: declares training steps that take a batch in m micro-batches, on one device and
// on data-parallel replicas.
#ifndef ACCUMULATION_H
#define ACCUMULATION_H
#include "01_data_parallel/data_parallel.h"
#include "common/model/optimizer.h"

// ---- 02_accumulate.c ----
// Leaves the gradient of the whole batch's mean loss in model->g, and returns the mean loss.
double accumulate_gradients(Model *model, const Batch *batch, size_t m);
StepResult accumulate_step(Model *model, Optimizer *o, const Batch *batch, size_t m);

// ---- 03_no_sync.c ----

// A data-parallel rank. For overlapped_step, buckets_new() must have wrapped every layer of the
// model.
typedef struct {
    Comm *dp;
    Buckets *buckets; // for overlapped_step only
} Replica;
StepResult no_sync_step(Replica *r, Model *model, Optimizer *o, const Batch *batch, size_t m);
StepResult overlapped_step(Replica *r, Model *model, Optimizer *o, const Batch *batch, size_t m);
// Computes the norm of the gradient and updates the weights. Call this function after the
// reduction. `loss` is the sum of the losses of this rank's tokens, not yet multiplied by
// token_weight.
StepResult replica_update(Model *model, Optimizer *o, double loss, double token_weight);
#endif
