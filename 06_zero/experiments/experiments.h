// experiments.h: what the experiments of chapter 06 share: one training of a stage compared with
// data parallelism and the unsplit model (compare.c), the sizes of which costs are made (costs.c),
// and the page of a stage beside data parallelism (page.c).
#ifndef ZERO_EXPERIMENTS_H
#define ZERO_EXPERIMENTS_H
#include "06_zero/zero.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

// Checks the costs of the recorded step of t, the last one. dp has counted that step.
typedef void ZeroCosts(Run *run, Comm *dp, const Training *t);

// A line of the page's table: the id of its cost without "m3.", and its formula in fp32; cost NULL:
// no line.
enum {
    ZERO_STATE,
    ZERO_WEIGHTS,
    ZERO_GRADIENTS,
    ZERO_MOMENTS,
    ZERO_IN_FLIGHT,
    ZERO_SENT,
    ZERO_LINES
};
typedef struct { const char *cost, *formula; } ZeroLine;

// A stage of ZeRO as an experiment trains it.
typedef struct {
    const char *name;                              // "ZeRO-1"
    size_t stage;
    void (*allocate)(Model *m, Comm *dp);
    ZeroStep *step;
    ZeroCosts *costs;
    void (*free)(Model *m);     // what allocate has made beside the model; NULL: nothing
    const char *answer;                            // of the page
    ZeroLine lines[ZERO_LINES];
} ZeroLesson;

// ---- compare.c ----
// From --steps, --batch, --dropout and --seed: one micro-batch, no optimizer yet. usage_error() for
// what cannot work.
Training zero_training(Run *run, const Comm *dp, const ModelConfig *model);
// Trains, and compares with data parallelism and with the unsplit model. name: of the training.
// limit: of gradients and weights against data parallelism; 0: every bit. The costs follow where t
// is recorded.
void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, const char *name,
                  double limit);
// The whole experiment of a stage that reduces in every micro-batch (2 and 3): trainings with one
// micro-batch and with --micro-batches, and the page.
void zero_one_and_several(Run *run, const ModelConfig *model, const ZeroLesson *lesson);
// The options that the lessons have in common.
#define ZERO_OPTIONS(micro_batches) \
    { "batch", "N", "11", "sequences of all ranks together in a step" }, \
    { "micro-batches", "N", "3", micro_batches }, \
    { "steps", "N", "3", "training steps" }, \
    { "dropout", "X", "0.1", "probability of dropping an element" }, \
    { "link", "NAME[,NAME]", "slow", NULL }, {0}

// ---- costs.c ----
// Some units of a model, cut over n ranks.
typedef struct {
    size_t units;
    size_t whole, part;     // their elements; those of this rank, about whole / n
    size_t largest, largest_part;                  // of the largest unit
    // Of one pass over the parameters: each goes round a ring once, as a reduce-scatter or an
    // all-gather. Bytes sent per rank; picoseconds.
    double bytes, time;
} Share;
// the table that both ends of a step use
Share share_of_wte(const ModelConfig *c, size_t n, size_t rank);
// wpe, a unit of every block, the last norm
Share share_of_others(const ModelConfig *c, size_t n, size_t rank);
// of a rank's micro-batch k
size_t zero_sequences(const Training *t, size_t n, size_t rank, size_t k);
double zero_scalars_bytes(const ModelConfig *c, size_t n);             // loss and norm, all-reduced
// A cost of a training in m micro-batches, by formula and by a recurrence; id "m3.state".
void zero_cost(Run *run, size_t m, const char *id, const char *name, const char *unit,
               double predicted, double measured);
void zero_cost_played(Run *run, size_t m, const char *id, const char *name, const char *unit,
                      double predicted, double measured);
double zero_state_now(void);                       // bytes of weights, gradients, m and v
// The same for all stages: activations; FLOPs; and, under the simulated clock, exposed, hidden and
// step. traffic: picoseconds of the step's reduce-scatters and all-gathers.
void zero_cost_activations(Run *run, Comm *dp, const Training *t);
void zero_costs_in_time(Run *run, const Training *t, double traffic);

// ---- page.c ----
// One step, as it is measured on this rank; `sent` in bytes.
typedef struct { StateBytes state; double in_flight, sent; Timing timing; } ZeroMeasured;
// Collective: a training of one step, of which picture_show then shows the recording.
ZeroMeasured zero_measure(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
// Whether to show memory in flight under each rank of stage 3: the strips differ, and the page has
// no room for four.
bool zero_strips(Run *run);
// "Psi = 6773: wte 795, 2 blocks of 2895, wpe and last norm 195. N = 4."
void zero_say_sizes(Run *run, const Comm *dp, const ModelConfig *c, const char *more);
// State of all ranks with data parallelism and with this stage; the stage's step; the results, of
// t's micro-batches and, from stage 2 on, of one. After zero_compare, whose costs stand in the
// table.
void zero_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
#endif
