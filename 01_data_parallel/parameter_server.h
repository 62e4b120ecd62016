// parameter_server.h: who holds what where weights live on servers.
//
// Ranks 0 .. servers-1 are servers, the others are workers. The flat weights (every parameter, the tied table once: Psi
// elements, S bytes) are cut like everything else: server s has elements shard_range(Psi, servers, s), the same piece
// of the gradient, and alone the optimizer's state of them. A worker has all weights, all gradients, and no optimizer.
#ifndef PARAMETER_SERVER_H
#define PARAMETER_SERVER_H
#include "judge/frame/training.h"

typedef struct { Comm *world; size_t servers, workers, steps; } Cluster;       // steps of each worker
Cluster cluster_new(Comm *world, size_t servers, size_t steps);        // usage_error() where nobody is left to work
static inline bool cluster_serves(const Cluster *c) { return c->world->rank < c->servers; }
static inline size_t cluster_worker(const Cluster *c) { return c->world->rank - c->servers; }  // my number among them

// A server's m->w and m->g are its piece, and its units own what of them lies in it: optimizer_step updates just that.
// A worker's model is whole, but its weights are nobody's until the first pull.
Model *cluster_model(const Cluster *c, const ModelConfig *config);
Tensor cluster_piece(const Cluster *c, Tensor flat, size_t server);    // of the weights or the gradient, the server's

// A server's: what comes from the workers, a piece of a gradient from each [Psi/k], and the receives under way.
typedef struct { Arena buffers; Tensor *piece; Request **coming; } Inbox;
Inbox inbox_new(const Cluster *c, const Model *m);
void inbox_free(Inbox *in);

// In 05_parameter_server.c; its reference takes the same gradients.
double worker_gradient(Model *m, const Training *t, size_t workers, size_t w, size_t step);
#endif
