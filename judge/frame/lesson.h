// lesson.h: declares the frame of every program. The frame reads options, checks results and costs,
// and prints the title and the verdict. The frame also writes the JSON and chooses the exit status.
#ifndef LESSON_H
#define LESSON_H
#include "common/comm/comm.h"

// The first lines of a lesson's source (ranks, level, question). make writes these lines and the
// program's main() into a file. id is "03.02" for the name "linear".
typedef struct {
    const char *id, *name, *question, *level;
    size_t ranks;
} LessonInfo;
extern const LessonInfo lesson_info;

// A lesson's own options, read with option_*. The table ends with {0}. The frame checks values
// before the lesson starts.
//   value     "N" for a whole number; "X", "SECONDS" or "MINUTES" for a number; "a|b|c" for one of
//             these words; any other word for a text that is not empty; NULL for a flag
//   fallback  the default; NULL for no default
// An option with the name of a common option replaces the common option's values and default. The
// help is also replaced, unless the new help is NULL. Example: {"dp", "N", "1", "data-parallel
// replicas"}
typedef struct {
    const char *name, *value, *fallback, *help;
} Option;
// --help prints OPTION_GROUP as a heading of the options that follow, and OPTION_EXAMPLE as a
// command with its description.
#define OPTION_GROUP(heading) \
    { "", NULL, NULL, heading }
#define OPTION_EXAMPLE(command, does) \
    { "", command, NULL, does }

typedef struct Run { // one per rank
    Comm *world;
    uint64_t seed;      // --seed
    ReduceOrder reduce; // --reduce
    bool is_root;       // rank 0: prints
    struct RunState *state;
} Run;

// EXPERIMENT(entry, options) is the last line of an experiment or a program. This line names the
// entry and the table of options (NULL: no own options). The build writes main(). EXPERIMENT_SYMBOL
// is a name made from the file's path.
typedef struct {
    void (*run)(Run *run);
    const Option *options;
} Experiment;
#define EXPERIMENT(entry, table) \
    extern const Experiment EXPERIMENT_SYMBOL; \
    const Experiment EXPERIMENT_SYMBOL = { entry, table }
// main() calls this function. Returns the exit status.
int experiment_main(int argc, char **argv, const Experiment *experiment);

size_t option_size(Run *run, const char *name);
double option_real(Run *run, const char *name);
const char *option_text(Run *run, const char *name);
bool option_flag(Run *run, const char *name);
bool option_given(Run *run, const char *name);
// Sets the option's default from now on, if the option was not given. Calls usage_error() if the
// value is not valid. The call changes the option of this rank alone, so all ranks must make the
// call. The call may free a text that option_text() returned before.
void option_default(Run *run, const char *name, const char *text);
// Returns the element type of --storage. A lesson that can store 16 bits lists STORAGE_OPTION or
// ONLY_STORAGE_OPTION among its own options. ONLY_STORAGE_OPTION is for a lesson that never stores
// gradients of weights in 16 bits. REALS_ONLY gives the reason why a lesson stores reals only. The
// frame rejects --storage bf16 and fp16 for such a lesson, and for programs with none of the three
// entries.
Element option_storage(const Run *run);
bool option_main_gradients(const Run *run); // true for --gradients main, and without --gradients
#define ONLY_STORAGE_OPTION \
    { "storage", "real|bf16|fp16", "real", NULL }
#define STORAGE_OPTION \
    ONLY_STORAGE_OPTION, { \
        "gradients", "main|stored", "main", \
            "with 16-bit storage: gradients of weights in reals, or stored as the weights" \
    }
#define REALS_ONLY(why) \
    { "storage", "real", "real", why }

// Prints a text on rank 0. Adds a newline if the text does not end with a newline.
void say(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Prints as say() does, but only with --verbose.
void say_detail(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Shows the progress of a long loop. After two seconds rank 0 prints a line such as "step 12 of
// 400" to stderr. Rank 0 prints no such line if stderr is no terminal, or if a launcher started the
// process. The next line of the page replaces the progress line; done == all clears that line.
void progress(Run *run, const char *what, size_t done, size_t all);
// Adds a setting to the JSON's "config", or replaces the option of this name, except --reduce and
// --seed.
void report_config_number(Run *run, const char *name, double value);
void report_config_text(Run *run, const char *name, const char *value);
void report_picture(Run *run); // records that the lesson has written --svg itself
// Records that the run was told to stop and has saved. If no check fails, the exit status is then
// 4. All ranks call this function.
void report_stopped(Run *run);
double run_seconds(const Run *run); // returns the seconds since the program started
// Records that the run ended before its picture. Then --svg and --trace are accepted without a
// picture; otherwise these options end in usage_error().
void report_ended_early(Run *run);

// Calls usage_error() if the simulated clock has several nodes, and the link inside a node differs
// from the link between nodes. Lessons that predict times for one link call this function before
// the work.
void require_one_link(Run *run);

// The limits of a sum whose terms are added in another order, relative to the largest element. The
// limits are for trainings that do not diverge, because rounding errors grow with the loss.
// storage_limit(e) is the limit of a tensor stored as e. For reals it is LIMIT_ROUNDING. In 16 bits
// a tiny error can change how a number rounds. The error is then a whole unit in the last place,
// and the next layers pass this error on. So in 16 bits storage_limit() is 8 units in the last
// place of 1. rounding_limit() is storage_limit() of the type that --storage names.
// numbers_limit() is the limit of losses: in 16 bits an eighth of rounding_limit(), because a loss
// is a sum of many elements. 06_zero/reference.md has the largest errors that were measured.
#define LIMIT_ROUNDING (sizeof(real) == 8 ? 1e-10 : 1e-5)
double storage_limit(Element e);
double rounding_limit(const Run *run);
double numbers_limit(const Run *run);
// Returns the limit of a sum whose terms are added in the same order. The limit is 0 with --reduce
// ordered. With --reduce fast MPI or NCCL adds in its own order, so the limit is rounding_limit().
double exact_limit(const Run *run);

// ---- Snapshots: whole tensors, assembled on rank 0 over the side channel ----
// Every rank puts the blocks that it holds. Several ranks may put the same element (replicas). All
// replicas must have the same bits. A put copies the values at once, so the tensor may change
// afterwards.
typedef struct Snapshot Snapshot;
Snapshot *snapshot_new(Run *run);
// Returns a snapshot of fingerprints instead of values, for check_replicas and for large models.
Snapshot *snapshot_new_prints(Run *run);
// Puts a block of the whole tensor `name` [rows, cols]. The block `part` begins at (row0, col0).
void snapshot_put(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part, size_t row0,
                  size_t col0);
// Puts elements [first, first + count(part)) of the flattened whole tensor.
void snapshot_put_flat(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part,
                       size_t first);
// Puts single elements. Element i of part is element index[i] of the flattened whole tensor.
void snapshot_put_indexed(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part,
                          const size_t *index);
// Appends the label to the names of all later puts.
void snapshot_label(Snapshot *s, const char *label);
// Assembles the whole tensors on rank 0. All ranks must call this function. The checks call this
// function, too.
void snapshot_join(Snapshot *s);
// Returns the whole tensor. Calls fault() on other ranks than 0, before the join, and if elements
// are missing.
const real *snapshot_values(Snapshot *s, const char *name);
void snapshot_free(Snapshot *s);

// ---- Checks: all ranks call a check. Rank 0 judges and prints; all ranks get the verdict. ----
// Compares every tensor of `got` with the tensor of the same name in `want`. The two snapshots must
// have the same names. No element may be missing, NaN or infinite, and replicas must be identical.
// The error of a tensor is max |got - want| / max(max |want|, 1e-3 max |want| over all tensors). If
// `want` is zero everywhere, the error is absolute. If `want` comes from the unsplit computation,
// only rank 0 has put tensors. Up to six tensors get a line each. More tensors share one line,
// which names the worst tensor.
bool check_close(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
// Checks that `got` and `want` are equal in every bit.
bool check_equal(Run *run, const char *what, Snapshot *got, Snapshot *want);
// Checks a snapshot of fingerprints. Some rank must hold each element, no element may be NaN, and
// ranks with the same part must hold the same bits. Two different parts must not overlap.
bool check_replicas(Run *run, const char *what, Snapshot *got);
// Checks numbers that are the same on every rank (losses, norms). Only rank 0 reads `want`. The
// error is relative to max(|want|).
bool check_numbers(Run *run, const char *what, const char *name, const double *got,
                   const double *want, size_t n, double limit);
// Checks a statement, which must hold on every rank.
bool check_true(Run *run, const char *what, const char *name, bool holds);
// Checks the opposite of check_close: the error of the worst tensor must be at least `limit`.
// Lessons use this check to show that a wrong method fails. The check adds nothing to the digest.
bool check_differs(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
// check_close, check_equal, check_replicas and check_numbers add every `got` to the digest. The
// digest is a commutative sum of hashes of (name, index, bits).

// ---- Costs: the experiment's predictions, and the library's measurements ----
// An experiment predicts a cost by a formula, by playing the expected steps, or by both. Steps are
// played by judge/play, or by a loop of the experiment.
typedef struct {
    bool given;
    double value;
} Predicted;
static inline Predicted formula(double value) { return (Predicted){ true, value }; }
static inline Predicted played(double value) { return (Predicted){ true, value }; }
static const Predicted NOT_PREDICTED = { 0 };
// Checks that each given prediction equals `measured`, on every rank. Every rank passes its own
// numbers. id has letters, digits, dots and dashes, such as "step.gpipe", and is unique in a run.
// Tables find a cost by its id. unit is "bytes", "calls", "ps", "FLOPs", ... In the JSON, a cost
// without a formula is "played".
void check_cost(Run *run, const char *id, const char *name, const char *unit, Predicted by_formula,
                Predicted by_play, double measured);
// A table of costs, with one row per cost. The table ends with {0}. ids and names have one %s, for
// the row's own id and name: "%s.gpipe", "GPipe: %s".
typedef struct {
    const char *id, *name, *unit;
    Predicted by_formula, by_play;
    double measured;
} CostRow;
// The two prediction fields of a row with only one prediction.
#define BY_FORMULA(value) formula(value), NOT_PREDICTED
#define BY_PLAY(value) NOT_PREDICTED, played(value)
void check_costs(Run *run, const char *ids, const char *names, const CostRow *row);

// The table of results has a row per quantity, a column per method, and a column of formulas. A
// cell is NULL, or a text after "=", or the id of a cost, whose measured value the cell shows.
// `columns` ends with NULL, and `rows` with {0}. Call results() after the costs; rank 0 prints.
enum { RESULT_COLUMNS = 6 };
typedef struct {
    const char *what, *formula, *cell[RESULT_COLUMNS];
} Result;
// Writes a value with a readable unit, such as 2.60 ms for "ps", 338 kB for "bytes" and 27.3 % for
// "millionths".
void page_value(char *text, size_t room, double value, const char *unit);
// Writes the same value as a text for a cell, such as "=2.60 ms".
void page_cell(char cell[24], double value, const char *unit);
// page_text formats a text as printf does. value_text and value_cell return the texts of page_value
// and page_cell. All these texts last to the end of the run.
const char *page_text(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *value_text(Run *run, double value, const char *unit);
const char *value_cell(Run *run, double value, const char *unit);
void results(Run *run, const char *const *columns, const Result *rows);

// ---- The end of the page. Every rank calls these functions, after the costs. ----
// say_answer answers the lesson's question with measured numbers. If the run passes, the page
// prints the texts of these three functions before the verdict, and the JSON has these texts.
void say_answer(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_cost(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_use_when(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Returns the measured value of a cost, on rank 0. cost_text returns a readable text ("2.60 ms",
// "46..246 kB"), valid for the next seven calls. cost_value returns the largest value over all
// ranks. On the other ranks cost_text returns "", and cost_value returns 0.
const char *cost_text(Run *run, const char *id);
double cost_value(Run *run, const char *id);
#endif
