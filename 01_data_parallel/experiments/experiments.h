// experiments.h: what several experiments of this chapter, and of later ones, have in common: formulas of all-reduces,
// of buckets and of compressed gradients, and the references on one device.
#ifndef DATA_PARALLEL_EXPERIMENTS_H
#define DATA_PARALLEL_EXPERIMENTS_H
#include "01_data_parallel/compression.h"
#include "common/comm/clock.h"
#include "common/model/costs.h"
#include "judge/frame/training.h"

// ---------------------------------------------------------------- ring_costs.c: four ways to make an all-reduce

typedef enum { RING, GATHER, TREE, HALVING, WAYS } Way;
extern const char *const way_name[WAYS];
size_t way_power_below(size_t N);                  // the largest power of two that is at most N

// What rank r of N sends of `count` elements, and its scratch memory in bytes.
typedef struct { size_t messages, bytes, scratch; } WayCosts;
WayCosts way_costs(Way way, size_t N, size_t r, size_t count);

// Picoseconds until the last rank is done, each with one port; over this run's link between nodes, or any other.
double way_time(Way way, size_t N, size_t count);
double way_time_on(const ClockLink *l, Way way, size_t N, size_t count);
// From how many times `unit` elements on the ring is no slower than another way. `unit` is divided by N, and by the
// number of chunks of the other way.
size_t way_ring_overtakes(Way way, size_t N, size_t unit);

// ---------------------------------------------------------------- bucket_costs.c: reducing in buckets

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
// The times are played: a recurrence over the buckets.
BucketCosts bucket_costs(const ModelConfig *c, size_t capacity, size_t ranks, const LastBatch *batch);
// Where all micro-batches begin with the step, and `sequences` are cut over the ranks.
BucketCosts overlap_costs(const ModelConfig *c, size_t capacity, size_t ranks, size_t sequences);
#endif
