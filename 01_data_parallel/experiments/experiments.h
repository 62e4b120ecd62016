// experiments.h: what several experiments of this chapter, and of later ones, have in common:
// formulas of all-reduces, of buckets and of compressed gradients, and the references on one
// device.
#ifndef DATA_PARALLEL_EXPERIMENTS_H
#define DATA_PARALLEL_EXPERIMENTS_H
#include "01_data_parallel/compression.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"
#include "judge/frame/training.h"

// --------------------------------------------------- ring_costs.c: four ways to make an all-reduce

typedef enum { RING, GATHER, TREE, HALVING, WAYS } Way;
extern const char *const way_name[WAYS];
size_t way_power_below(size_t N);                  // the largest power of two that is at most N
size_t way_height(size_t N);                       // log2 N, rounded up

// What rank r of N sends of `count` elements, and its scratch memory in bytes.
typedef struct { size_t messages, bytes, scratch; } WayCosts;
WayCosts way_costs(Way way, size_t N, size_t r, size_t count);

// Picoseconds until the last rank is done, each with one port; over this run's link between nodes,
// or any other.
double way_time(Way way, size_t N, size_t count);
double way_time_on(const ClockLink *l, Way way, size_t N, size_t count);
// From how many times `unit` elements on the ring is no slower than another way. `unit` is divided
// by N, and by the number of chunks of the other way.
size_t way_ring_overtakes(Way way, size_t N, size_t unit);

// ------------------------------------------------------------- bucket_costs.c: reducing in buckets

// How many elements the tensors have on a rank: the two tables, those of a block in model order,
// and each of the last norm's two.
typedef struct { size_t wte, wpe, block[TENSORS_OF_BLOCK], norm; } TensorElements;
// What the rule of 04_overlap.c makes of the sizes of all tensors of a stage, in the order of the
// starts. A bucket is complete after the backward of `layer`, that of its first tensor; 0 is the
// stage's first layer. The last bucket of a stage that shares wte with another one is wte alone.
// *piece is the caller's to free(). z: which layers the stage has.
typedef struct { size_t elements, layer; } BucketPiece;
size_t bucket_pieces(const CutSizes *z, const TensorElements *of, size_t capacity,
                     BucketPiece **piece);

// The last (or only) micro-batch of a step on one rank: when its forward begins, in picoseconds
// after the step, and how many sequences it has.
typedef struct { double begin; size_t sequences; } LastBatch;

typedef struct {
    size_t buckets;
    double bytes;                                  // sent by each rank
    size_t scratch;  // bytes in which the started sums meet, until they are waited for
    double exposed, hidden;                        // added over ranks
    double step;  // until backward and the last bucket have ended everywhere
} BucketCosts;
// The times are played: a recurrence over the buckets.
BucketCosts bucket_costs(const ModelConfig *c, size_t capacity, size_t ranks,
                         const LastBatch *batch);
// Where all micro-batches begin with the step, and `sequences` are cut over the ranks.
BucketCosts overlap_costs(const ModelConfig *c, size_t capacity, size_t ranks, size_t sequences);

// ----------------------------------------------- compression_costs.c: 06_compression, 08_power_sgd

typedef struct {
    double sent;                                   // bytes that rank r of N sends
    size_t calls;
    size_t errors, factors;  // elements kept between steps: what was not sent; the matrices q
    size_t buffers;                                // elements, at the most, with the factors
} CompressionCosts;
// Of what one of N replicas has: a whole model, or what a pipeline stage and a slice leave of it.
CompressionCosts compression_costs(const CutSizes *z, const CompressionPlan *plan, size_t N,
                                   size_t r);
// Picoseconds of TOP_K or POWER_SGD on the simulated clock, from when the last replica has come;
// near: the N ranks share a node. The choice of the largest elements and Gram and Schmidt take no
// time there: it counts products only.
double compression_time(const CutSizes *z, const CompressionPlan *plan, size_t N, bool near);

// ------------------------------------------------ compression_reference.c: the rules on one device

// What the N ranks would keep. error [N, size], server_error [1, size].
typedef struct {
    CompressionPlan plan;
    CompressedBucket *buckets;
    size_t n_buckets;
    Tensor error, server_error;
    Arena arena;
} OneDevice;
OneDevice one_device_new(const CompressionPlan *plan, const Model *m, size_t shards, uint64_t seed);
void one_device_free(OneDevice *o);
// sum [1, size] <- what N ranks with the rows of g [N, size] believe their sum to be.
void one_device_sum(OneDevice *o, Tensor sum, Tensor g);
// A training. On rank 0, uncounted; the other ranks' course is empty.
Trajectory one_device_course(Run *run, const Training *t, const CompressionPlan *plan,
                             size_t shards);

// ---------------------------------------------- compression_checks.c: 06_compression, 08_power_sgd

// Of a training: bytes sent and calls; bytes at its end: of gradients, and of buffers; of buffers
// at their peak.
// step: picoseconds
typedef struct { size_t sent, calls, gradients, kept, buffers, step; } CompressionSeen;
// plan NULL: the exact sum. seen, if given, is filled in, and the books are checked. On every rank:
// sent + kept back = its gradients. Over all ranks: believed + what the servers of 1-bit keep back
// = sent.
Trajectory compression_train(Run *run, const Training *t, const CompressionPlan *plan,
                             CompressionSeen *seen);
// A training against the rule on one device, and its costs.
void compression_check_rule(Run *run, const Training *t, const CompressionPlan *plan,
                            CompressionSeen *seen);

// Gradients with which a method loses nothing. MADE_SMALL: whole numbers. MADE_LARGE: their sum is
// beyond fp16. MADE_NOISE: anything. MADE_EVEN: +-1/4, alike on all ranks. MADE_FLAT: A B^T, B of
// MADE_FLAT_RANK columns and the same on all ranks.
typedef enum { MADE_SMALL, MADE_LARGE, MADE_NOISE, MADE_EVEN, MADE_FLAT } MadeKind;
enum { MADE_FLAT_RANK = 2 };
// What the method makes of such gradients is the all-reduce's sum, within `limit` (0: every bit).
void compression_check_exact(Run *run, const ModelConfig *model, const CompressionPlan *plan,
                             MadeKind kind, const char *name, double limit);

// Trainings on the text --data with the rate --lr: draws the losses. last[n]: the mean loss of the
// last ten steps.
// alone: one device applies the rule to the whole gradient; no curve is drawn.
enum { COMPRESSION_LONG = 60 };
typedef struct { const char *name; bool exact, alone; CompressionPlan plan; } Curve;
void compression_curves(Run *run, const Curve *curve, size_t n, double *last);
// The options of both experiments: --data and --lr of the curves, --link.
extern const Option compression_options[];
// A step with the exact all-reduce, then one with a compressed one, in one picture.
void compression_show_steps(Run *run, const Training *t, const CompressionPlan *plan,
                            const char *title);
#endif
