// training.h: declares a short training and its recorded values, which are compared with those of
// another training. One Training describes the split training and the unsplit training. The lesson
// provides the function that makes a step of the split training.
#ifndef TRAINING_H
#define TRAINING_H
#include "common/model/data.h"
#include "judge/frame/lesson.h"
#include "common/model/optimizer.h"

typedef struct {
    ModelConfig model;
    Data data;
    size_t steps, sequences; // sequences per step, over all ranks
    size_t micro_batches;    // micro-batches of a shard
    const Range *shares;     // [steps][shards] each shard's sequences; NULL: by shard_range
    Optimizer optimizer;
    double clip;            // largest gradient norm; 0: no clipping
    bool recorded;          // training_run records its last step, for picture.h
    MemoryCategory watched; // the category of memory in that recording
} Training;
// Returns the tokens of the files of `path` (NULL: this tree's own text). The order in which a
// training reads the windows of the text follows from --seed and from `sequences`, the number of
// sequences per step. Calls usage_error() if a file cannot be used. data_open() describes path,
// eval and vocab.
Data training_text(Run *run, const char *path, const char *eval, size_t vocab, size_t context,
                   size_t sequences);
// Returns the sequences of micro-batch k of a shard. shard_range() cuts the batch into shards, and
// each shard into micro-batches. The function does not use t->shares. A micro-batch may be empty.
Range training_micro_batch(const Training *t, size_t shards, size_t shard, size_t k);
// Returns the tokens of all micro-batches of a shard. The caller calls free() on the list and
// arena_free() on the tokens.
Batch *training_batches(const Training *t, Arena *tokens, size_t step, size_t shards, size_t shard);

// ---- Snapshots of a model ----
// Puts tensors into a snapshot under the parameters' names. Puts all weights that this rank holds,
// so that the checks compare replicas. Puts only the parts of gradients, m and v that this rank
// owns, because other parts of a gradient may be partial sums. Puts only tensors for which `which`
// returns true, or all tensors if `which` is NULL.
typedef bool (*Which)(const Unit *u, const Param *p);
void model_snapshot(const Model *m, Snapshot *s, UnitTensor what, Which which);
// Puts a single parameter, as model_snapshot does.
void param_snapshot(const Unit *u, const Param *p, Snapshot *s, UnitTensor what);

// ---- The recorded values of a training ----
typedef struct {
    Run *run;
    size_t steps;
    double *loss, *norm; // [steps] mean loss per counted token, gradient norm before clipping
    Element storage;
    // first: gradients of step 0.
    // gradients: gradients of every step.
    // weights: weights after every step.
    Snapshot *first, *gradients, *weights;
    bool adamw;
} Trajectory;
Trajectory trajectory_new(Run *run, const Training *t);
void trajectory_free(Trajectory *c);
// Records this rank's part of m's gradients and weights, after the update of `step`. If `loss` is
// this rank's part of the loss, the lesson adds the ranks' parts in c->loss before the comparison.
void trajectory_record(Trajectory *c, size_t step, const Model *m, double loss, double norm);

// ---- A split training ----
// Runs a lesson's step, on batch[micro_batches].
typedef StepResult Step(void *lesson, Model *m, Optimizer *o, const Training *t,
                        const Batch *batch);
// Runs all steps on the micro-batches of one shard. Every step begins with a reset of the memory
// peaks, so the peaks are afterwards those of the last step. With t->recorded the last step is also
// recorded, and all ranks must call this function.
void training_run(Trajectory *c, Model *m, const Training *t, size_t shards, size_t shard,
                  Step *step, void *lesson);

// ---- The unsplit training: one device with the whole model ----
// Trains the whole model on rank 0. The ledger does not count this work. The trajectory of the
// other ranks is empty. The arguments choose the order of sums:
//     shards 1, micro_batches 1    the whole batch at once
//     shards 1, micro_batches m    gradient accumulation, one micro-batch after another
//     shards N                     each shard's gradient from zero, then their sum in rank order,
//                                  as an all-reduce over N ranks adds
Trajectory training_unsplit(Run *run, const Training *t, size_t shards);

// ---- The comparison: gradients and weights of every step, losses, norms ----
// Compares two trainings. Limit 0 compares every bit. `what` is a name, such as "split = unsplit".
// Under AdamW in fp32 or with 16-bit storage, a limit above 0 applies to losses, norms and the
// gradients of step 0 only. AdamW divides a gradient by its own size, so a rounding error near zero
// becomes a whole step. After such a step the two trainings have different weights.
void training_compare(Run *run, const char *what, Trajectory *got, Trajectory *want, double limit);
// training_compare_tensors and training_compare_numbers are the two halves of training_compare().
void training_compare_tensors(Run *run, const char *what, Trajectory *got, Trajectory *want,
                              double limit);
void training_compare_numbers(Run *run, const char *what, Trajectory *got, Trajectory *want,
                              double limit);
// Returns storage_limit() of the training's model. With 16-bit storage training_compare_numbers
// allows an eighth of `limit` for losses, and a quarter for gradient norms.
double training_limit(const Training *t);
// Returns the limit for the same terms in the same order. The limit is 0, or training_limit() with
// --reduce fast.
double training_exact(const Run *run, const Training *t);
// Sets the storage of the training's model to --storage and --gradients. With 16-bit storage
// training_store also prints a sentence on the page.
void training_store(Run *run, Training *t);
void config_store(Run *run, ModelConfig *c);
// Returns whether every step was clipped.
bool trajectory_clipped(const Trajectory *c, double clip);
// Compares the split training with the unsplit training, within training_limit(), first under SGD,
// then under AdamW. Also checks that the split training clipped every step. With t->recorded,
// AdamW's last step is recorded.
typedef void SplitTraining(void *lesson, const Training *t, Trajectory *got);
void training_both(Run *run, const char *what, const Training *t, SplitTraining *split,
                   void *lesson);
#endif
