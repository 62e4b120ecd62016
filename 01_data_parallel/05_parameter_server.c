// ranks: 4
// level: extra
// question: If servers hold the weights, how many bytes pass their links, and what changes if no worker waits for the slowest?
// vary: SEQUENCES 5..11, STEPS 4..7, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  each of k servers has Psi/k weights, their gradient and optimizer state, and a buffer of
//         Psi/k elements for each of n workers. Each worker has all weights and gradients, B/n of
//         the sequences, and no optimizer state.
// Sends:  in each step a worker pushes its gradient and pulls the weights. Both have Psi elements
//         (S bytes), Psi/k for each server. A server receives n S/k bytes per step, and sends as
//         many.
// Saves:  a worker needs no optimizer state (AdamW: 2 Psi elements). In asynchronous training only
//         a worker that is more than s steps ahead waits for the slowest worker. --staleness sets
//         s.
// Costs:  all bytes pass through the servers' links. In asynchronous training a gradient is up to
//         (n-1)(2s+1) versions old.
// A synchronous server adds all pushes in the workers' order, which gives the bits of an all-reduce
// in rank order. An asynchronous server updates after every push, in the order in which the pushes
// arrive on the simulated clock. The server answers at once. Only the answer to a worker that is
// more than s steps ahead of the slowest waits (stale synchronous parallel, Ho et al. 2013). Li et
// al. 2014, section 3. Left out: workers and servers that fail.
#include "01_data_parallel/parameter_server.h"

// ---------------------------------------------------------------- a worker

double worker_gradient(Model *m, const Data *d, size_t sequences, size_t workers, size_t w,
                       size_t step) {
    Arena tokens = arena(MEM_WORKSPACE);
    Range shard = shard_range(sequences, workers, w);
    Batch b = data_batch(d, &tokens, step, shard.lo, range_size(shard), sequences);
    b.number = step; // the picture prints this number
    model_zero_gradients(m);
    // b.token_weight is 1 / counted tokens of all workers together.
    double loss = model_forward_backward(m, &b) * b.token_weight;
    model_fold_tied(m);
    arena_free(&tokens);
    return loss;
}

// Sends server s piece s of the gradient [Psi/k], S bytes in all. On the simulated clock the sends
// to several servers overlap, because each pair of ranks has its own link. A push does not wait for
// other workers or for an update.
static void push(const Cluster *c, Model *m) {
    for (size_t s = 0; s < c->servers; s++) comm_send(c->world, cluster_piece(c, m->g, s), s);
}
// Receives from server s piece s of the weights [Psi/k], S bytes in all. Waits for all pieces.
void worker_pull(const Cluster *c, Model *m) {
    for (size_t s = 0; s < c->servers; s++) comm_recv(c->world, cluster_piece(c, m->w, s), s);
}

double worker_step(const Cluster *c, Model *m, const Data *d, size_t sequences, size_t step) {
    double loss = worker_gradient(m, d, sequences, c->workers, cluster_worker(c), step);
    push(c, m);
    worker_pull(c, m);
    return loss;
}

// ---------------------------------------------------------------- a server

// Starts to receive the push of this worker: its gradient of this server's piece [Psi/k], S/k
// bytes.
static void expect(const Cluster *c, Inbox *in, size_t worker) {
    in->coming[worker] = comm_start_recv(c->world, in->piece[worker], c->servers + worker);
}
// Waits for the push of this worker. Afterwards in->piece[worker] has the gradient.
static void take(Inbox *in, size_t worker) {
    comm_wait(in->coming[worker]);
    in->coming[worker] = NULL;
}
// Sends the worker this server's piece of the newest weights [Psi/k], S/k bytes.
static void answer(const Cluster *c, const Model *m, size_t worker) {
    comm_send(c->world, m->w, c->servers + worker);
}

void server_begin(const Cluster *c, const Model *m) {
    for (size_t w = 0; w < c->workers; w++) answer(c, m, w);
}

// Makes one update from the pushes of all workers in a step. All pushes have arrived.
static void update_all(const Cluster *c, Model *m, Optimizer *o, Inbox *in) {
    // EXERCISE 01.05a (4 points): add the pushes, update once. Every worker's push has arrived.
    // in->piece[w] is worker w's gradient of this server's piece, and already carries 1 / (counted
    // tokens of the whole batch). Make m->g the sum: begin with worker 0's and add in the order of
    // the workers (tensor_copy, op_add). Then the bits are those of a rank-ordered all-reduce. Then
    // update the weights once (optimizer_step, with scale 1, because nothing is clipped).
    tensor_copy(m->g, in->piece[0]);
    for (size_t w = 1; w < c->workers; w++) op_add(m->g, m->g, in->piece[w]);
    optimizer_step(o, m, 1);
    // END
}

void server_step(const Cluster *c, Model *m, Optimizer *o, Inbox *in) {
    for (size_t w = 0; w < c->workers; w++) expect(c, in, w);
    for (size_t w = 0; w < c->workers; w++) take(in, w); // waits for the slowest worker
    update_all(c, m, o, in);
    for (size_t w = 0; w < c->workers; w++) answer(c, m, w); // n S/k bytes
}

// ---------------------------------------------------------------- an asynchronous server

Progress progress_new(const Cluster *c, Inbox *in) {
    for (size_t w = 0; w < c->workers; w++) expect(c, in, w);
    return (Progress){ 0, host_alloc(c->workers * sizeof(size_t)),
                       host_alloc(c->workers * sizeof(size_t)),
                       host_alloc(c->workers * sizeof(bool)) };
}

// Returns the worker whose push is served next.
static size_t next_push(const Cluster *c, const Inbox *in) {
    size_t next = 0;
    while (next < c->workers && !in->coming[next]) next++;
    if (next == c->workers)
        fault("every worker waits and no push is in flight: server_may_go_on() allows no worker to "
              "begin a step");
    // EXERCISE 01.05b (3 points): choose the next push. in->coming[w] is NULL for a worker from
    // which no push is expected. `next` is the first worker from which a push is expected. Make
    // `next` the worker whose push arrives first. Of pushes that arrive at the same time, the
    // lowest number is first. comm_arrival(in->coming[w]) gives the time of an arrival. The
    // function waits until the push is there, but this rank's clock does not move. So ask for every
    // expected push. Then the order is the same on every machine.
    for (size_t w = next + 1; w < c->workers; w++)
        if (in->coming[w] && comm_arrival(in->coming[w]) < comm_arrival(in->coming[next])) next = w;
    // END
    return next;
}

// Returns whether this worker may begin another step. The worker may have done at most `staleness`
// steps more than the slowest worker. Worker w has done done[w] steps.
bool server_may_go_on(const Cluster *c, const size_t *done, size_t worker, size_t staleness) {
    bool may = true;
    // EXERCISE 01.05c (3 points): the bound on staleness. done[w] pushes of worker w are in the
    // weights, for each of c->workers workers. `worker` may begin its next step if it has done at
    // most `staleness` steps more than the worker that has done fewest. Set `may`.
    for (size_t w = 0; w < c->workers; w++) may = may && done[worker] <= done[w] + staleness;
    // END
    return may;
}

Served server_next(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Progress *p,
                   size_t staleness) {
    size_t next = next_push(c, in);
    Served served = { next, p->taken[next], comm_arrival(in->coming[next]) };
    take(in, next);
    tensor_copy(m->g, in->piece[next]); // the gradient of one worker
    optimizer_step(o, m, 1);            // one update per push
    p->version++;
    p->done[next]++;
    p->waits[next] = true;
    // Other workers may have waited for this push. Answer every worker that may go on now.
    for (size_t w = 0; w < c->workers; w++) {
        if (!p->waits[w] || !server_may_go_on(c, p->done, w, staleness)) continue;
        answer(c, m, w); // S/k bytes, to this worker alone
        p->waits[w] = false;
        p->taken[w] = p->version;
        if (p->done[w] < c->steps) expect(c, in, w);
    }
    return served;
}
