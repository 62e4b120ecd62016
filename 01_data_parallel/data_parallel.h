// data_parallel.h: what chapter 01 teaches, for later chapters: every rank has the whole model and a part of the batch.
#ifndef DATA_PARALLEL_H
#define DATA_PARALLEL_H
#include "common/model/model.h"

// Once, before the first step: everybody gets rank 0's weights. S bytes leave rank 0.
void data_parallel_broadcast(Comm *dp, Model *m);
// Once a step, after the last backward: g <- sum over replicas, 2(N-1)/N of the gradient's bytes sent per rank. Each
// replica's gradient already carries 1 / (counted tokens of the WHOLE batch), so the sum is the mean over tokens:
// nothing is divided.
void data_parallel_all_reduce(Comm *dp, Model *m);
#endif
