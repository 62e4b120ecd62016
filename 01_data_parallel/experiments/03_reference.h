// 03_reference.h: the tensors that 03_ring adds, and the ring's sum of them on one device.
#ifndef RING_REFERENCE_H
#define RING_REFERENCE_H
#include "judge/frame/lesson.h"

// The elements of one rank. Small whole ones have exact sums; others round, so their sum depends on the order.
void ring_fill(Tensor t, uint64_t seed, size_t rank, bool whole);

// Unsplit, on rank 0, uncounted: `count` elements added in the ring's order, put into s as `name`. Chunk k begins at
// rank k, and the next ranks add theirs.
void ring_unsplit(Run *run, Snapshot *s, const char *name, size_t count);
#endif
