// frame.h: declares what the files of judge/frame and judge/draw share. Lessons include lesson.h
// instead.
#ifndef FRAME_H
#define FRAME_H
#include "judge/frame/launch.h"
#include "judge/frame/lesson.h"

// ---- options.c ----
// text: the given value, the fallback, or `copied`, which option_default() has allocated.
// heading: a line that --help prints before this option; usually NULL.
typedef struct {
    Option option;
    const char *text, *heading;
    bool given;
    char *copied;
} OptionValue;
enum { MOST_OPTIONS = 96 };
typedef struct {
    OptionValue list[MOST_OPTIONS]; // common options first
    size_t count, common;
    const Option *own; // the program's table, or NULL
    bool help;
} OptionValues;
// Calls usage_error() if the command line is invalid.
OptionValues options_parse(int argc, char **argv, const Option *own);
void options_print_help(const OptionValues *s, const char *program);
// Calls fault() if the name is unknown.
const OptionValue *options_find(const OptionValues *s, const char *name);
// Calls usage_error() if --storage asks for 16 bits and the program's own table has neither
// STORAGE_OPTION nor ONLY_STORAGE_OPTION.
void options_require_storage(const OptionValues *s);
void options_free(OptionValues *s); // frees the texts that option_default has allocated
bool option_value_is_number(const OptionValue *s);
// Calls usage_error() if the value is not a whole number in lo..hi.
uint64_t option_value_whole(const OptionValue *s, uint64_t lo, uint64_t hi);
double option_value_real(const OptionValue *s);

// ---- lesson.c: one Program per process. While ranks run, they change only `status`. ----
typedef struct {
    OptionValues settings;
    LaunchWish wish;
    LaunchChoice choice;
    Launch launch;
    uint64_t seed;
    size_t threads; // threads per rank
    bool color, tf32, verbose;
    void (*lesson)(Run *run);
    double started;
    char tag[96]; // "[03.02 linear]", the head of titles, check lines and the verdict
    int status;   // the exit status of this process
} Program;

// ---- exercise.c: every rank keeps a list of the open exercises that it has met ----
// On rank 0 prints a line for each open exercise, and returns the number of open exercises. Returns
// 0 on the other ranks. All ranks must call this function.
size_t exercises_report(Comm *world);

// ---- report.c: records of rank 0, for the verdict and the JSON ----
typedef struct {
    char *name, *text;
    double number;
} ConfigRecord; // text NULL: a number
typedef enum { CHECK_BITS, CHECK_CLOSE, CHECK_HOLDS, CHECK_DIFFERS, CHECK_KINDS } CheckKind;
typedef struct {
    char *what, *name;
    double error, limit;
    bool pass;
    CheckKind kind;
} CheckRecord;
// The numbers that each rank sends to rank 0. `id` is the hash of the cost's id, which must be the
// same on all ranks. `predicted` comes from the formula, or from the player if there is no formula.
// `agree` is true if the player gives no number, or a number equal to `measured`.
typedef struct {
    double predicted, measured;
    uint64_t id;
    bool agree;
} CostPair;
typedef struct {
    char *id, *name, *unit;
    CostPair lo, hi, wrong;
    size_t wrong_rank;
    bool pass, played;
} CostRecord;

// The last lines of a page, before the verdict.
enum { PAGE_ANSWER, PAGE_COST, PAGE_USE_WHEN, PAGE_ENDINGS };

typedef struct PageText {
    struct PageText *before;
    char text[];
} PageText;

struct RunState {
    Program *program;
    // This copy of the program's options belongs to this rank; option_default() changes the copy.
    OptionValues settings;
    ConfigRecord *configs;
    CheckRecord *checks;
    CostRecord *costs;
    size_t config_count, check_count, checks_failed, cost_count, costs_failed;
    size_t what_width, name_width; // the largest widths so far of the columns of check lines
    uint64_t digest;               // a sum of hashes of the compared results; 0: none
    double progressed;             // when progress() drew its line; 0: there is no line
    char *wrong;                   // a sentence about the first failed check or cost; NULL: none
    char *endings[PAGE_ENDINGS];   // say_answer, say_cost, say_use_when; NULL: not called
    char cost_texts[8][64];        // buffers of cost_text(), used in turn
    size_t cost_texts_used;
    PageText *texts; // the last text of page_text(), which links to the earlier texts
    bool pictured;   // the lesson has drawn a picture of events, or has ended early
    bool plotted;    // the lesson has drawn a line chart, or has written --svg itself
    bool stopped;    // report_stopped() was called
};

// Records a check. Also prints a line if the check failed, or with --verbose. The line shows
// error_text and limit_text, such as "max 2.1e-07" and "limit 1.0e-05".
void report_check(Run *run, CheckRecord check, const char *error_text, const char *limit_text);
void report_detail(const char *text); // prints the indented line under a failed check
// Prints the table of costs; without --verbose only failed costs.
void report_costs(Run *run);
void report_clear_progress(Run *run); // call this function before printing anything else
void report_json(Run *run, const char *path, double seconds, bool pass);
void report_free(Run *run);
// Returns good or bad, in colour if colours are on.
const char *report_mark(Run *run, bool pass, const char *good, const char *bad);

// ---- page.c: without --verbose a lesson prints this page instead of the log ----
bool page_on_terminal(void);
size_t page_width(void); // returns the columns: COLUMNS, the terminal's width, or 100
// Prints text from column `at` on, broken at spaces. Further lines begin at column `indent`. Rank 0
// calls this function.
void page_wrap(const char *text, size_t at, size_t indent);
void page_title(const Program *p, size_t ranks);
// Returns a part of the title: a hint how to let waiting threads sleep, or "" if the environment
// already says how threads wait.
const char *threads_advice(void);
void page_checked(Run *run);            // prints the comparisons and the number of exact costs
void page_endings(Run *run, bool pass); // prints Answer, Cost and Use it when, or Wrong
// Returns a cost on rank 0. Calls fault() if the id is unknown.
const CostRecord *report_cost(Run *run, const char *id);

// ---- snapshot.c ----
// A summary of the part of a tensor that a rank holds. `count` is the number of elements. `places`
// is the sum of the hashes of the elements' places. `digest` is the sum of the hashes of places and
// bits. Sums do not depend on the order, so the summaries of parts can be added.
typedef struct {
    uint64_t places, digest;
    size_t count, nans, rank;
} PartPrint;

typedef struct {
    char *name;
    size_t rows, cols;
    PartPrint *prints; // for a snapshot of fingerprints, which has no values and owners
    size_t print_count;
    real *values;
    unsigned *owner; // per element: 1 + the first rank with this element; 0: missing
    bool clash;      // two ranks have different bits of one element
    size_t clash_at, clash_rank[2];
    real clash_value[2];
} Whole;

struct Snapshot {
    Run *run;
    char label[32]; // appended to the names of later puts
    char *bytes;    // this rank's puts, serialised, until the join
    size_t size, capacity;
    bool joined, prints;
    Whole *wholes; // on rank 0, after the join
    size_t count;
};
Whole *snapshot_find(Snapshot *s, const char *name); // returns NULL if the name is unknown
double whole_largest(const Whole *w);                // returns the largest absolute value
uint64_t real_bits(real x);
uint64_t text_hash(const char *text);

// ---- diagnose.c ----
// Rank 0 keeps a sentence about the first check or cost that failed.
void diagnose_tensors(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
void diagnose_numbers(Run *run, const char *what, const char *name, const double *got,
                      const double *want, size_t n, double limit);
void diagnose_statement(Run *run, const char *what, const char *name, size_t missing);
void diagnose_cost(Run *run, const CostRecord *cost);

// Returns the digest of element i of the tensor with this text_hash.
uint64_t element_digest(uint64_t name, size_t i, real value);
#endif
