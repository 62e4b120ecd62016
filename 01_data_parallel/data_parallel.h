// data_parallel.h: what chapter 01 teaches, for later chapters: every rank has the whole model and a part of the batch.
#ifndef DATA_PARALLEL_H
#define DATA_PARALLEL_H
#include "common/model/model.h"

// 02_all_reduce.c. Once, before the first step: every rank gets rank 0's weights. Psi e bytes leave rank 0.
void data_parallel_broadcast(Comm *dp, Model *m);
// 02_all_reduce.c. Once per step, after the last backward: g <- the sum over replicas of g; each rank sends 2(N-1)/N of
// the gradient's bytes. Each replica's gradient already carries 1 / (counted tokens of the whole batch), so the sum is
// the gradient of the mean over tokens: nothing is divided.
void data_parallel_all_reduce(Comm *dp, Model *m);

// ---- 04_overlap.c: gradients are reduced in buckets while backward still runs ----
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
    // In a pipeline several micro-batches are in flight, and sync is true for all of them: only the last one of a step,
    // of so many, reduces. 0: no pipeline.
    size_t micro_batches;
    bool armed;                                    // this backward reduces
    size_t n, started;                             // buckets; those before `started` are under way
    Bucket *bucket;
    size_t n_tensors;
    BucketTensor *tensor;                          // in model order, the tied table once
    size_t end;                                    // of m->g, as far as the tensors lie in it
    // Where another stage has a copy of the tied table: its place in m->g, in no bucket; empty elsewhere.
    Range tied;
    Request *tied_request;
} Buckets;

// After model_allocate(): cuts, and wraps every layer. A bucket is closed when it has reached `capacity` bytes: 1 makes
// a bucket of every tensor, SIZE_MAX one of all.
Buckets *buckets_new(Model *m, Comm *dp, size_t capacity);
void buckets_free(Buckets *b);
// In place of forward and backward, where a rank has no sequences: its gradient is zero, and final at once.
void buckets_no_work(Buckets *b);
// After the last backward, on a stage that shares the tied table with another one: the sum of both stages' gradients of
// it stands in m->g now, and travels over dp like a last bucket. Nothing to do elsewhere.
void buckets_start_tied(Buckets *b);
// After that, or after the last backward: the reduced gradient arrives. Nothing to do where no bucket was started.
void buckets_wait(Buckets *b);

// The bookkeeping, in buckets.c.
Buckets *buckets_list_tensors(Model *m, Comm *dp);             // all tensors, and no bucket yet
void buckets_arm(Buckets *b);                                  // a forward begins: if b->sync, no tensor is ready
void buckets_tensor_ready(Buckets *b, const Param *p);         // fault() if it was already
void buckets_check_complete(const Buckets *b);                 // fault() if some, but not all tensors are ready

// ---- 07_balance.c: whole sequences for devices of unequal speed ----
// share[n] <- `total` sequences in rank order, in proportion to rate[n] (of any unit), in whole sequences. A share may
// be empty. Equal shares as long as no rate is known, which is when all are 0.
void balance_shares(Range *share, const double *rate, size_t n, size_t total);
#endif
