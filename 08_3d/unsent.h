// unsent.h declares functions that save the residuals of --compress, and PowerSGD's factors, in a
// checkpoint and load them. Each rank has its own residuals, so only a run with the same layout can
// load them.
#ifndef UNSENT_H
#define UNSENT_H
#include "08_3d/checkpoint.h"
#include "08_3d/trainer.h"

// Returns this rank's residuals and factors, for checkpoint_save(). Without --compress n is 0.
RankState unsent_read(const Trainer *t);
void unsent_free(RankState *s);
// Loads this rank's residuals and factors from the checkpoint. Does nothing without --compress, or
// if the checkpoint has none.
void unsent_resume(const Checkpoint *c, Trainer *t);
#endif
