// train_checks.h: what the trainer compares: with the unsplit model under --check, else the replicas with each other.
#ifndef TRAIN_CHECKS_H
#define TRAIN_CHECKS_H
#include "08_3d/trainer.h"

typedef struct { double *loss, *norm; } Curve;     // [steps]
void train_checks_require(Run *run, const TrainerConfig *c);   // usage_error() for a model that --check cannot judge
// Collective. unsplit: the model trained beside it, on rank 0; NULL elsewhere.
void train_check_first(Run *run, const Trainer *t, const Model *unsplit);              // gradients, before the update
// After the training: losses and norms of these steps, weights.
void train_checks(Run *run, const Trainer *t, const Model *unsplit, Range done, Curve got, Curve want);
// With --check and --save. The order of the text is one without replacement; the checkpoint of step `done`, read into
// the unsplit model and o, its optimizer, has the weights and moments that the ranks hold, every bit.
void train_check_epochs(Run *run, const Data *d);
void train_check_saved(Run *run, const Trainer *t, Model *unsplit, Optimizer *o, size_t done);
#endif
