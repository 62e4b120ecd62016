// costs.h: what the predictions of this chapter are made of, from the sizes of the model alone.
#ifndef COSTS_H
#define COSTS_H
#include "common/lesson/training.h"
#include "common/model/formulas.h"

// Some units of a model, cut over n ranks.
typedef struct {
    size_t units;
    size_t whole, mine;                            // their elements; those in this rank's parts, about whole / n
    size_t largest, largest_part;                  // of the largest unit
    double bytes, time;                            // of one unit of traffic: each goes round a ring once, as a
                                                   // reduce-scatter or an all-gather; sent by each rank, picoseconds
} Share;
Share share_of_wte(const ModelConfig *c, size_t n, size_t rank);       // V C, the table that both ends of a step use
Share share_of_others(const ModelConfig *c, size_t n, size_t rank);    // wpe T C, blocks 12 C^2 + 13 C each, ln_f 2 C

// Most numbers that forward keeps for backward on this rank: of the largest micro-batch, between the two.
size_t activations(const Training *t, size_t n, size_t rank);
// The all-reduces of the loss and of the squares for the norm.
double scalars_bytes(const ModelConfig *c, size_t n);

// A cost of a training in m micro-batches.
void cost_with(Run *run, size_t m, const char *name, const char *unit, double predicted, double measured);
// Of the recorded step: FLOPs, and under the simulated clock how long it took, and how much of that was communication.
// traffic: picoseconds of its reduce-scatters and all-gathers. Every call waits for its result, so all of it is
// exposed, and the step is what the busiest rank computes, and then all calls one after the other.
void costs_in_time(Run *run, const Training *t, double traffic);
// Its picture, with a strip of the unit in flight, and its times.
void show_step(Run *run, const Training *t, const char *stage);
#endif
