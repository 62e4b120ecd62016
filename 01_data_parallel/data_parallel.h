// data_parallel.h: what chapter 01 teaches, for later chapters: every rank has the whole model and a part of the batch.
#ifndef DATA_PARALLEL_H
#define DATA_PARALLEL_H
#include "common/model.h"

// 02_all_reduce.c. Once, before the first step: every rank gets rank 0's weights. Psi e bytes leave rank 0.
void data_parallel_broadcast(Comm *dp, Model *m);
// 02_all_reduce.c. Once per step, after the last backward: g <- the sum over replicas of g; each rank sends 2(N-1)/N of
// the gradient's bytes. Each replica's gradient already carries 1 / (counted tokens of the whole batch), so the sum is
// the gradient of the mean over tokens: nothing is divided.
void data_parallel_all_reduce(Comm *dp, Model *m);
#endif
