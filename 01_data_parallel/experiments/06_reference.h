// 06_reference.h: the rules of compression.h on ONE device that has the gradients of all N shards. No message,
// no packed bits: numbers are rounded, dropped or projected where they lie, and added in shard order. What N ranks get
// must be this, bit for bit.
#ifndef COMPRESSION_REFERENCE_H
#define COMPRESSION_REFERENCE_H
#include "01_data_parallel/compression.h"
#include "judge/frame/training.h"

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

// On rank 0, uncounted; the other ranks' course is empty.
Trajectory one_device_course(Run *run, const Training *t, const CompressionPlan *plan, size_t shards);
#endif
