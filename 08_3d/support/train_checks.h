// train_checks.h: what the trainer compares: with the unsplit model under --check, else the replicas with each other.
#ifndef TRAIN_CHECKS_H
#define TRAIN_CHECKS_H
#include "08_3d/trainer.h"

typedef struct { double *loss, *norm; } Curve;     // [steps]
// Collective. unsplit: the model trained beside it, on rank 0; NULL elsewhere.
void train_check_first(Run *run, const Trainer *t, const Model *unsplit);              // gradients, before the update
// After the training: losses and norms of these steps, weights.
void train_checks(Run *run, const Trainer *t, const Model *unsplit, Range done, Curve got, Curve want);
#endif
