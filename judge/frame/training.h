// training.h: a short training, and what it leaves behind so that another one can be held against
// it. A split training and the unsplit one are described by the same Training; the lesson writes
// the split one's step.
#ifndef TRAINING_H
#define TRAINING_H
#include "common/model/data.h"
#include "judge/frame/lesson.h"
#include "common/model/optimizer.h"

typedef struct {
    ModelConfig model;
    Data data;
    size_t steps, sequences; // sequences of a step, of all ranks together
    size_t micro_batches;    // pieces in which a shard of them is taken
    const Range *shares;     // [steps][shards] each shard's sequences; NULL: shard_range's
    Optimizer optimizer;
    double clip;            // largest gradient norm; 0: no clipping
    bool recorded;          // training_run records its last step, for picture.h;
    MemoryCategory watched; // and memory of this category over it
} Training;
// The tokens of a file, NULL: this tree's own text, in an order that follows from --seed and from
// the sequences of a step; usage_error() where there is none. eval, vocab: see data_open().
Data training_text(Run *run, const char *path, const char *eval, size_t vocab, size_t context,
                   size_t sequences);
// Sequences of micro-batch k of shard `shard`: the batch is cut in shards, and each of them in
// micro-batches. Some may be empty.
Range training_micro_batch(const Training *t, size_t shards, size_t shard, size_t k);
// The tokens of all micro-batches of a shard, numbered from 0; free() the list, arena_free() the
// tokens.
Batch *training_batches(const Training *t, Arena *tokens, size_t step, size_t shards, size_t shard);

// ---- Snapshots of a model. ----
// Puts into a snapshot, tensor by tensor, under the parameters' names: weights that this rank holds
// (so that replicas are compared), or the gradients, m or v that it owns (what else it holds of a
// gradient may be a part of a sum). Of those tensors only for which `which` holds; NULL: all.
typedef bool (*Which)(const Unit *u, const Param *p);
void model_snapshot(const Model *m, Snapshot *s, UnitTensor what, Which which);
// of one parameter
void param_snapshot(const Unit *u, const Param *p, Snapshot *s, UnitTensor what);

// ---- What a training leaves behind. ----
typedef struct {
    Run *run;
    size_t steps;
    double *loss, *norm; // [steps] mean loss a counted token, gradient norm before clipping
    // Gradients of step 0; gradients of every step; weights after every step.
    Snapshot *first, *gradients, *weights;
    bool adamw;
} Trajectory;
Trajectory trajectory_new(Run *run, const Training *t);
void trajectory_free(Trajectory *c);
// After the update of `step`: what this rank has of m's gradients and weights. loss and norm are
// alike on every rank.
void trajectory_record(Trajectory *c, size_t step, const Model *m, double loss, double norm);

// ---- A split training. ----
// batch[micro_batches]
typedef StepResult Step(void *lesson, Model *m, Optimizer *o, const Training *t,
                        const Batch *batch);
// All steps, on micro-batches of one shard. Peaks are reset before every step, so that those of the
// last one stand afterwards. If t->recorded, the same holds for what was recorded: the step,
// without what is written down about it. Collective then.
void training_run(Trajectory *c, Model *m, const Training *t, size_t shards, size_t shard,
                  Step *step, void *lesson);

// ---- The unsplit training: one device with the whole model. ----
// Rank 0 works, uncounted; the other ranks' trajectory is empty.
// What it adds in which order is the caller's choice:
//     shards 1, micro_batches 1    the whole batch at once
//     shards 1, micro_batches m    gradient accumulation: micro-batch after micro-batch
//     shards N                     each shard's gradient from zero, then their sum in rank order:
//     what an all-reduce
//                                  over N ranks adds
Trajectory training_unsplit(Run *run, const Training *t, size_t shards);

// ---- The comparison: gradients and weights of every step, losses, norms. ----
// Limit 0: every bit. what: "split = unsplit".
// Under AdamW in fp32 a limit above 0 is asked of losses, norms and the gradients of step 0 only:
// AdamW divides a gradient by its own size, so the rounding of one near zero becomes a whole step,
// and from then on the two trainings are at different weights.
void training_compare(Run *run, const char *what, Trajectory *got, Trajectory *want, double limit);
// Its two halves.
void training_compare_tensors(Run *run, const char *what, Trajectory *got, Trajectory *want,
                              double limit);
void training_compare_numbers(Run *run, const char *what, Trajectory *got, Trajectory *want,
                              double limit);
// Was every step clipped? Only then is clipping compared.
bool trajectory_clipped(const Trajectory *c, double clip);
// SGD, then AdamW: the unsplit training and the split one, compared within LIMIT_ROUNDING, and
// clipped in every step. If t->recorded, AdamW's last step is recorded.
typedef void SplitTraining(void *lesson, const Training *t, Trajectory *got);
void training_both(Run *run, const char *what, const Training *t, SplitTraining *split,
                   void *lesson);
// The limit where the same terms are added in the same order: 0, but under --reduce fast the
// library has an order of its own.
static inline double every_bit(const Run *run) {
    return run->reduce == REDUCE_ORDERED ? 0 : LIMIT_ROUNDING;
}
#endif
