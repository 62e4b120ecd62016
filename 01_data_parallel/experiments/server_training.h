// server_training.h: trainings with a parameter server, what they cost, and predictions of that.
#ifndef SERVER_TRAINING_H
#define SERVER_TRAINING_H
#include "01_data_parallel/experiments/server_log.h"
#include "judge/draw/picture.h"

// ---- server_training.c ----
// sent, calls: of a whole training. The others: bytes of memory at its end.
typedef struct {
    Timing timing;
    size_t sent, calls, parameters, gradients, optimizer, buffers;
} ServerSeen;
typedef struct {
    ServerLog log;                             // server 0's, on all ranks; no lines: synchronous
    bool one_port;                             // all messages of a server go through one link
    Snapshot *last;                            // the weights at the end
    ServerSeen seen;
} ServerRecord;
// Trains synchronously if record->log has no lines, else asynchronously, and fills in the record. A
// step of the result is a step of all workers, or one push of the log.
Trajectory server_train(Run *run, const Cluster *c, const Training *t, ServerRecord *record);
void server_record_free(ServerRecord *record);

// ---- server_costs.c: from sizes and speeds alone ----
// The first worker takes `slow` times as long as the others. steps: of each worker.
typedef struct {
    const ModelConfig *model;
    size_t sequences, steps, servers, workers, slow;
} ServerSizes;
// Picoseconds of a forward and backward of worker w's sequences, and of a message with the piece of
// server 0, the largest one.
double server_computing(const ServerSizes *z, size_t w);
double server_message(const ServerSizes *z);
// Compares the costs of a synchronous training with formulas. one_port: the time of the same
// training with one port per server.
void server_costs(Run *run, const ServerSizes *z, const ServerSeen *seen, Picoseconds one_port);
#endif
