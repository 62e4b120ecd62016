// experiments.h: declares what the experiments of chapter 06 share: a training of a stage, compared
// with data parallelism and the unsplit model (compare.c); predicted costs (costs.c,
// prefetch_steps.c); the page of a stage beside data parallelism (page.c).
#ifndef ZERO_EXPERIMENTS_H
#define ZERO_EXPERIMENTS_H
#include "06_zero/zero.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"
#include "judge/play/play.h"

// The rows of the page's table.
enum {
    ZERO_STATE,
    ZERO_WEIGHTS,
    ZERO_GRADIENTS,
    ZERO_MOMENTS,
    ZERO_IN_FLIGHT,
    ZERO_SENT,
    ZERO_LINES
};
// A row: cost is the id of the cost without "m3."; formula is for fp32. With cost NULL the table
// has no such row.
typedef struct {
    const char *cost, *formula;
} ZeroLine;

// The measurements of one step on this rank.
typedef struct {
    StateBytes state;
    double bytes[ZERO_LINES];
    Timing timing;
} ZeroMeasured;

// A stage of ZeRO as an experiment trains it. The costs are of the last step, which is recorded and
// which the ledger of dp holds.
typedef struct {
    const char *name; // "ZeRO-1"
    size_t stage;
    void (*allocate)(Model *m, Comm *dp);
    ZeroStep *step;
    void (*costs)(Run *run, Comm *dp, const Training *t); // NULL: zero_costs()
    void (*free)(Model *m); // frees what allocate made beside the model; NULL: nothing
    const char *explains;   // a line before the picture, which explains the picture
    ZeroLine lines[ZERO_LINES];
    // Prints the answer, the cost, and when to use the stage. dp: a step with data parallelism;
    // own: a step of the stage with m micro-batches.
    void (*conclude)(Run *run, size_t m, const ZeroMeasured *dp, const ZeroMeasured *own);
} ZeroLesson;

// ---- compare.c ----
// Returns a training by --steps, --batch, --dropout and --seed, with one micro-batch per rank and
// SGD. Calls usage_error() if the options are invalid.
Training zero_training(Run *run, const Comm *dp, const ModelConfig *model);
// Returns t with AdamW, without clipping, in m micro-batches. The last step is recorded, so its
// costs are checked.
Training zero_adamw(Training t, size_t m);
// A stage's model after a training, and the training's record.
typedef struct {
    Model *model;
    Trajectory trajectory;
} ZeroTrained;
ZeroTrained zero_train(Run *run, Comm *dp, const ZeroLesson *lesson, const Training *t);
void zero_trained_free(const ZeroLesson *lesson, ZeroTrained *trained);
// Trains, and compares with data parallelism and with the unsplit model. Checks the costs if t is
// recorded.
void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
// Runs the whole experiment of a stage that reduces in every micro-batch (2 and 3): trainings with
// one micro-batch and with --micro-batches, and the page.
void zero_one_and_several(Run *run, const ModelConfig *model, const ZeroLesson *lesson);
// The options of lessons 02 to 05.
#define ZERO_OPTIONS(micro_batches) \
    { "batch", "N", "11", "sequences of all ranks together in a step" }, \
        { "micro-batches", "N", "3", micro_batches }, { "steps", "N", "3", "training steps" }, \
        { "dropout", "X", "0.1", "probability of dropping an element" }, \
        { "link", "NAME[,NAME]", "slow", NULL }, { \
        0 \
    }

// ---- costs.c ----
// Sizes of some units of a model, each divided over n ranks.
typedef struct {
    size_t whole, part;           // elements of all units; those of this rank, about whole / n
    size_t largest, largest_part; // elements of the largest unit, and of its largest part
    // One pass over the parameters: each unit goes round a ring once. Bytes sent per rank, and
    // picoseconds: in a reduce-scatter of gradients, and in an all-gather of weights.
    double reduce_bytes, reduce_time, gather_bytes, gather_time;
} Share;
// Returns the share of wte, the table that embedding and head share. An untied model has two
// tables.
Share share_of_wte(const ModelConfig *c, size_t n, size_t rank);
// Returns the share of all other units: wpe, one per block, the last norm.
Share share_of_others(const ModelConfig *c, size_t n, size_t rank);
// Returns the number of sequences in micro-batch k of a rank.
size_t zero_sequences(const Training *t, size_t n, size_t rank, size_t k);
double zero_state_now(void); // returns the bytes of weights, gradients, m, v and masters
// Calls check_costs() with ids such as "m3.state", for a training in m = 3 micro-batches.
void zero_check(Run *run, const Training *t, const CostRow *row);
// Checks all costs of a stage without prefetch.
void zero_costs(Run *run, Comm *dp, const Training *t, size_t stage);
// Checks the traffic, and that nothing is in flight between steps. gathers, reductions: passes per
// step over all parameters but wte.
void zero_costs_sent(Run *run, Comm *dp, const Training *t, double gathers, double reductions);

// ---- prefetch_steps.c ----
// Plays the steps of N ranks with prefetch and returns the player. The caller frees the player.
Play *prefetch_steps(const Training *t, size_t N, bool reshard);

// ---- page.c ----
extern const ZeroLesson zero_data_parallel; // replicas, without ZeRO
// Trains one step, which picture_show() can draw afterwards. All ranks call this function.
ZeroMeasured zero_measure(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
// Return readable texts: the bytes in a line of the table, and the time of the step.
const char *zero_bytes(Run *run, const ZeroMeasured *seen, size_t line);
const char *zero_time(Run *run, const ZeroMeasured *seen);
// Returns true if the page draws the memory in flight under each rank of stage 3: only with
// --verbose or --svg, because the ranks' strips differ and take much room.
bool zero_strips(Run *run);
// Prints the model's sizes, and explains the words and letters of the page. in_flight: the page has
// a row for memory in flight, so the text explains this memory, too.
void zero_say_sizes(Run *run, const Comm *dp, const Training *t, bool in_flight);
// Prints the page: the state of all ranks with data parallelism and with this stage; a step of the
// stage; the table; the answer. Call this function after zero_compare(), because the table shows
// the costs of zero_compare().
void zero_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
#endif
