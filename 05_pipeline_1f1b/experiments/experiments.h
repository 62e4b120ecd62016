// experiments.h: declares the functions that this chapter's experiments share.
#ifndef PIPELINE_1F1B_EXPERIMENTS_H
#define PIPELINE_1F1B_EXPERIMENTS_H
#include "04_pipeline_naive/experiments/experiments.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "judge/frame/lesson.h"

// ---- equal.c: equal stages ----
// EqualWay is a way to run equal stages. `way` is a way of 07_compare.c. If `rule` is given, `loop`
// runs the lists of `rule` with a flush instead. `id` is the name for --draw and the end of the
// costs' ids, such as "step.1f1b".
typedef struct {
    PipelineWay way;
    const char *id, *name;
    ScheduleRule rule;
    PipelineLoop *loop;
} EqualWay;
extern const EqualWay equal_ways[PIPELINE_WAYS];
// Returns the time of one batch, from the lists alone. Without a flush this is the time of one more
// batch when the pipeline is full. If `messages` is true, messages take the time of the chosen
// link, else no time.
double equal_batch(const EqualWay *w, const Stack *stack, size_t p, size_t m, bool messages);
// Returns the published number of micro-batches in flight on stage i. With v > 1 chunks per stage
// this is the number of chunks by Megatron's formula. For lists of w->rule the function returns
// NOT_PREDICTED.
Predicted equal_flight(const EqualWay *w, size_t p, size_t m, size_t v, size_t i);
// Runs a batch, and draws it if there is a title. Checks micro-batches in flight, activations,
// versions and bytes of the weights, messages, time and idle share. Without a flush the time of a
// batch is the time of three batches minus the time of two, because the pipeline is then full.
// Without a flush two batches are drawn. `picture` has flags of picture_show.
void equal_stages(Run *run, const EqualWay *w, const Stack *stack, size_t m, const char *title,
                  int picture);
// Returns flags of picture_show. --verbose, --svg and --trace add strips of memory. Only the way
// that --draw names gets files.
int equal_files(Run *run, const EqualWay *w);
// Returns a comparison of two times in words, such as "0.5 % more than" or "the same as".
const char *compare_times(Run *run, double time, double with);

// ---- lists.c: lists alone, and times and memory from sizes ----
// Returns a list of `steps` steps of m micro-batches in a row. The list repeats `one`, the list of
// one step, which this function frees. If `updates` is true, each step ends with an update, and the
// next step reads the new version.
Schedule schedule_repeated(Schedule one, size_t m, size_t steps, bool updates);
// Returns the largest number of micro-batches, or chunks, that are between their forward and the
// end of their backward.
size_t list_in_flight(const Schedule *s);
// Returns a cell of results() with list_in_flight() of each stage: "4 3 2 1", or "1..8" if the
// pipeline has more than four stages.
const char *flight_cell(Run *run, const Schedule *stage, size_t p);
// Prints the first `ops` ops of a list. If these do not fit in a line, only the last of them are
// printed. Below each op the next line has the version of the weights that the op reads. An update
// has no version.
void say_versions(Run *run, const Schedule *s, size_t ops);
// Returns the times of a stage's forward, of the two halves of its backward, and of a message,
// under the simulated clock.
OpTimes zb_times(const Stack *s);
// Returns the peak of the activations of stage i of this stack, in bytes, when the stage runs this
// list.
size_t stack_peak(const Stack *stack, const Schedule *list, size_t p, size_t i);

// ---- versions.c: lists with updates in them, trained ----

// VersionsWay is a way to train with lists that have updates. The lists are 1F1B's with a flush
// before each update, PipeDream's by `rule`, or 2BW's. `id` is the end of the costs' ids, and
// `name` the beginning of their names. If two_buffers is true, pipeline_2bw runs the list.
// Otherwise pipeline_pipedream runs the list, and embedding and head have a table each.
typedef struct {
    const char *id, *name;
    enum { VERSIONS_FLUSH, VERSIONS_PIPEDREAM, VERSIONS_2BW } order;
    PipeDreamRule rule;
    bool two_buffers;
} VersionsWay;
// VersionsRecords has the places where a training stores its results. Each pointer but `loss` may
// be NULL.
typedef struct {
    Trajectory *got;
    double *loss; // [steps], 0 at first. All ranks get the same losses.
    real *second; // the gradient of batch 1 on this stage, if got is not NULL
    bool costs;   // check the costs of this rank, with ids such as "weights.<id>"
} VersionsRecords;
void versions_train(Run *run, const Training *t, const VersionsWay *way, VersionsRecords records);
// Trains in this way, and checks that the training equals its recurrence on one device in every
// bit. In batch k of the recurrence each stage reads weights that are as many updates old as the
// way says. With AdamW this function also checks the costs.
void versions_compare(Run *run, const Training *t, const char *what, const VersionsWay *way);
// Returns a training of a small model on the text --data, with one block per stage, but at least
// four blocks. The caller calls data_free() on the data.
Training versions_text(Run *run, size_t steps, size_t sequences, size_t micro_batches);
// Returns the mean loss of the last `last` batches of a training.
double versions_last_loss(Run *run, const Training *t, const VersionsWay *way, size_t last);

// ---- judge.c ----
// The judge finds whether the lists of all stages are legal, how long a step takes, and which
// stages wait. Lists may have several chunks and backwards in halves.

// LISTS_LEGAL: zero_bubble_run can run the lists.
// LISTS_NOT_ONCE: an op occurs twice in a list or never, or has a number that is too large.
// LISTS_WRONG_MESSAGE: a stage takes a message for another op's message, because messages carry no
//     names and arrive in the order in which they were sent.
// LISTS_DEADLOCK: stages wait for each other, or a stage waits for a later op of its own list. A
//     stage may wait for a result, or for a send buffer (pipeline.h gives the number of buffers).
typedef enum { LISTS_LEGAL, LISTS_NOT_ONCE, LISTS_WRONG_MESSAGE, LISTS_DEADLOCK } ListsVerdict;
enum { JUDGE_REASON = 2400 };
typedef struct {
    ListsVerdict verdict;
    char why[JUDGE_REASON]; // lines that name the mistakes
    size_t end;             // end of the last op, if the lists are legal
    // The longest wait between two ops of legal lists. `stage` waits `units` before op, such as
    // "B0", for stage `from`. 0 units: no stage waits between two ops.
    struct {
        size_t units, stage, from;
        char op[32];
    } wait;
} Judgement;
// Judges the lists stage[p] for m micro-batches and v chunks per stage. `times` has the units of
// time of each op of a chunk.
Judgement judge_lists(const Schedule *stage, size_t p, size_t m, size_t v, const OpTimes *times);

// Reads "F0 F1 B0 B1 / F0 B0 F1 B1", the lists of *p stages. F is a forward, B a backward. I is the
// backward of inputs and W the backward of weights, the two halves of a backward. F0c1 is forward 0
// of chunk 1. Calls usage_error() if the text is not a list. The caller frees the lists with
// schedule_all_free.
Schedule *lists_parse(const char *text, size_t *p);

// ---- player.c ----
// Draws, judges and times a schedule if an option asks for a schedule. The schedule is a known one
// (make play-05 ARGS="--p 4 --m 8 --schedule interleaved --v 2"), or a list that the user types
// (--list). Returns false if no option asks for a schedule.
bool player(Run *run);
#endif
