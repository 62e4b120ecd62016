// buckets.h: gradients are reduced while backward still runs, as PyTorch's DistributedDataParallel does it (Li et al.
// 2020, arXiv 2006.15704, section 3.2; torch/csrc/distributed/c10d/reducer.cpp).
//
// Backward makes the gradients of the last layer first. So the flat gradient is cut from its END, at the borders of
// tensors, into buckets; as soon as a bucket's tensors are final, its all-reduce is started and backward goes on.
//
//     m->g      wte | wpe | h.0 ...           | h.1 ...           | ln_f
//     buckets   <-- 3 --> | <------ 2 ------> | <-- 1 --> <------ 0 ---->         backward runs from right to left
//
// A bucket is a view of m->g (DDP's gradient_as_bucket_view): nothing is copied, no buffer is needed.
//
// The order of a step: zero, forward and backward of every micro-batch (sync only in the last one's), buckets_wait,
// norm, update.
#ifndef BUCKETS_H
#define BUCKETS_H
#include "common/model/model.h"

typedef struct {
    Range part;                                    // of m->g
    size_t tensors, pending;                       // how many lie in it; of how many the gradient is not final yet
    Request *request;                              // its all-reduce, between start and wait
} Bucket;
typedef struct { const Param *param; size_t at, bucket; bool ready; } BucketTensor;       // at: its place in m->g

typedef struct {
    Model *model;
    Comm *dp;
    // Looked at when a FORWARD begins: shall the backward that follows it reduce? False is DDP's no_sync(). It must be
    // false during the forward, too; around the backward alone it comes too late.
    bool sync;
    bool armed;                                    // this backward reduces
    size_t n, started;                             // buckets; those before `started` are under way
    Bucket *bucket;
    size_t n_tensors;
    BucketTensor *tensor;                          // in model order, the tied table once
} Buckets;

// After model_allocate(): cuts, and wraps every layer. A bucket is closed when it has reached `capacity` bytes: 1 makes
// a bucket of every tensor, SIZE_MAX one of all.
Buckets *buckets_new(Model *m, Comm *dp, size_t capacity);
void buckets_free(Buckets *b);
// In place of forward and backward, where a rank has no sequences: its gradient is zero, and final at once.
void buckets_no_work(Buckets *b);
// After the last backward: the reduced gradient arrives. Nothing to do where no bucket was started.
void buckets_wait(Buckets *b);
#endif
