// optimizer.h: SGD and AdamW over what a rank owns of each unit.
#ifndef OPTIMIZER_H
#define OPTIMIZER_H
#include "common/model/model.h"

typedef struct {
    enum { SGD, ADAMW } kind;
    double lr, weight_decay;      // weight decay is decoupled (AdamW); with SGD it is L2
    double momentum;              // SGD: m <- momentum m + g is what is subtracted; 0: g, and no m
    double beta1, beta2, epsilon; // AdamW
    size_t step;                  // steps done
} Optimizer;
Optimizer sgd(double lr); // without momentum
// Betas 0.9, 0.95, epsilon 1e-5 (1e-8 amplifies the noise of zero gradients), no decay.
Optimizer adamw(double lr);
// m and v, for what each rank owns; SGD: m or nothing
void optimizer_allocate(const Optimizer *o, Model *m);
// gradients are multiplied by scale (clipping)
void optimizer_step(Optimizer *o, Model *m, double scale);
// One unit's part of step o->step, where it comes at another time than the others'. Not for a tied
// use.
void optimizer_step_unit(const Optimizer *o, Unit *u, double scale);
#endif
