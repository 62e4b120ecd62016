// optimizer.h: declares SGD and AdamW, which update the part of each unit that a rank owns.
#ifndef OPTIMIZER_H
#define OPTIMIZER_H
#include "common/model/model.h"

typedef struct {
    enum { SGD, ADAMW } kind;
    double lr, weight_decay; // weight decay is decoupled in AdamW and an L2 term in SGD
    // SGD with momentum sets m <- momentum m + g and subtracts lr m from the weight. With momentum
    // 0, SGD subtracts lr g and keeps no m. g includes the weight decay.
    double momentum;
    double beta1, beta2, epsilon; // AdamW
    size_t step;                  // steps begun
    bool no_master;               // 16-bit weights have no master; 06.06 shows the lost updates
} Optimizer;
Optimizer sgd(double lr); // returns SGD without momentum
// Returns AdamW with betas 0.9 and 0.95, without decay. epsilon is 1e-5, because 1e-8 amplifies the
// rounding errors of gradients that are almost zero.
Optimizer adamw(double lr);
// Allocates m and v for the owned elements. SGD needs only m, or nothing without momentum. Weights
// of 16 bits also get a master in reals, unless no_master is true.
void optimizer_allocate(const Optimizer *o, Model *m);
// Updates all units with the gradients times `scale` (clipping). The gradients stay unchanged.
void optimizer_step(Optimizer *o, Model *m, double scale);
// Updates one unit in step o->step, for callers that update units at different times. u must not be
// a tied use (Unit.tied_to).
void optimizer_step_unit(const Optimizer *o, Unit *u, double scale);
#endif
