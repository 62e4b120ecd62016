// data_parallel.c: see data_parallel.h.
#include "01_data_parallel/data_parallel.h"

void data_parallel_broadcast(Comm *dp, Model *m) { comm_broadcast(dp, m->w, 0); }

void data_parallel_all_reduce(Comm *dp, Model *m) { comm_all_reduce(dp, m->g); }
