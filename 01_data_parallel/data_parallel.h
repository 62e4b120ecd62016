// data_parallel.h: what chapter 01 teaches, for later chapters: every rank has the whole model and
// a part of the batch.
#ifndef DATA_PARALLEL_H
#define DATA_PARALLEL_H
#include "common/comm/clock.h"
#include "common/model/data.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"

// 02_all_reduce.c. Once, before the first step: every rank gets rank 0's weights. Psi e bytes leave
// rank 0.
void data_parallel_broadcast(Comm *dp, Model *m);
// 02_all_reduce.c. Once per step, after the last backward: g <- the sum over replicas of g; each
// rank sends 2(N-1)/N of the gradient's bytes. Each replica's gradient already carries 1 / (counted
// tokens of the whole batch), so the sum is the gradient of the mean over tokens: nothing is
// divided.
void data_parallel_all_reduce(Comm *dp, Model *m);
// A step of `sequences` sequences up to its gradient: m->g <- the whole batch's, on every rank.
// Returns my shard's part of the mean loss.
double data_parallel_gradients(Comm *dp, Model *m, const Data *d, uint64_t step, size_t sequences);
// The whole step. The result's loss is my shard's part of it.
StepResult data_parallel_step(Comm *dp, Model *m, Optimizer *o, const Data *d, uint64_t step,
                              size_t sequences);

// ---- 03_ring.c: t <- the sum over the ranks of c, the same bits on each, by messages ----
void ring_all_reduce(Comm *c, Tensor t);
void gather_broadcast_all_reduce(Comm *c, Tensor t);
void tree_all_reduce(Comm *c, Tensor t);
void halving_doubling_all_reduce(Comm *c, Tensor t);
// Of ranks in nodes. inside: the ranks of my node; between: the rank with my place in every node.
void hierarchical_all_reduce(Comm *inside, Comm *between, Tensor t);

// ---- 04_overlap.c: gradients are reduced in buckets while backward still runs ----
typedef struct {
    Range part;                                    // of m->g
    size_t tensors;                                // that lie in it
    size_t pending;                                // tensors whose gradient is not final yet
    Request *request;                              // its all-reduce, between start and wait
} Bucket;
typedef struct {
    const Param *param;
    size_t at;                                     // its first element's place in m->g
    size_t bucket;                                 // in which it lies
    bool ready;                                    // its gradient is final
} BucketTensor;

typedef struct {
    Model *model;
    Comm *dp;
    // Looked at when a FORWARD begins: shall the backward that follows it reduce? False is DDP's
    // no_sync(). It must be false during the forward, too; around the backward alone it comes too
    // late.
    bool sync;
    bool armed;                                    // this backward reduces
    size_t n;                                      // buckets
    size_t started;                                // the first `started` of them are under way
    Bucket *bucket;
    size_t n_tensors;
    BucketTensor *tensor;                          // in model order, the tied table once
    size_t end;                                    // of m->g, as far as the tensors lie in it
    // For buckets_new_pipeline() alone. tied: where another stage has a copy of the tied table, its
    // place in m->g.
    size_t micro_batches;
    Range tied;
    Request *tied_request;
} Buckets;

// After model_allocate(): cuts, and wraps every layer. A bucket is closed when it has reached
// `capacity` bytes: 1 makes a bucket of every tensor, SIZE_MAX one of all.
Buckets *buckets_new(Model *m, Comm *dp, size_t capacity);
// m->g <- the gradient of the whole batch, the same on every rank. Returns my sequences' part of
// the mean loss.
double buckets_gradients(Buckets *b, const Batch *batch);
// In place of forward and backward, where a rank has no sequences: its gradient is zero, and final
// at once.
void buckets_no_work(Buckets *b);
// After the last backward: waits until every started bucket is reduced. Nothing to do where no
// bucket was started.
void buckets_wait(Buckets *b);
// Three steps of the above: cuts, and wraps no layer; a forward begins, so no tensor is ready; l's
// backward is done.
Buckets *buckets_cut(Model *m, Comm *dp, size_t capacity);
void buckets_arm(Buckets *b);
void buckets_layer_ready(Buckets *b, const Layer *l);

// buckets.c: the list of tensors, and the faults of who uses buckets wrongly.
Buckets *buckets_list_tensors(Model *m, Comm *dp);             // all tensors, and no bucket yet
void buckets_free(Buckets *b);
BucketTensor *buckets_find(Buckets *b, const Param *p);        // NULL: in no bucket
void buckets_check_waited(const Buckets *b);  // fault() if the last step was never waited for
void buckets_check_complete(const Buckets *b);  // fault() if some, but not all tensors are ready

// buckets.c, for pipelines (08): several micro-batches are in flight, and only the last of
// `micro_batches` reduces.
Buckets *buckets_new_pipeline(Model *m, Comm *dp, size_t capacity, size_t micro_batches);
// After the last backward, on a stage that shares the tied table with another one: the sum of both
// stages' gradients of the table stands in m->g now, and is all-reduced like a last bucket. Nothing
// to do elsewhere.
void buckets_start_tied(Buckets *b);
void buckets_wait_tied(Buckets *b);

// ---- 07_balance.c: whole sequences for devices of unequal speed ----
// share[n] <- `total` sequences in rank order, in proportion to rate[n] (of any unit), in whole
// sequences. A share may be empty. Equal shares as long as no rate is known, which is when all are
// 0.
void balance_shares(Range *share, const double *rate, size_t n, size_t total);
// What is known of the devices. rate[n]: sequences per picosecond of each, 0 as long as nothing is
// known; the same on every rank: only so will all cut the next batch in the same places. took: the
// picoseconds this rank computed.
typedef struct { double *rate, took; bool measured; } Speeds;
// A step up to its gradient: shares in proportion to the rates, the gradient of this rank's share,
// the all-reduce. If known->measured, the rates follow from the times of this step. Returns this
// rank's part of the loss.
double balance_gradients(Comm *dp, Model *m, const Data *data, size_t step, size_t sequences,
                         Range *share, Speeds *known);
void balance_observe(Comm *dp, const Range *share, double took, double *rate);
#endif
