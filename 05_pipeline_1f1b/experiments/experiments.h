// experiments.h: what the experiments of this chapter share.
#ifndef PIPELINE_1F1B_EXPERIMENTS_H
#define PIPELINE_1F1B_EXPERIMENTS_H
#include "04_pipeline_naive/experiments/experiments.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// ---- lists.c: lists alone, and times and memory from sizes ----
// When the last op of these lists ends, in the units of times; UINT64_MAX: a deadlock. Frees the
// lists.
Picoseconds lists_makespan(Schedule *stage, size_t p, size_t m, const OpTimes *times);
// Lists of n micro-batches, perhaps of several batches, on the stages of this stack.
typedef Schedule ListOf(size_t p, size_t n, size_t i);
Picoseconds stack_makespan(const Stack *stack, ListOf *list, size_t p, size_t n);
// `times` steps of 1F1B, one after the other: m micro-batches, a flush, an update, and again.
Schedule schedule_flushed(size_t p, size_t m, size_t i, size_t times);
size_t list_in_flight(const Schedule *s);  // most between their forward and their (last) backward
OpTimes zb_times(const Stack *s);  // F, B, W and a message under the simulated clock
// The lists that this rule makes for p stages: the time of a step, SIZE_MAX for a deadlock; most
// micro-batches in flight on a stage; legal: no stage gets stuck, and every forward, B and W stands
// there once, each kind in ascending order.
typedef struct { size_t step, in_flight; bool legal; } JudgedLists;
JudgedLists zb_judge(ScheduleRule rule, size_t p, size_t m, const OpTimes *times);
// Most bytes of activations on stage i that works down this list: of a training, of equal stages.
size_t zb_peak(const Training *t, const Schedule *list, size_t p, size_t i);
size_t zb_stack_peak(const Stack *stack, const Schedule *list, size_t p, size_t i);

// ---- versions.c: lists with updates in them, trained and played ----
// Equal stages, by the executor: any list without updates; PipeDream; `steps` batches of 2BW.
Played play_list(Run *run, const Stack *stack, const Schedule *list, size_t m);
Played pipedream_play(Run *run, const Stack *stack, const Schedule *list, size_t older, size_t n);
Played two_bw_play(Run *run, const Stack *stack, size_t m, size_t steps);

// t->steps batches of t->micro_batches by this list. Bytes are peaks; messages and sums are those
// of all steps.
typedef struct {
    size_t in_flight, weights, gradients, optimizer, activations, buffers;
    size_t size;                                   // elements of my stage
    double messages, message_bytes, table_calls, table_bytes;
    double sums;                                   // all-reduces over the stages
    bool buffers_back;  // every gradient is in the model's own memory again
    double *loss;                                  // [steps], alike on all ranks
    double *second;  // PipeDream: [size], the gradient of mini-batch 1
} VersionsSeen;
// older: PipeDream, with so many copies of the weights and two tables; NULL: 2BW. got: may be NULL.
VersionsSeen versions_train(Run *run, const Training *t, const Schedule *list, const size_t *older,
                            Trajectory *got);
void versions_seen_free(VersionsSeen *seen);
#endif
