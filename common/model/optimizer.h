// optimizer.h: SGD and AdamW, over the part of each unit that a rank owns.
#ifndef OPTIMIZER_H
#define OPTIMIZER_H
#include "common/model/model.h"

typedef struct {
    enum { SGD, ADAMW } kind;
    double lr, weight_decay; // decay is decoupled in AdamW and L2 in SGD
    // SGD: m <- momentum m + g, and m is subtracted; 0: g is subtracted, and there is no m
    double momentum;
    double beta1, beta2, epsilon; // AdamW
    size_t step;                  // steps done
} Optimizer;
Optimizer sgd(double lr); // without momentum
// Betas 0.9, 0.95, epsilon 1e-5 (1e-8 amplifies the noise of zero gradients), no decay.
Optimizer adamw(double lr);
// m and v for the owned elements; for SGD m or nothing
void optimizer_allocate(const Optimizer *o, Model *m);
// gradients are multiplied by scale (clipping)
void optimizer_step(Optimizer *o, Model *m, double scale);
// Updates one unit in step o->step, if its update comes apart from the others'. Not for a tied use.
void optimizer_step_unit(const Optimizer *o, Unit *u, double scale);
#endif
