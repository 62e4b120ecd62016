// parameter_server.h: weights live on servers, each with a piece of them; workers pull them and push gradients.
//
// Ranks 0 .. servers-1 are servers, the others are workers. The flat weights (every parameter, the tied table once: Psi
// elements, S bytes) are cut like everything else: server s has elements shard_range(Psi, servers, s), the same piece
// of the gradient, and alone the optimizer's state of them. A worker has all weights, all gradients, and no optimizer.
#ifndef PARAMETER_SERVER_H
#define PARAMETER_SERVER_H
#include "common/lesson/training.h"

typedef struct { Comm *world; size_t servers, workers; } Cluster;
Cluster cluster_new(Comm *world, size_t servers);  // usage_error() where nobody is left to work
static inline bool cluster_serves(const Cluster *c) { return c->world->rank < c->servers; }
static inline size_t cluster_worker(const Cluster *c) { return c->world->rank - c->servers; }  // my number among them

// A server's m->w and m->g are its piece, and its units own what of them lies in it: optimizer_step updates just that.
// A worker's model is whole, but its weights are nobody's until the first pull.
Model *cluster_model(const Cluster *c, const ModelConfig *config);

// ---- a worker ----
// m->g <- the part of the gradient that comes from worker w's sequences of this step; returns their part of the loss.
double worker_gradient(Model *m, const Training *t, size_t workers, size_t w, size_t step);
void worker_push(const Cluster *c, Model *m);      // m->g, a piece to every server, S bytes; does not wait
void worker_pull(const Cluster *c, Model *m);      // m->w, a piece from every server: waits for all of them

// ---- a server ----
// What comes from the workers: a piece of a gradient from each.
typedef struct { Arena buffers; Tensor *piece; Request **coming; } Inbox;
Inbox inbox_new(const Cluster *c, const Model *m);
void inbox_free(Inbox *in);
void server_expect(const Cluster *c, Inbox *in, size_t worker);        // from now on its push may come
void server_take(Inbox *in, size_t worker);        // waits for it; its gradient is in in->piece[worker] afterwards
void server_answer(const Cluster *c, const Model *m, size_t worker);   // my piece of the weights, as they are now

// The synchronous server's update: one for the pushes of all workers.
void server_update_all(const Cluster *c, Model *m, Optimizer *o, Inbox *in);
// The asynchronous server's two decisions. Whose push is next, of those that are expected; and may a worker that has
// done so many steps begin another one, if none may be more than `staleness` steps ahead of the slowest?
size_t server_next(const Cluster *c, const Inbox *in);
bool server_lets_go(const Cluster *c, const size_t *done, size_t worker, size_t staleness);

// ---- beside the ring ----
double cluster_ring(const Cluster *c, size_t count);           // one all-reduce of the workers alone: bytes I sent
// What links carry in a step; and how long a synchronous one took, in ps, with a link for each worker, with one port.
void cluster_say_traffic(Run *run, const Cluster *c, size_t count, double step, double step_one_port);
#endif
