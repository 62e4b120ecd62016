// ranks: 4
// level: extra
// question: If servers hold the weights: what do their links carry, and what if no worker waits for the slowest?
// vary: SEQUENCES 5..11, STEPS 4..7, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  each of k servers Psi/k weights, their gradient and AdamW's state, and a buffer of Psi/k
//         for each of n workers; a worker all weights and gradients and no optimizer state, and B/n
//         of the sequences.
// Sends:  per step a worker pushes its gradient and pulls the weights, Psi elements (S bytes) each
//         way, Psi/k from and to every server. A server receives and sends n S/k bytes per step.
// Saves:  2 Psi elements of optimizer state per worker. Asynchronous: no worker waits for the
//         slowest.
// Costs:  all bytes pass through the servers' links. Asynchronous: a gradient is up to (n-1)(2s+1)
//         versions old.
// Synchronous, a server adds all pushes in the workers' order: the bits of an all-reduce.
// An asynchronous server updates after every push. It answers at once unless the worker is more than
// s steps ahead of the slowest (stale synchronous parallel, Ho et al. 2013). Li et al. 2014, section
// 3. Left out: workers and servers that get lost.
#include "01_data_parallel/parameter_server.h"
#include <stdlib.h>

// ---------------------------------------------------------------- a worker

double worker_gradient(Model *m, const Data *d, size_t sequences, size_t workers, size_t w,
                       size_t step) {
    Arena tokens = arena(MEM_WORKSPACE);
    Range shard = shard_range(sequences, workers, w);
    Batch b = data_batch(d, &tokens, step, shard.lo, range_size(shard), sequences);
    b.number = step;                               // for pictures
    model_zero_gradients(m);
    // 1 / counted tokens of all workers together
    double loss = model_forward_backward(m, &b) * b.token_weight;
    model_fold_tied(m);
    arena_free(&tokens);
    return loss;
}

// The gradient [Psi]: to each server its piece, S bytes in all. Does not wait.
static void push(const Cluster *c, Model *m) {
    // [Psi/k], S/k bytes
    for (size_t s = 0; s < c->servers; s++) comm_send(c->world, cluster_piece(c, m->g, s), s);
}
// The weights [Psi], a piece from every server, S bytes in all. Waits for all of them.
void worker_pull(const Cluster *c, Model *m) {
    // [Psi/k], S/k bytes
    for (size_t s = 0; s < c->servers; s++) comm_recv(c->world, cluster_piece(c, m->w, s), s);
}

double worker_step(const Cluster *c, Model *m, const Data *d, size_t sequences, size_t step) {
    double loss = worker_gradient(m, d, sequences, c->workers, cluster_worker(c), step);
    push(c, m);
    worker_pull(c, m);
    return loss;
}

// ---------------------------------------------------------------- a server

// From now on the push of this worker may come: its gradient of my piece [Psi/k], S/k bytes.
static void expect(const Cluster *c, Inbox *in, size_t worker) {
    in->coming[worker] = comm_start_recv(c->world, in->piece[worker], c->servers + worker);
}
// Waits for that push. The gradient is in in->piece[worker] afterwards.
static void take(Inbox *in, size_t worker) {
    comm_wait(in->coming[worker]);
    in->coming[worker] = NULL;
}
// My piece of the weights as they are now [Psi/k], S/k bytes.
static void answer(const Cluster *c, const Model *m, size_t worker) {
    comm_send(c->world, m->w, c->servers + worker);
}

void server_begin(const Cluster *c, const Model *m) {
    for (size_t w = 0; w < c->workers; w++) answer(c, m, w);
}

// All pushes of a step are in: one update.
static void update_all(const Cluster *c, Model *m, Optimizer *o, Inbox *in) {
    // EXERCISE 01.05a (4 points): add the pushes, update once. Every worker's push has come:
    // in->piece[w] is what worker w found for my piece of the gradient, and carries 1 / (counted
    // tokens of the whole batch) already. Make m->g their sum, added in the order of the workers
    // and starting from worker 0's (tensor_copy, op_add), so that the bits are those of a
    // rank-ordered all-reduce. Then update my piece of the weights, once (optimizer_step; nothing
    // is clipped, so its scale is 1).
    tensor_copy(m->g, in->piece[0]);
    for (size_t w = 1; w < c->workers; w++) op_add(m->g, m->g, in->piece[w]);
    optimizer_step(o, m, 1);
    // END
}

void server_step(const Cluster *c, Model *m, Optimizer *o, Inbox *in) {
    for (size_t w = 0; w < c->workers; w++) expect(c, in, w);
    for (size_t w = 0; w < c->workers; w++) take(in, w);               // waits for the slowest
    update_all(c, m, o, in);
    for (size_t w = 0; w < c->workers; w++) answer(c, m, w);           // n S/k bytes
}

// ---------------------------------------------------------------- an asynchronous server

Progress progress_new(const Cluster *c, Inbox *in) {
    for (size_t w = 0; w < c->workers; w++) expect(c, in, w);
    return (Progress){ 0, host_alloc(c->workers * sizeof(size_t)),
                       host_alloc(c->workers * sizeof(size_t)),
                       host_alloc(c->workers * sizeof(bool)) };
}
void progress_free(Progress *p) {
    free(p->done);
    free(p->taken);
    free(p->waits);
}

// Whose push is next, of those that are expected.
static size_t next_push(const Cluster *c, const Inbox *in) {
    size_t next = 0;
    while (next < c->workers && !in->coming[next]) next++;
    if (next == c->workers)
        fault("every worker waits, and no push is on its way: may nobody begin a step?");
    // EXERCISE 01.05b (3 points): whose push is next. in->coming[w] is NULL for a worker from which
    // no push is expected; `next` is the first from which one is. Make it the one whose push
    // arrives first, and of those that arrive at the same moment the one with the lowest number.
    // comm_arrival(in->coming[w]) says when a push arrives; it really waits until it is there, so
    // ask for every expected one: then the answer is the same on every machine.
    for (size_t w = next + 1; w < c->workers; w++)
        if (in->coming[w] && comm_arrival(in->coming[w]) < comm_arrival(in->coming[next])) next = w;
    // END
    return next;
}

// May a worker that has done so many steps begin another one, if none may be more than `staleness`
// steps ahead of the slowest?
bool server_may_go_on(const Cluster *c, const size_t *done, size_t worker, size_t staleness) {
    bool may = true;
    // EXERCISE 01.05c (3 points): the bound on staleness. done[w] is how many pushes of worker w,
    // of c->workers, are in the weights. `worker` may begin its next step if it has done at most
    // `staleness` steps more than the one that has done fewest. Set `may`.
    for (size_t w = 0; w < c->workers; w++) may = may && done[worker] <= done[w] + staleness;
    // END
    return may;
}

Served server_next(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Progress *p,
                   size_t staleness) {
    size_t next = next_push(c, in);
    Served served = { next, p->taken[next], comm_arrival(in->coming[next]) };
    take(in, next);
    tensor_copy(m->g, in->piece[next]);                                // one worker's gradient,
    optimizer_step(o, m, 1);                                           // one update
    p->version++;
    p->done[next]++;
    p->waits[next] = true;
    // This push may have been the one for which others waited.
    for (size_t w = 0; w < c->workers; w++) {
        if (!p->waits[w] || !server_may_go_on(c, p->done, w, staleness)) continue;
        answer(c, m, w);  // S/k bytes, to this worker alone
        p->waits[w] = false;
        p->taken[w] = p->version;
        if (p->done[w] < c->steps) expect(c, in, w);
    }
    return served;
}
