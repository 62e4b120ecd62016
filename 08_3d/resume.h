// resume.h: what a run takes from the run before it, which options may differ from it, and whose
// checkpoints may lie in the folder of --save.
#ifndef RESUME_H
#define RESUME_H
#include "08_3d/checkpoint.h"
#include "common/model/data.h"

// What the options of this run are, for the index of a checkpoint: "options" define the
// training, "layout" does not.
void resume_record(Run *run, struct cJSON *index);

// Collective: locks the folder of --save, if there is one, opens the checkpoint of --resume, and
// takes from it the options that define the training and were not given. NULL without --resume.
// usage_error() where --save is another run's, the checkpoint cannot be read, or an option that
// defines the training has another value without --override.
Checkpoint *resume_open(Run *run);
// Collective: the run's id, the checkpoint's or a new one, and the fingerprint of its data.
// usage_error() where the content of --data is another one, or the folder of --save has
// checkpoints that this run may not replace.
SavedRun resume_run(Run *run, const Checkpoint *before, const Data *data);
// Says which run goes on, at which step, and which options differ.
void resume_say(Run *run, const Checkpoint *before);
#endif
