// compression_reference.h: the rules of compression.h on ONE device that has the gradients of all N shards. No message,
// no packed bits: numbers are rounded, dropped or projected where they lie, and added in shard order. What N ranks get
// must be this, bit for bit.
#ifndef COMPRESSION_REFERENCE_H
#define COMPRESSION_REFERENCE_H
#include "01_data_parallel/compression.h"
#include "common/lesson/training.h"

// On rank 0, uncounted; the other ranks' course is empty.
Trajectory one_device_course(Run *run, const Training *t, const CompressionPlan *plan, size_t shards);
#endif
