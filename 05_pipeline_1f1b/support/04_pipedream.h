// 04_pipedream.h: the reference of 04_pipedream, its trainings, its cost lines and the results of its page.
#ifndef PIPEDREAM_SUPPORT_H
#define PIPEDREAM_SUPPORT_H
#include "04_pipeline_naive/support/costs.h"
#include "04_pipeline_naive/support/stack.h"
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
// All mini-batches (of micro-batches) of all steps; free() the list, arena_free() the tokens.
Batch *pipedream_batches(const Training *t, Arena *tokens);

void pipedream_costs(Run *run, const Training *t, PipeDreamRule rule, const PipeDreamSeen *seen);
#endif
