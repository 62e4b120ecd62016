// lesson.h: the frame of every program: options, the title, checks, costs, the verdict, JSON, the
// exit status.
#ifndef LESSON_H
#define LESSON_H
#include "common/comm/comm.h"

// The machine-read first lines of a lesson's source (ranks, level, question); written by make into
// a file of its own, with the program's main(). "03.02", "linear", ...
typedef struct {
    const char *id, *name, *question, *level;
    size_t ranks;
} LessonInfo;
extern const LessonInfo lesson_info;

// A lesson's own options. Values are read with option_*; the table ends with {0}. value says what a
// value is, and is checked before the lesson starts: "N" a whole number, "X" a number, "a|b|c" one
// of these, another word any text, NULL: a flag. fallback NULL: no default. An option with the name
// of a common one replaces its default, and its help unless that is NULL.
// {"dp", "N", "1", "data-parallel replicas"}
typedef struct {
    const char *name, *value, *fallback, *help;
} Option;
// For --help of a program with many options: the heading of the options that follow; a command, and
// what it does.
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

// EXPERIMENT(entry, options), the last line of an experiment or a program: names its entry and its
// table of options (NULL: none of its own). The build writes main(). EXPERIMENT_SYMBOL is the
// file's path.
typedef struct {
    void (*run)(Run *run);
    const Option *options;
} Experiment;
#define EXPERIMENT(entry, table) \
    extern const Experiment EXPERIMENT_SYMBOL; \
    const Experiment EXPERIMENT_SYMBOL = { entry, table }
// all of main(): the exit status
int experiment_main(int argc, char **argv, const Experiment *experiment);

size_t option_size(Run *run, const char *name);
double option_real(Run *run, const char *name);
const char *option_text(Run *run, const char *name);
bool option_flag(Run *run, const char *name);
bool option_given(Run *run, const char *name);
// From now on this is its value where it was not given, as if it were its default: for what a file
// says. usage_error() where it is no value for this option. It changes the option of this rank
// alone, so all ranks call it. A text that option_text() has returned before may be freed.
void option_default(Run *run, const char *name, const char *text);

// Prints on rank 0 only, in order with the checks. A newline is added when there is none at the
// end.
void say(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
// The same for what only --verbose shows.
void say_detail(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
// What work is at, "step 12 of 400", on a terminal's stderr while it takes longer than two seconds,
// on rank 0: for loops that may be long. The next line of the page takes its place; done == all
// clears it.
void progress(Run *run, const char *what, size_t done, size_t all);
// A setting worth recording in the JSON's "config"; the lesson's own options stand there already.
void report_config_number(Run *run, const char *name, double value);
void report_config_text(Run *run, const char *name, const char *value);
void report_picture(Run *run); // the lesson has written --svg itself
void report_stopped(Run *run); // all ranks: the run was told to stop and has saved; the status is 4
double run_seconds(const Run *run); // since the program started
void report_ended_early(Run *run);  // there is no picture, and --svg and --trace are not to blame

// usage_error() where ranks share nodes whose link inside is not the link between them: for lessons
// that predict times for one link only. Called before the work.
void require_one_link(Run *run);

// of a re-ordered sum, relative to the largest element
#define LIMIT_ROUNDING (sizeof(real) == 8 ? 1e-10 : 1e-5)

// ---- Snapshots: whole tensors put together on rank 0 from what the ranks hold, over the side
// channel. ---- Every rank puts the blocks it holds; an element may be put by several ranks
// (replicas), which must then agree in every bit. Values are copied at once (download), so the
// tensor may change afterwards.
typedef struct Snapshot Snapshot;
Snapshot *snapshot_new(Run *run);
// of fingerprints, not values: for check_replicas, and for large models
Snapshot *snapshot_new_prints(Run *run);
// part is the block of the whole [rows, cols] tensor `name` that starts at (row0, col0).
void snapshot_put(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part, size_t row0,
                  size_t col0);
// elements [first, first + count(part)) of the flattened whole
void snapshot_put_flat(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part,
                       size_t first);
// element i of part is element index[i] of the flattened whole
void snapshot_put_indexed(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor part,
                          const size_t *index);
// ends the names of all that is put from now on
void snapshot_label(Snapshot *s, const char *label);
// collective; afterwards rank 0 holds everything. Called by the checks.
void snapshot_join(Snapshot *s);
// rank 0, after the join; fault() when incomplete
const real *snapshot_values(Snapshot *s, const char *name);
void snapshot_free(Snapshot *s);

// ---- Checks: collective, all ranks call them in the same order; rank 0 judges and prints. All get
// the verdict. ---- Compares every tensor of got with its namesake in want: same set of names, no
// element missing, no NaN, replicas identical. error = max |a-b| / max(max |b|, 1e-3 max |b| over
// all tensors); absolute where want is all zero everywhere. The unsplit computation fills want on
// rank 0 only. Up to six tensors get a line each, more share one that names the worst.
bool check_close(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
bool check_equal(Run *run, const char *what, Snapshot *got, Snapshot *want); // every bit
// Of a snapshot of fingerprints: every element is held by somebody, none is NaN, and ranks that
// hold the same part hold the same bits of it. Parts may be held by several ranks, but may not
// overlap otherwise.
bool check_replicas(Run *run, const char *what, Snapshot *got);
// Numbers that every rank holds alike (losses, norms); want is read on rank 0. Error relative to
// max(|want|).
bool check_numbers(Run *run, const char *what, const char *name, const double *got,
                   const double *want, size_t n, double limit);
// must hold on every rank
bool check_true(Run *run, const char *what, const char *name, bool holds);
// The opposite of a check_close: want must be missed by at least `limit` (a trap shown failing).
// Not in the digest.
bool check_differs(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
// Snapshots and numbers checked as `got` enter the digest: a commutative sum of hashes of (name,
// index, bits).

// ---- Costs: what the experiment predicts, and what the library measured. ----
// An experiment predicts by a closed form, by a list of expected steps that judge/play plays, or by
// both.
typedef struct {
    bool given;
    double value;
} Predicted;
static inline Predicted formula(double value) { return (Predicted){ true, value }; }
static inline Predicted played(double value) { return (Predicted){ true, value }; }
static const Predicted NOT_PREDICTED = { 0 };
// Every rank passes its own numbers. On every rank, each prediction that is given must equal
// `measured`. id: "step.gpipe", letters, digits, dots and dashes, once per run; tables look a cost
// up by it. name: for the reader. unit: "bytes", "calls", "ps", "FLOPs", ... A cost without a
// formula is printed as "played".
void check_cost(Run *run, const char *id, const char *name, const char *unit, Predicted by_formula,
                Predicted by_play, double measured);

// The table of results, in units for people: a row per quantity, a column per way of doing it, and
// the formula. A cell is the id of a cost, whose measured value stands there, or a text of its own
// behind "=", or NULL. columns ends with NULL, rows with {0}. On rank 0, after the costs.
enum { RESULT_COLUMNS = 6 };
typedef struct {
    const char *what, *formula, *cell[RESULT_COLUMNS];
} Result;
// A value with its unit, as these cells have it: of "ps" 2.60 ms, of "bytes" 338 kB, of
// "millionths" 27.3 %.
void page_value(char *text, size_t room, double value, const char *unit);
// the same as a cell of its own: "=2.60 ms"
void page_cell(char cell[24], double value, const char *unit);
void results(Run *run, const char *const *columns, const Result *rows);

// ---- The end of the page: what a reader takes away. Called by every rank, after the costs. ----
// One plain sentence that answers the lesson's question with numbers that this run measured; what
// the technique costs; when a practitioner uses it. They stand before the verdict, where every
// check holds, and in the JSON.
void say_answer(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_cost(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_use_when(Run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));
// On rank 0, the measured value of a cost: for people ("2.60 ms", "46..246 kB"), valid until eight
// more were asked for; and the largest of all ranks as it was measured. "" and 0 on the other
// ranks.
const char *cost_text(Run *run, const char *id);
double cost_value(Run *run, const char *id);
#endif
