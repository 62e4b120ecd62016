// 03_times.h: how long the four ways of 03_ring take by size, and from where on the ring is the fastest.
#ifndef RING_TIMES_H
#define RING_TIMES_H
#include "01_data_parallel/experiments/03_costs.h"

typedef void AllReduce(Comm *c, Tensor t);             // t <- the sum over the ranks of c
// Cost lines: the time of each way, and where the ring overtakes the others. One port per rank, every message over the
// link between nodes. curves: the chart of time over size, as a picture.
void way_times(Run *run, AllReduce *const all_reduce[WAYS], bool curves);
#endif
