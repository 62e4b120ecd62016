// unsent.h: what --compress has not sent, in a checkpoint. It is each rank's own: only the same
// layout can take it up.
#ifndef UNSENT_H
#define UNSENT_H
#include "08_3d/checkpoint.h"
#include "08_3d/trainer.h"

// For checkpoint_save; n 0 without --compress.
RankState unsent_read(const Trainer *t);
void unsent_free(RankState *s);
// Takes up what this rank had not sent when the checkpoint was written. Nothing happens where
// the training was not compressed so far: then everything is sent.
void unsent_resume(const Checkpoint *c, Trainer *t);
#endif
