// stage_buckets.h declares functions that overlap the all-reduces over dp with the backward of a
// pipeline's stage. A bucket is a part of the gradient that has an all-reduce of its own.
#ifndef STAGE_BUCKETS_H
#define STAGE_BUCKETS_H
#include "01_data_parallel/data_parallel.h"

// Cuts the gradient into buckets and wraps the layers, like buckets_new(), for a stage of a
// pipeline. Only the backward of the last of the step's `micro_batches` micro-batches reduces.
Buckets *buckets_new_pipeline(Model *m, Comm *dp, size_t capacity, size_t micro_batches);
// Starts the all-reduce over dp of the tied table's gradient, on a stage that shares the table with
// another stage. Call this function when the model's g has the sum of both stages' gradients. Does
// nothing on other stages.
void buckets_start_tied(Buckets *b);
void buckets_wait_tied(Buckets *b);
#endif
