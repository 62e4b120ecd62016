// parameter_server.c: see parameter_server.h.
#include "01_data_parallel/parameter_server.h"
#include "common/model/formulas.h"
#include "common/tensor/random.h"
#include <stdlib.h>

Cluster cluster_new(Comm *world, size_t servers) {
    REQUIRE(servers >= 1, "--servers 0: somebody must have the weights, so at least 1");
    REQUIRE(world->size > servers, "%zu server%s on %zu rank%s: nobody is left to work; start at least %zu ranks",
            servers, servers > 1 ? "s" : "", world->size, world->size > 1 ? "s" : "", servers + 1);
    comm_connect(world, COMM_EVERYBODY);
    return (Cluster){ world, servers, world->size - servers };
}

// ---------------------------------------------------------------- who holds what

static Range overlap(Range a, Range b) {
    Range r = { a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi };
    return r.lo < r.hi ? r : (Range){ a.lo, a.lo };
}

static void allocate_piece(Model *m, Range mine) {
    size_t first = 0;                              // of the unit, in the flat weights
    m->w = tensor_new(&m->parameters, 1, range_size(mine));
    m->g = tensor_new(&m->gradients, 1, range_size(mine));
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        Range here = overlap(mine, (Range){ first, first + u->size });
        u->own = range_size(here) ? (Range){ here.lo - first, here.hi - first } : (Range){ 0, 0 };
        u->own_w = tensor_flat_range(m->w, here.lo - mine.lo, here.hi - mine.lo);
        u->own_g = tensor_flat_range(m->g, here.lo - mine.lo, here.hi - mine.lo);
        unit_initialize(u, u->own_w, u->own, m->config.seed);
        first += u->size;
    }
}

Model *cluster_model(const Cluster *c, const ModelConfig *config) {
    Model *m = model_describe(config, model_layers(config));
    if (cluster_serves(c)) {
        model_measure(m);
        allocate_piece(m, shard_range(m->size, c->servers, c->world->rank));
    } else {
        model_allocate(m);
        tensor_randomize(m->w, random_key(config->seed, c->world->rank), 0.1);
    }
    return m;
}

// ---------------------------------------------------------------- a worker

double worker_gradient(Model *m, const Training *t, size_t workers, size_t w, size_t step) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *b = training_batches(t, &tokens, step, workers, w);
    b->number = step;                              // for pictures
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;      // 1 / counted tokens of all workers together
    model_fold_tied(m);
    free(b);
    arena_free(&tokens);
    return loss;
}

static Tensor piece_of(const Cluster *c, Tensor flat, size_t server) {
    Range r = shard_range(tensor_count(flat), c->servers, server);
    return tensor_flat_range(flat, r.lo, r.hi);
}

void worker_push(const Cluster *c, Model *m) {
    for (size_t s = 0; s < c->servers; s++) comm_send(c->world, piece_of(c, m->g, s), s);
}

void worker_pull(const Cluster *c, Model *m) {
    for (size_t s = 0; s < c->servers; s++) comm_recv(c->world, piece_of(c, m->w, s), s);
}

// ---------------------------------------------------------------- a server

Inbox inbox_new(const Cluster *c, const Model *m) {
    Inbox in = { arena(MEM_COMMUNICATION), (Tensor *)host_alloc(c->workers * sizeof(Tensor)),
                 (Request **)host_alloc(c->workers * sizeof(Request *)) };
    for (size_t w = 0; w < c->workers; w++) in.piece[w] = tensor_new(&in.buffers, 1, tensor_count(m->g));
    return in;
}

void inbox_free(Inbox *in) {
    arena_free(&in->buffers);
    free(in->piece);
    free(in->coming);
}

void server_expect(const Cluster *c, Inbox *in, size_t worker) {
    in->coming[worker] = comm_start_recv(c->world, in->piece[worker], c->servers + worker);
}

void server_take(Inbox *in, size_t worker) {
    comm_wait(in->coming[worker]);
    in->coming[worker] = NULL;
}

void server_answer(const Cluster *c, const Model *m, size_t worker) {
    comm_send(c->world, m->w, c->servers + worker);
}

void server_update_all(const Cluster *c, Model *m, Optimizer *o, Inbox *in) {
    for (size_t w = 0; w < c->workers; w++) server_take(in, w);
    // EXERCISE 01.05a (4 points): add the pushes, update once. Every worker's push has come: in->piece[w] is what
    // worker w found for my piece of the gradient, and carries 1 / (counted tokens of the whole batch) already. Make
    // m->g their sum, added in the order of the workers and starting from worker 0's (tensor_copy, op_add), so that the
    // bits are those of a rank-ordered all-reduce. Then update my piece of the weights, once (optimizer_step; nothing
    // is clipped, so its scale is 1).
    tensor_copy(m->g, in->piece[0]);
    for (size_t w = 1; w < c->workers; w++) op_add(m->g, m->g, in->piece[w]);
    optimizer_step(o, m, 1);
    // END
}

size_t server_next(const Cluster *c, const Inbox *in) {
    size_t next = 0;
    while (next < c->workers && !in->coming[next]) next++;
    if (next == c->workers) fault("every worker waits, and no push is on its way: may nobody begin a step?");
    // EXERCISE 01.05b (3 points): whose push is next. in->coming[w] is NULL for a worker from which no push is
    // expected; `next` is the first from which one is. Make it the one whose push arrives first, and of those that
    // arrive at the same moment the one with the lowest number. comm_arrival(in->coming[w]) says when a push arrives;
    // it really waits until it is there, so ask for every expected one: then the answer is the same on every machine.
    for (size_t w = next + 1; w < c->workers; w++)
        if (in->coming[w] && comm_arrival(in->coming[w]) < comm_arrival(in->coming[next])) next = w;
    // END
    return next;
}

bool server_lets_go(const Cluster *c, const size_t *done, size_t worker, size_t staleness) {
    bool may = true;
    // EXERCISE 01.05c (3 points): the bound on staleness. done[w] is how many pushes of worker w, of c->workers, are in
    // the weights. `worker` may begin its next step if it has done at most `staleness` steps more than the one that has
    // done fewest. Set `may`.
    for (size_t w = 0; w < c->workers; w++) may = may && done[worker] <= done[w] + staleness;
    // END
    return may;
}

// ---------------------------------------------------------------- beside the ring

double cluster_ring(const Cluster *c, size_t count) {
    Comm *ring = comm_split(c->world, cluster_serves(c), 0, "ring");
    Arena a = arena(MEM_WORKSPACE);
    Tensor g = tensor_new(&a, 1, count);
    tensor_fill(g, 0);
    if (!cluster_serves(c)) comm_all_reduce(ring, g);
    double sent = (double)comm_bytes_sent(ring);
    arena_free(&a);
    comm_free(ring);
    return sent;
}

void cluster_say_traffic(Run *run, const Cluster *c, size_t count, double step, double step_one_port) {
    size_t n = c->workers, k = c->servers, S = count * sizeof(real), piece = ceil_div(count, k) * sizeof(real);
    double ring = ring_bytes(ALL_REDUCE_PASSES, n, count, sizeof(real));
    say(run, "\nbytes out of one device in a step, and as many in (S = %zu, n = %zu, k = %zu)\n", S, n, k);
    say(run, "    a worker: S                      %9zu\n    a server: n S/k                  %9zu\n"
        "    a rank of a ring: 2 (n-1)/n S    %9.0f\n", S, n * piece, ring);
    say(run, "A synchronous step takes %.3f ms if every worker has a link of its own to every server, and\n"
        "%.3f ms if all messages of a server go through one port.\n\n", step * 1e-9, step_one_port * 1e-9);
}
