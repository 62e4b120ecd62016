// 04_costs.h: what reducing in buckets must cost, from the sizes alone. It never looks at a model or its buckets.
#ifndef OVERLAP_COSTS_H
#define OVERLAP_COSTS_H
#include "common/model/costs.h"
#include "judge/draw/picture.h"

// How many elements the tensors have on a rank: the two tables, those of a block in model order, and each of the last
// norm's two.
typedef struct { size_t wte, wpe, block[TENSORS_OF_BLOCK], norm; } TensorElements;
// What the rule of 04_overlap.c makes of the sizes of all tensors of a stage, in the order of the starts. A bucket is
// complete after the backward of `layer`, that of its first tensor; 0 is the stage's first layer. The last bucket of a
// stage that shares wte with another one is wte alone. *piece is the caller's to free(). z: which layers the stage has.
typedef struct { size_t elements, layer; } BucketPiece;
size_t bucket_pieces(const CutSizes *z, const TensorElements *of, size_t capacity, BucketPiece **piece);

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
// The table of results: the same three, and what the last step's time went to.
void overlap_show_results(Run *run, const OverlapSizes *z, const BucketsSeen *is, const BucketsSeen *end,
                          const BucketsSeen *tensors);
#endif
