// 04_pipedream.h: the reference of 04_pipedream, its trainings, its cost lines and the results of its page.
#ifndef PIPEDREAM_SUPPORT_H
#define PIPEDREAM_SUPPORT_H
#include "04_pipeline_naive/experiments/costs.h"
#include "04_pipeline_naive/experiments/stack.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// The reference: one device (rank 0, uncounted), the whole model, one mini-batch after the other. Mini-batch k reads of
// stage i's layers the weights that there were after k - age(i) updates, age(i) being p-1-i, or p-1 with vertical sync.
// A step of the Trajectory is a mini-batch; its norms stay 0.
Trajectory pipedream_reference(Run *run, const Training *t, size_t p, bool vertical);

// One training over t->steps mini-batches, by a list for this stage. Collective.
typedef struct {
    size_t in_flight, weights, gradients, optimizer, activations, buffers;     // bytes; peaks, but for the state's
    double messages, message_bytes, sums;                                      // sums: all-reduces, calls
    double *loss;                                                              // [steps], alike on all ranks; free()
    double *second;                                                            // gradient of mini-batch 1, [size] of
                                                                               // my stage; free()
    size_t size;
} PipeDreamSeen;
PipeDreamSeen pipedream_train(Run *run, const Training *t, const Schedule *list, size_t older, Trajectory *got);
void pipedream_seen_free(PipeDreamSeen *seen);
// |a - b| / |b| over all stages, of the gradients of mini-batch 1.
double pipedream_deviation(Run *run, const PipeDreamSeen *a, const PipeDreamSeen *b);
// Puts what is there after an update into a Trajectory, of some tensors: see PipelineNotes.
void pipeline_note(Trajectory *got, Model *m, size_t update, Which which);
// All mini-batches (of micro-batches) of all steps; free() the list, arena_free() the tokens.
Batch *pipedream_batches(const Training *t, Arena *tokens);

// Equal stages: n pieces by this list, recorded; their updates change weights that nobody looks at.
Played pipedream_play(Run *run, const Stack *stack, const Schedule *list, size_t older, size_t n);
// Two (or `times`) steps of 1F1B, one after the other: m micro-batches, a flush, an update, and again.
Schedule schedule_flushed(size_t p, size_t m, size_t i, size_t times);
typedef Schedule (*PipeDreamList)(size_t p, size_t n, size_t i);
// Of played lists, by the times of the stack: until the last op ends.
Picoseconds pipedream_makespan(const Stack *stack, PipeDreamList list, size_t p, size_t n);

// ---- 04_costs.c ----
// Pictures and times of both, and what the lists of all sizes must be.
void pipedream_equal_stages(Run *run, const Training *t);
// way: 0 synchronous, with a flush after every mini-batch; else 1 + a PipeDreamRule.
void pipedream_costs(Run *run, const Training *t, size_t way, const PipeDreamSeen *seen);
// off: pipedream_deviation without stashing; loss: of each way, the mean of these mini-batches.
void pipedream_results(Run *run, double off, const double loss[4], size_t first, size_t last);
#endif
