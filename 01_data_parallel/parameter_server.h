// parameter_server.h: declares a cluster of ranks, and the steps of its servers and workers.
// Servers hold the weights, and workers compute gradients.
//
// Ranks 0 .. servers-1 are servers, the other ranks are workers. The flat weights have Psi
// elements, S bytes: every parameter, the tied table once. Server s has the elements
// shard_range(Psi, servers, s), the same piece of the gradient, and the only optimizer state for
// these elements. A worker has all weights, all gradients, and no optimizer state.
#ifndef PARAMETER_SERVER_H
#define PARAMETER_SERVER_H
#include "common/comm/clock.h"
#include "common/model/data.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"

// ---- parameter_server.c ----
typedef struct {
    Comm *world;
    size_t servers, workers, steps; // `steps` is the number of steps of each worker
} Cluster;
// Makes the first `servers` ranks servers. Calls usage_error() if `servers` is 0, or if no rank is
// left to be a worker.
Cluster cluster_new(Comm *world, size_t servers, size_t steps);
static inline bool cluster_serves(const Cluster *c) { return c->world->rank < c->servers; }
// Returns the number of this worker, from 0.
static inline size_t cluster_worker(const Cluster *c) { return c->world->rank - c->servers; }

// Makes the model of this rank. A server's m->w and m->g hold its piece only. Each unit owns the
// part of itself that is in the piece, so optimizer_step updates the piece only. A worker's model
// is whole. The weights of a worker are random until the first pull.
Model *cluster_model(const Cluster *c, const ModelConfig *config);
// Returns the piece of server number `server` in the flat weights or the flat gradient.
Tensor cluster_piece(const Cluster *c, Tensor flat, size_t server);

// A server's buffers for the pushes of the workers.
typedef struct {
    Arena buffers;
    Tensor *piece;    // [workers] the worker's gradient of this server's piece [Psi/servers]
    Request **coming; // [workers] the receive in flight, or NULL if no push is expected
} Inbox;
Inbox inbox_new(const Cluster *c, const Model *m);
void inbox_free(Inbox *in);

// ---- 05_parameter_server.c ----
// Leaves in m->g the part of the gradient that comes from worker w's shard of a batch of
// `sequences` sequences. Returns the shard's part of the batch's mean loss.
double worker_gradient(Model *m, const Data *d, size_t sequences, size_t workers, size_t w,
                       size_t step);
// Receives the newest weights from all servers. Call this function once before the first step,
// because worker_step() needs version 0 of the weights.
void worker_pull(const Cluster *c, Model *m);
// Computes this worker's gradient, pushes, and pulls. Returns the part of the loss that comes from
// this worker's sequences.
double worker_step(const Cluster *c, Model *m, const Data *d, size_t sequences, size_t step);

// Sends version 0 to every worker. Call this function before the first step.
void server_begin(const Cluster *c, const Model *m);
// Runs one synchronous step. Receives the gradients of all workers, updates once, and answers all.
void server_step(const Cluster *c, Model *m, Optimizer *o, Inbox *in);

// A push that an asynchronous server has served: the worker, the version of the weights at which
// the gradient was taken, and the time of arrival.
typedef struct {
    size_t worker, taken;
    Picoseconds arrival;
} Served;
// The records of an asynchronous server. done, taken and waits have an element per worker.
typedef struct {
    size_t version; // number of updates of the weights
    size_t *done;   // number of the worker's pushes that are in the weights
    size_t *taken;  // the version that the worker received last
    bool *waits;    // whether the worker waits for an answer
} Progress;
Progress progress_new(const Cluster *c, Inbox *in); // starts a receive from every worker
void progress_free(Progress *p);                    // in parameter_server.c
bool server_may_go_on(const Cluster *c, const size_t *done, size_t worker, size_t staleness);
// Serves the push that arrives next: updates once, and answers every worker that may go on.
Served server_next(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Progress *p,
                   size_t staleness);
#endif
