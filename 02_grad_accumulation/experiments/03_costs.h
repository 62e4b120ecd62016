// 03_costs.h: what 03_no_sync must cost, from the sizes alone, held against what was measured.
#ifndef NO_SYNC_COSTS_H
#define NO_SYNC_COSTS_H
#include "judge/frame/training.h"
#include "judge/draw/picture.h"

typedef struct {
    size_t calls, bytes;                       // all-reduces of the training; all it sent
    size_t parameters, gradients, optimizer, activations;          // buffers; the peak of the last step
    Timing last;                               // the last step's
} NoSyncMeasured;

// The three trainings of the lesson: one reduction per step, one after every micro-batch, and one in buckets of
// `bucket` bytes during the last backward.
void no_sync_costs(Run *run, const Training *t, size_t bucket, const NoSyncMeasured *once,
                   const NoSyncMeasured *forgetful, const NoSyncMeasured *early);
#endif
