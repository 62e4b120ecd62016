// data_parallel.h: data parallelism, in which every rank has the whole model and a part of the
// batch. Later chapters call some of these functions.
#ifndef DATA_PARALLEL_H
#define DATA_PARALLEL_H
#include "common/comm/clock.h"
#include "common/model/data.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"

// ---- 02_all_reduce.c ----
// Gives every rank all weights of rank 0. Call this function once, before the first step.
void data_parallel_broadcast(Comm *dp, Model *m);
// Replaces m->g by the sum of the replicas' m->g. Call this function once per step, after the last
// backward and model_fold_tied(). Each rank sends 2(N-1)/N of the gradient's bytes.
void data_parallel_all_reduce(Comm *dp, Model *m);
// Leaves the gradient of the whole batch of `sequences` sequences in m->g, on every rank. Returns
// the part of the mean loss that comes from this rank's shard.
double data_parallel_gradients(Comm *dp, Model *m, const Data *d, uint64_t step, size_t sequences);
// Makes a whole step, with the update of the weights. The loss in the result is the part of the
// mean loss that comes from this rank's shard.
StepResult data_parallel_step(Comm *dp, Model *m, Optimizer *o, const Data *d, uint64_t step,
                              size_t sequences);

// ---- 03_ring.c: each function replaces t by its sum over the ranks, in the same bits on each rank
void ring_all_reduce(Comm *c, Tensor t);
void gather_broadcast_all_reduce(Comm *c, Tensor t);
void tree_all_reduce(Comm *c, Tensor t);
void halving_doubling_all_reduce(Comm *c, Tensor t);
// Sums t inside each node, then between nodes, and gathers the sum inside each node.
//     inside   the ranks of this rank's node
//     between  the ranks with the same place in every node
void hierarchical_all_reduce(Comm *inside, Comm *between, Tensor t);

// ---- 04_overlap.c: gradients are reduced in buckets while backward still runs ----
typedef struct {
    Range part;       // the bucket's part of m->g
    size_t tensors;   // number of tensors in the bucket
    size_t pending;   // number of tensors whose gradient is not final yet
    Request *request; // the all-reduce, between start and wait
} Bucket;
typedef struct {
    const Param *param;
    size_t at;     // index of the tensor's first element in m->g
    size_t bucket; // number of the tensor's bucket
    bool ready;    // the gradient is final
} BucketTensor;

typedef struct {
    Model *model;
    Comm *dp;
    // Whether the next backward reduces; DDP's no_sync() sets such a flag to false. Set sync before
    // the forward, because buckets_arm() reads sync when the forward begins.
    bool sync;
    bool armed;     // value of sync when the forward began; false after buckets_wait()
    size_t n;       // number of buckets
    size_t started; // buckets 0 .. started-1 are in flight
    Bucket *bucket;
    size_t n_tensors;
    // [n_tensors] in model order. A tied table counts once, and is absent if another stage has a
    // copy of the table.
    BucketTensor *tensor;
    size_t end; // end of the part of m->g that the buckets cover
    // For the stages of a pipeline (08_3d/stage_buckets.c).
    size_t micro_batches;  // micro-batches per step
    Range tied;            // the part of m->g for a tied table of which another stage has a copy
    Request *tied_request; // the all-reduce of m->g[tied]
} Buckets;

// Cuts the gradient in buckets and wraps every layer. Call this function after model_allocate(). A
// bucket is closed when its size has reached `capacity` bytes. Capacity 1 gives a bucket per
// tensor, SIZE_MAX a single bucket.
Buckets *buckets_new(Model *m, Comm *dp, size_t capacity);
// `batch` has this rank's sequences. Leaves the gradient of all ranks' sequences in m->g, the same
// on every rank. Returns the part of the mean loss that comes from this rank's sequences.
double buckets_gradients(Buckets *b, const Batch *batch);
// Takes the place of forward and backward on a rank without sequences. The gradient of such a rank
// is zero, and is final at once.
void buckets_no_work(Buckets *b);
// Waits until every started bucket is reduced. Call this function after the last backward.
void buckets_wait(Buckets *b);
// buckets_cut cuts the gradient, but wraps no layer. A caller that wraps the layers itself calls
// buckets_arm when the forward of the step's last micro-batch begins. When the backward of this
// micro-batch is done in layer l, the caller calls buckets_layer_ready.
Buckets *buckets_cut(Model *m, Comm *dp, size_t capacity);
void buckets_arm(Buckets *b);
void buckets_layer_ready(Buckets *b, const Layer *l);

// ---- buckets.c: the list of tensors, faults for wrong use ----
// Lists the tensors that buckets reduce. The result has no bucket yet.
Buckets *buckets_list_tensors(Model *m, Comm *dp);
void buckets_free(Buckets *b);
BucketTensor *buckets_find(Buckets *b, const Param *p); // returns NULL if p is in no bucket
void buckets_check_waited(const Buckets *b);   // fault() if no buckets_wait() ended the last step
void buckets_check_complete(const Buckets *b); // fault() if some, but not all tensors are ready

// ---- 07_balance.c: whole sequences for devices of unequal speed ----
// Cuts `total` sequences into n shares, in rank order, in proportion to rate[n] (in any unit). A
// share has whole sequences and may be empty. Rates that are all 0 mean unknown speeds. Then the
// shares differ by at most one sequence.
void balance_shares(Range *share, const double *rate, size_t n, size_t total);
// The speeds of the devices, as far as they are known. Every rank has the same rates, so all ranks
// cut the next batch in the same places.
typedef struct {
    double *rate;  // [n] each device's rate, 0 if unknown; sequences per picosecond if measured
    double took;   // picoseconds of this rank's computation in the last step
    bool measured; // whether the rates follow from measured times
} Speeds;
// Makes a step up to the gradient. Cuts shares in proportion to the rates, computes the gradient of
// this rank's share, and runs the all-reduce. If known->measured, updates the rates with the times
// of this step. Returns this rank's part of the loss.
double balance_gradients(Comm *dp, Model *m, const Data *data, size_t step, size_t sequences,
                         Range *share, Speeds *known);
void balance_observe(Comm *dp, const Range *share, double took, double *rate);
#endif
