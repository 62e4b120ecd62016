// measured.c: the costs of a training, as the ledger of the Comm and the memory have them
// (experiments.h).
#include "01_data_parallel/experiments/experiments.h"

Measured measured_now(const Comm *c) {
    Measured m = { .reductions = (double)c->ledger[COMM_ALL_REDUCE].calls,
                   .reduced = (double)c->ledger[COMM_ALL_REDUCE].bytes,
                   .broadcasts = (double)c->ledger[COMM_BROADCAST].calls,
                   .broadcast = (double)c->ledger[COMM_BROADCAST].bytes,
                   .sent = (double)comm_bytes_sent(c),
                   .parameters = (double)memory_now(MEM_PARAMETERS),
                   .gradients = (double)memory_now(MEM_GRADIENTS),
                   .optimizer = (double)memory_now(MEM_OPTIMIZER),
                   .buffers = (double)memory_now(MEM_COMMUNICATION),
                   .buffers_peak = (double)memory_peak(MEM_COMMUNICATION),
                   .activations_peak = (double)memory_peak(MEM_ACTIVATIONS) };
    for (size_t k = 0; k < COMM_KINDS; k++) m.calls += (double)c->ledger[k].calls;
    return m;
}
