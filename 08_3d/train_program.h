// train_program.h declares functions that the files of the program 08_3d/train share.
#ifndef TRAIN_PROGRAM_H
#define TRAIN_PROGRAM_H
#include "08_3d/experiments/experiments.h"
#include "08_3d/finite.h"
#include "08_3d/resume.h"
#include "08_3d/settings.h"

// ---- train_settings.c: calls usage_error() for options that no training can have ----
// Returns the configuration of the options. The caller frees stage_blocks.
TrainerConfig train_config(Run *run);
// Gives the options of the model the values of --init's model, if the options are not given. Calls
// usage_error() if an option was given with another value. With rotary positions *c takes a shorter
// --context.
void train_take_model(Run *run, ModelConfig *c);
// Returns the words that follow ZeRO and its stage on the page, such as ", overlapped".
const char *train_reduction_words(const TrainerConfig *c);
Optimizer train_optimizer(Run *run);
RateRule train_rate(Run *run);
size_t train_steps(Run *run);
void train_stop_require(Run *run);
// Returns the seconds until --exit-after, or INFINITY without --exit-after.
double train_seconds_left(Run *run);
// Prints a line if the learning rate only rises, and a line if --vocab has entries that this tree's
// text does not have.
void train_say_defaults(Run *run, const TrainerConfig *c, size_t steps);
// Records the degrees of the mesh, ZeRO's stage and the dropout in the JSON, because their options
// may have been left out.
void train_record(Run *run, const TrainerConfig *c);
// Returns the options of train_options.h, --seed and the number of ranks as texts, for resume.h.
// The caller frees the list. n: the degrees of the mesh; NULL: not known yet.
RunOptions train_run_options(Run *run, const Degrees *n);
// Makes the values that resume_open() has read from a checkpoint the defaults of this run.
void train_take_options(Run *run, const RunOptions *o);

// ---- train_storage.c: 16-bit storage, and its loss scale ----
// Fills the model's storage and the loss scale from --storage, --gradients and --loss-scale.
// Calls usage_error() if these options exclude each other.
void train_take_storage(Run *run, TrainerConfig *c);
// Prints the page's lines about storage and loss scale. Does nothing if all tensors are reals.
void train_say_storage(Run *run, const Trainer *t);
// Reports the loss scale after `steps` steps, and the number of steps that were skipped after an
// overflow, on the page and in the JSON. Does nothing without a loss scale.
void train_say_skipped(Run *run, const Trainer *t, size_t steps);
// Returns whether gradients are multiplied by a loss scale.
bool train_scaled(const Trainer *t);
// Returns the step's result, with norm 0 if the gradients overflowed. The compared curves need norm
// 0, because no infinite number is close to another.
StepResult train_overflow_is_0(StepResult r);
// Copies a dynamic loss scale into the run of a checkpoint.
void train_scale_save(const Trainer *t, SavedRun *saved);
// Copies a dynamic loss scale from the run of a checkpoint, unless the run has been given another
// loss scale.
void train_scale_resume(Run *run, Trainer *t, const SavedRun *saved);

// ---- train_finite.c: the rule of finite.h, and its lines on the page ----
// train_finite_step, _weights and _held_out are collective and return the same on all ranks.

// Returns the rule of --skip-nonfinite. Calls usage_error() if --check or --compress is also given.
FiniteRule train_finite_rule(Run *run);
// Returns STEP_OVERFLOWED or the result of finite_step(). If the result is STEP_LOST, the page
// names the first rank with a value that is not finite, and the checkpoint from which to resume.
StepOutcome train_finite_step(Run *run, FiniteRule *rule, const Trainer *t, size_t step,
                              StepResult r);
// Checks the weights before they are saved or judged. Returns false if the training is lost. done:
// the number of steps that made these weights.
bool train_finite_weights(Run *run, FiniteRule *rule, const Trainer *t, size_t done);
bool train_finite_held_out(Run *run, FiniteRule *rule, double loss);
#endif
