// cores.h declares functions that count the cores and GPUs of the ranks, and the ranks that share
// cores or a GPU.
#ifndef CORES_H
#define CORES_H
#include "common/comm/comm.h"

// Returns the cores that a rank may use, divided by the number of ranks that share these cores, and
// rounded down. The result is the minimum over all ranks, but at least 1. Collective.
size_t cores_per_rank(void);
// Returns the number of ranks that compute at the same time. With GPUs the result is the number of
// GPUs. For processes the result is the number of ranks, or cores / threads per rank if that is
// less (3 cores and 2 threads: 1.5). For virtual ranks the result is at most 1. Collective. Ranks
// other than 0 get 0.
double ranks_at_once(void);
#endif
