// trial.h: some layers alone, trained for three steps of SGD on half the squared distance of Y from a target, split on
// all ranks and unsplit on rank 0, and the two compared. Whole tensors are drawn, then cut, so both start alike.
#ifndef TENSOR_PARALLEL_TRIAL_H
#define TENSOR_PARALLEL_TRIAL_H
#include "common/model/layer.h"
#include "judge/frame/lesson.h"

enum { TRIAL_STEPS = 3, TRIAL_PARAMS = 4 };

// ---- What one of the two trainings leaves behind. ----
typedef struct {
    Snapshot *seen, *weights;                      // outputs and gradients of every step; weights after the last one
    double loss[TRIAL_STEPS];
    size_t parameters, gradients, optimizer, activations;      // bytes on this rank in the last step; the last a peak
    double calls, bytes;                           // per step: all-reduces, bytes sent
} TrialResult;
void trial_held(TrialResult *r);                   // fills in the bytes on this rank
void trial_put(Snapshot *s, const char *name, size_t step, size_t rows, size_t cols, Tensor part,
               size_t row0, size_t col0);          // as "name, step 1"

// tp NULL: the unsplit training, on rank 0 alone.
typedef void TrialTrain(Run *run, Comm *tp, TrialResult *r);
TrialResult trial_compare(Run *run, const char *what, TrialTrain *train);

// ---- A training of layers with X [M, K] and Y [M, N]. ----
typedef enum { TRIAL_X, TRIAL_TARGET, TRIAL_WEIGHTS } TrialData;
typedef struct Trial Trial;
struct Trial {
    Run *run;
    Comm *tp;                                      // NULL: unsplit
    size_t M, K, N, step;
    Range x_cols, y_cols;                          // columns of X and Y on this rank
    Param params[TRIAL_PARAMS];                    // described and cut; names end at the first without columns
    double deviation, rate;
    const char *before, *after;                    // what stands around the names of the updated weights
    bool recorded;                                 // the last step, if split
    uint64_t (*key)(uint64_t seed, TrialData what, size_t i);  // i: the step, or the parameter
    void (*forward)(Trial *t, Tensor y, Tensor x, Saved *s);
    void (*backward)(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s);      // may overwrite dy
};
void trial_train(Trial *t, TrialResult *r);
void trial_forward(Trial *t, Snapshot *s);         // Y of the first step only
Tensor trial_drawn(const Trial *t, Arena *a, TrialData what, size_t i);        // whole
#endif
