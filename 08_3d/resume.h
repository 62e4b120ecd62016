// resume.h declares functions that resume a run with the options of its checkpoint. The functions
// also check that the folder of --save has no checkpoints of other runs.
#ifndef RESUME_H
#define RESUME_H
#include "08_3d/checkpoint.h"
#include "common/model/data.h"

// The options of this run as texts. The program fills the list; dp, tp, pp, cp and ranks are
// numbers, a flag is "yes".
// value NULL: the option was not given and has no default.
// taken: resume_open() has taken the value from the checkpoint.
typedef struct {
    const char *name, *value;
    bool given, taken;
    char number[24];
} RunOption;
typedef struct RunOptions {
    RunOption *option;
    size_t n;
} RunOptions;
// Returns the option's value, or NULL.
const char *run_option(const RunOptions *o, const char *name);
bool run_option_given(const RunOptions *o, const char *name);

// Writes the options into the index of a checkpoint. The member "options" has the options that
// define the training. The member "layout" has the options of the list layout_options in resume.c.
void resume_record(const RunOptions *o, struct cJSON *index);

// Collective. Locks the folder of --save, if this option is given, and opens the checkpoint of
// --resume. Takes these options from the checkpoint, if they were not given: the options that
// define the training, --steps, --data, --data-eval, --storage, --gradients, --loss-scale and
// --skip-nonfinite. Returns NULL without --resume.
// note: lines for the page, or "".
// Calls usage_error() in these cases, among others:
//     another run saves in the folder of --save
//     the checkpoint cannot be read
//     without --override, an option that defines the training has another value
Checkpoint *resume_open(Comm *world, RunOptions *o, char note[CHECKPOINT_NOTE]);
// Collective. Returns the id of the training (the checkpoint's id, or a new one), the sums over its
// data, and the checkpoint's loss scale and best step. Best step 0: the checkpoint has none, the
// loss cannot be compared, or the folder of --save lacks this step. Calls usage_error() if the
// content of --data has changed without --override data, or if the folder of --save has checkpoints
// that this run may not replace.
SavedRun resume_run(const RunOptions *o, const Checkpoint *before, const Data *data);
// Returns a line for the page with the resumed run, its step, and the options and the held-out text
// that differ from the checkpoint. The caller frees the line.
char *resume_line(const RunOptions *o, const Checkpoint *before, const SavedRun *run);
#endif
