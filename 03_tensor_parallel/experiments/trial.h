// trial.h: lessons 02 to 05 train a few layers alone, for three steps of SGD: split on all ranks,
// and unsplit on rank 0. trial_compare compares the two trainings. Every rank draws the whole
// tensors and takes its part, so both trainings begin with the same values. The loss of trial_train
// is half the squared distance of Y from a target.
#ifndef TENSOR_PARALLEL_TRIAL_H
#define TENSOR_PARALLEL_TRIAL_H
#include "common/model/layer.h"
#include "judge/frame/lesson.h"

enum { TRIAL_STEPS = 3, TRIAL_PARAMS = 4 };

// ---- The results of one of the two trainings. ----
typedef struct {
    Snapshot *seen, *weights;              // outputs and gradients of every step; final weights
    double loss[TRIAL_STEPS];
    size_t parameters, gradients, optimizer;       // bytes on this rank in the last step
    size_t activations;                            // their peak in the last step
    size_t calls, sent;                            // in the last step: all-reduces, bytes sent
} TrialResult;
// tp may be NULL. The first resets the counters of memory and messages, the second reads them.
void trial_step_begin(Comm *tp);
void trial_step_end(Comm *tp, TrialResult *r);
void trial_put(Snapshot *s, const char *name, size_t step, size_t rows, size_t cols, Tensor part,
               size_t row0, size_t col0);  // as "name, step 1"

// A training fills *r. tp is NULL for the unsplit training, which runs on rank 0 alone.
typedef void TrialTrain(Run *run, Comm *tp, TrialResult *r);
TrialResult trial_compare(Run *run, const char *what, TrialTrain *train);

// ---- The costs that the lessons share. ----
// The predictions for one rank and one step. SGD has no state, so trial_costs() predicts 0 bytes.
typedef struct {
    const char *parameters_name, *gradients_name, *kept_name;
    size_t parameters, gradients, kept;    // elements
    size_t calls;                          // all-reduces
    double sent;                           // bytes
} TrialCosts;
// Compares the predictions with r. ids and names: as in check_costs().
void trial_costs(Run *run, const char *ids, const char *names, const TrialCosts *c,
                 const TrialResult *r);
// The cost on the page: the number of all-reduces and, by the simulated clock, how much of a step
// they take. Needs the costs "step" and "exposed"; calls: the id of the number.
void trial_say_cost(Run *run, const char *calls);

// ---- A training of layers with X [M, K] and Y [M, N]. ----
typedef enum { TRIAL_X, TRIAL_TARGET, TRIAL_WEIGHTS } TrialData;
typedef struct Trial Trial;
struct Trial {
    Run *run;
    Comm *tp;                              // NULL: unsplit
    size_t M, K, N, step;
    Range x_cols, y_cols;                  // columns of X and Y on this rank
    Param params[TRIAL_PARAMS];            // described and cut; a Param without columns ends them
    double deviation, rate;
    const char *before, *after;            // a snapshot names updated weights before + name + after
    uint64_t (*key)(uint64_t seed, TrialData what, size_t i);      // i: the step, or the parameter
    void (*forward)(Trial *t, Tensor y, Tensor x, Saved *s);
    void (*backward)(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s);
    void (*drop)(const Trial *t, Tensor y);        // dropout of Y, and of dY
};
void trial_train(Trial *t, TrialResult *r);        // the last step of a split training is recorded
void trial_forward(Trial *t, Snapshot *s);         // Y of the first step only
Tensor trial_drawn(const Trial *t, Arena *a, TrialData what, size_t i);    // whole
#endif
