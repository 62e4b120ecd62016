// bucket_costs.h: what reducing in buckets must cost, from the sizes alone. It never looks at a model or at buckets.c.
#ifndef BUCKET_COSTS_H
#define BUCKET_COSTS_H
#include "common/model/layer.h"

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
#endif
