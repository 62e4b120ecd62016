// 05_costs.h: what a parameter server must cost, from sizes and speeds alone. It never looks at a log.
#ifndef SERVER_COSTS_H
#define SERVER_COSTS_H
#include "common/model/layer.h"
#include "judge/draw/picture.h"

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

// What a rank was seen to do and to hold: sent and calls of a whole training, bytes of memory at its end.
typedef struct {
    Timing timing;
    size_t sent, calls, parameters, gradients, optimizer, buffers;
} ServerSeen;
// The cost lines; and one all-reduce of the workers alone, to put its bytes beside. one_port: how long the synchronous
// training took with it.
void server_compare_costs(Run *run, const ServerSizes *z, const ServerSeen *is, Picoseconds one_port);
// What links carry in a step; and how long the synchronous training took, with a link for each worker, with one port.
void server_say_traffic(Run *run, const ServerSizes *z, Picoseconds took, Picoseconds one_port);
#endif
