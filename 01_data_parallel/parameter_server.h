// parameter_server.h: who holds what where weights live on servers, and a step of a worker and of a
// server.
//
// Ranks 0 .. servers-1 are servers, the others are workers. The flat weights (every parameter, the
// tied table once: Psi elements, S bytes) are cut like everything else: server s has elements
// shard_range(Psi, servers, s), the same piece of the gradient, and alone the optimizer's state of
// them. A worker has all weights, all gradients, and no optimizer.
#ifndef PARAMETER_SERVER_H
#define PARAMETER_SERVER_H
#include "common/comm/clock.h"
#include "common/model/data.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"

// ---- parameter_server.c ----
typedef struct { Comm *world; size_t servers, workers, steps; } Cluster;  // steps of each worker
// usage_error() where nobody is left to work
Cluster cluster_new(Comm *world, size_t servers, size_t steps);
static inline bool cluster_serves(const Cluster *c) { return c->world->rank < c->servers; }
// its number among them
static inline size_t cluster_worker(const Cluster *c) { return c->world->rank - c->servers; }

// A server's m->w and m->g are its piece, and its units own what of them lies in it: optimizer_step
// updates just that. A worker's model is whole, but its weights are noise until the first pull.
Model *cluster_model(const Cluster *c, const ModelConfig *config);
// of the weights or the gradient, the server's
Tensor cluster_piece(const Cluster *c, Tensor flat, size_t server);

// A server's: what comes from the workers, a piece of a gradient from each [Psi/k], and the
// receives under way.
typedef struct { Arena buffers; Tensor *piece; Request **coming; } Inbox;
Inbox inbox_new(const Cluster *c, const Model *m);
void inbox_free(Inbox *in);

// ---- 05_parameter_server.c ----
// m->g <- the part of the gradient that comes from worker w's part of `sequences` sequences;
// returns their part of the loss.
double worker_gradient(Model *m, const Data *d, size_t sequences, size_t workers, size_t w,
                       size_t step);
void worker_pull(const Cluster *c, Model *m);              // before the first step: version 0
// Gradient, push and pull. Returns my sequences' part of the loss.
double worker_step(const Cluster *c, Model *m, const Data *d, size_t sequences, size_t step);

// before the first step: version 0 to every worker
void server_begin(const Cluster *c, const Model *m);
// synchronous: all workers' step
void server_step(const Cluster *c, Model *m, Optimizer *o, Inbox *in);

// Asynchronous. A push: of which worker, the version of the weights that its gradient was taken at,
// and when it arrived.
typedef struct { size_t worker, taken; Picoseconds arrival; } Served;
// Of every worker: how many of its pushes are in the weights, the version that it was sent last,
// and whether it waits for an answer.
typedef struct { size_t version, *done, *taken; bool *waits; } Progress;
Progress progress_new(const Cluster *c, Inbox *in);        // expects a push from every worker
void progress_free(Progress *p);
bool server_may_go_on(const Cluster *c, const size_t *done, size_t worker, size_t staleness);
// one push
Served server_next(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Progress *p,
                   size_t staleness);
#endif
