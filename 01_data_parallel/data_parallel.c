// data_parallel.c: see data_parallel.h.
#include "01_data_parallel/data_parallel.h"

void data_parallel_broadcast(Comm *dp, Model *m) {
    // EXERCISE 01.02b (2 points): all begin alike. Give every rank of dp the weights of rank 0. m->w holds all weights
    // of the model, one after the other, and common/comm/comm.h lists what ranks can say to each other. One call, in
    // which only rank 0 sends.
    comm_broadcast(dp, m->w, 0);
    // END
}

void data_parallel_all_reduce(Comm *dp, Model *m) { comm_all_reduce(dp, m->g); }
