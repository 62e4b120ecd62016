// 05_2bw.h: the reference of 05_pipedream_2bw, its trainings, its cost lines and the results of its page.
#ifndef TWO_BW_SUPPORT_H
#define TWO_BW_SUPPORT_H
#include "05_pipeline_1f1b/experiments/04_pipedream.h"

// The reference: one device (rank 0, uncounted) with two buffers of weights, W(t+1) = W(t) - eta grad f_t(W(t-1)), its
// m micro-batches one after the other. The norms of the Trajectory stay 0.
Trajectory two_bw_reference(Run *run, const Training *t);

// t->steps batches of t->micro_batches. Bytes: peaks; messages and sums over all steps. loss: alike on all ranks.
typedef struct {
    size_t in_flight, weights, gradients, optimizer, activations, buffers, size;
    bool buffers_back;                             // every gradient is in the model's own memory again
    double messages, message_bytes, table_calls, table_bytes, sums;            // sums: all-reduces
} TwoBwSeen;
// By this list; noted: got's tensors are filled, too, and not only its losses.
TwoBwSeen two_bw_train(Run *run, const Training *t, const Schedule *list, bool noted, Trajectory *got);
// Equal stages: steps batches of m micro-batches, recorded.
Played two_bw_play(Run *run, const Stack *stack, size_t m, size_t steps);

void two_bw_costs(Run *run, const Training *t, const TwoBwSeen *seen);
// Lists of all sizes; the picture; times and memory of GPipe, 1F1B, PipeDream and 2BW on equal stages.
void two_bw_equal_stages(Run *run, const Training *t);
// loss: synchronous, 2BW: the mean of the last `last` batches.
void two_bw_results(Run *run, const double loss[2], size_t last);
#endif
