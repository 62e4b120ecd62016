// 04_costs.h: what reducing in buckets must cost, from the sizes alone. It never looks at a model or its buckets.
#ifndef OVERLAP_COSTS_H
#define OVERLAP_COSTS_H
#include "common/model/layer.h"
#include "common/lesson/picture.h"

// The last (or only) micro-batch of a step on one rank: when its forward begins, in picoseconds after the step, and how
// many sequences it has.
typedef struct { double begin; size_t sequences; } LastBatch;

typedef struct {
    size_t buckets;
    double bytes;                                  // sent by each rank
    size_t scratch;                                // bytes in which the started sums meet, until they are waited for
    double exposed, hidden;                        // added over ranks
    double step;                                   // until backward and the last bucket have ended everywhere
} BucketCosts;
BucketCosts bucket_costs(const ModelConfig *c, size_t capacity, size_t ranks, const LastBatch *batch);

// ---- the lesson: all micro-batches begin with the step ----
typedef struct { ModelConfig model; size_t sequences, steps, capacity, per_tensor; } OverlapSizes;     // of a bucket
BucketCosts overlap_costs(const ModelConfig *c, size_t capacity, size_t ranks, size_t sequences);
typedef struct {
    size_t buckets, calls, bytes;                          // all-reduces of the training
    size_t parameters, gradients, communication;           // bytes: now, now, the last step's peak
    Timing last;                                           // the last step's
} BucketsSeen;
// The cost lines of three trainings: buckets of `capacity` bytes, one all-reduce at the end, a bucket of every tensor.
void overlap_compare_costs(Run *run, const OverlapSizes *z, const BucketsSeen *is, const BucketsSeen *end,
                           const BucketsSeen *tensors);
#endif
