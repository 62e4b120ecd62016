// server_costs.h: what a parameter server must cost in time, from sizes and speeds alone. It never looks at a log or at
// parameter_server.c.
#ifndef SERVER_COSTS_H
#define SERVER_COSTS_H
#include "common/model/layer.h"

typedef struct {
    ModelConfig model;
    size_t servers, workers, sequences, steps;     // sequences of a step, of all workers together
    size_t slow;                                   // the first worker takes so many times as long as the others
} ServerSizes;
// In picoseconds. Forward and backward of worker w's sequences of a step; a message to or from the server with the
// largest piece.
double server_computing(const ServerSizes *z, size_t w);
double server_message(const ServerSizes *z);
// All steps of the synchronous training, from the first worker's start to the end of the last pull. one_port: answers
// leave a server one after the other, and pushes come in one after the other, in the workers' order. Where each worker
// has a link of its own, it is the slowest worker and two messages, every step.
double server_all_steps(const ServerSizes *z, bool one_port);
#endif
