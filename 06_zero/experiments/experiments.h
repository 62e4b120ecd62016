// experiments.h: declares the functions that the experiments of chapter 06 share.
#ifndef ZERO_EXPERIMENTS_H
#define ZERO_EXPERIMENTS_H
#include "06_zero/zero.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"
#include "judge/play/play.h"

// The rows of the table that zero_page() prints. The rows up to ZERO_SENT are bytes of a rank, the
// other rows are picoseconds.
typedef enum {
    ZERO_STATE,
    ZERO_WEIGHTS,
    ZERO_GRADIENTS,
    ZERO_MOMENTS,
    ZERO_IN_FLIGHT,
    ZERO_SENT,
    ZERO_EXPOSED, // mean of all ranks
    ZERO_HIDDEN,  // mean of all ranks
    ZERO_STEP,
    ZERO_ROWS
} ZeroRow;
// The measurements of one step: bytes of this rank, and times of all ranks.
typedef struct {
    StateBytes state;
    Timing timing;
    double row[ZERO_ROWS];
} ZeroMeasured;

// A way to train: data parallelism, or a stage of ZeRO.
typedef struct {
    const char *name; // "ZeRO-1"
    size_t stage;     // 0: data parallelism
    void (*allocate)(Model *m, Comm *dp);
    ZeroStep *step;
    // Checks the costs of a step of t. NULL only for a lesson that is column 0 of every page,
    // because zero_page() does not check the costs of that lesson.
    void (*costs)(Run *run, Comm *dp, const Training *t, size_t stage, const ZeroMeasured *seen);
    void (*free)(Model *m); // frees state that `allocate` made beside the model; NULL: none
} ZeroLesson;
extern const ZeroLesson zero_stages[]; // data parallelism and stages 1 to 3, by number

// ---- compare.c ----
// Returns a training that follows --steps, --batch, --dropout and --seed, with one micro-batch per
// rank and SGD. Calls usage_error() if the options are invalid.
Training zero_training(Run *run, const Comm *dp, const ModelConfig *model);
// Returns t with AdamW and weight decay, without clipping, in m micro-batches.
Training zero_adamw(Training t, size_t m);
typedef struct {
    Model *model;
    Trajectory trajectory;
} ZeroTrained;
// Trains a new model. The caller frees the result with zero_trained_free().
ZeroTrained zero_train(Run *run, Comm *dp, const ZeroLesson *lesson, const Training *t);
void zero_trained_free(const ZeroLesson *lesson, ZeroTrained *trained);
// Trains with `lesson`, and compares the training with data parallelism and with the unsplit model.
void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
// Calls zero_compare() four times: with one micro-batch and with m micro-batches, each under SGD
// and under AdamW. With m micro-batches SGD also clips. Use this function for stages that reduce in
// every micro-batch.
void zero_compare_one_and_several(Run *run, Comm *dp, const ZeroLesson *lesson, Training t,
                                  size_t m);
// The options of lessons 02 to 05.
#define ZERO_OPTIONS \
    { "batch", "N", "11", "sequences of all ranks together in a step" }, \
        { "micro-batches", "N", "3", "micro-batches of each rank, in the second half" }, \
        { "steps", "N", "3", "training steps" }, \
        { "dropout", "X", "0.1", "probability of dropping an element" }, \
        { "link", "NAME[,NAME]", "slow", NULL }, STORAGE_OPTION, { \
        0 \
    }

// ---- costs.c ----
// Sizes of some units of a model, each divided over n ranks.
typedef struct {
    size_t whole;                 // elements of these units
    size_t part;                  // elements of this rank's part, about whole / n
    size_t largest, largest_part; // elements of the largest unit: all, and this rank's part
    // The following fields are for one pass over these units, with one ring per unit.
    //   reduce_*   reduce-scatter of the gradients
    //   gather_*   all-gather of the weights
    //   *_bytes    bytes sent per rank
    //   *_time     picoseconds
    double reduce_bytes, reduce_time, gather_bytes, gather_time;
} Share;
// Returns the sizes of wte, the table that embedding and head both use. For an untied model returns
// the sizes of its two tables.
Share share_of_wte(const ModelConfig *c, size_t n, size_t rank);
// Returns the sizes of all other units: wpe, the blocks and the last norm.
Share share_of_others(const ModelConfig *c, size_t n, size_t rank);
// Returns the number of sequences in micro-batch k of a rank.
size_t zero_sequences(const Training *t, size_t n, size_t rank, size_t k);
// Calls check_costs() with ids such as "m3.state", for a training in m = 3 micro-batches.
void zero_check(Run *run, const Training *t, const CostRow *row);
// Checks all costs of a stage without prefetch.
void zero_costs(Run *run, Comm *dp, const Training *t, size_t stage, const ZeroMeasured *seen);
// Checks the traffic, and that nothing is in flight between steps. `gathers` and `reductions` are
// the passes per step over all parameters but wte.
void zero_costs_sent(Run *run, Comm *dp, const Training *t, double gathers, double reductions);

// ---- prefetch_steps.c ----
// Plays a step of N ranks with prefetch and returns the player. The caller frees the player.
Play *prefetch_steps(const Training *t, size_t N, bool reshard);

// ---- page.c ----
enum { ZERO_COLUMNS = 4 };
// A page has up to four trainings in columns. The page draws the steps of columns 0 and 1, but no
// step of data parallelism. If column 0 is data parallelism, the page also draws the state of
// columns 0 and 1.
typedef struct {
    const ZeroLesson *column[ZERO_COLUMNS + 1]; // ends with NULL
    size_t m[ZERO_COLUMNS];                     // micro-batches
    const char *explains;                       // text before the pictures
    const char *notes;                          // text before the table
    const char *formula[ZERO_ROWS];             // for fp32; NULL: the table has no such row
} ZeroPage;
// Trains each column under AdamW, and prints the pictures and the table. `seen` gets the
// measurements of each column's last step. Checks the costs of the columns whose lesson differs
// from column 0's lesson.
void zero_page(Run *run, Comm *dp, const Training *t, const ZeroPage *page,
               ZeroMeasured seen[ZERO_COLUMNS]);
// Returns a readable text of a row, such as "71.0 kB".
const char *zero_text(Run *run, const ZeroMeasured *seen, ZeroRow row);
#endif
