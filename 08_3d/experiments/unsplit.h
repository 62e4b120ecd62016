// unsplit.h: what the layouts are compared with: one step's loss, gradients and norm of the model on one device.
#ifndef UNSPLIT_H
#define UNSPLIT_H
#include "08_3d/trainer.h"

// Uncounted, on one rank; free with model_free. Its gradients: of the whole global batch of this step, at once.
Model *unsplit_model(const TrainerConfig *c);
StepResult unsplit_gradients(Model *m, const TrainerConfig *c, const Data *d, uint64_t step);
#endif
