// parameter_server.c: chooses the servers, and makes each rank's model and the servers' buffers.
// 05_parameter_server.c has the steps of workers and servers.
#include "01_data_parallel/parameter_server.h"
#include "common/tensor/random.h"
#include <stdlib.h>

Cluster cluster_new(Comm *world, size_t servers, size_t steps) {
    REQUIRE(servers >= 1, "--servers 0: a server must hold the weights; choose at least 1");
    REQUIRE(world->size > servers,
            "%zu server%s on %zu rank%s: no rank is left to be a worker; start at least %zu ranks",
            servers, servers > 1 ? "s" : "", world->size, world->size > 1 ? "s" : "", servers + 1);
    comm_connect(world, COMM_EVERYBODY);
    return (Cluster){ world, servers, world->size - servers, steps };
}

// ---------------------------------------------------------------- the pieces

static Range overlap(Range a, Range b) {
    Range r = { a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi };
    return r.lo < r.hi ? r : (Range){ a.lo, a.lo };
}

static void allocate_piece(Model *m, Range piece) {
    size_t first = 0; // place of the unit in the flat weights
    const Element e = m->config.storage, of_gradient = config_gradient_element(&m->config);
    m->w = tensor_shaped(&m->parameters, tensor_shape(1, range_size(piece), e));
    m->g = tensor_shaped(&m->gradients, tensor_shape(1, range_size(piece), of_gradient));
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        Range here = overlap(piece, (Range){ first, first + u->size });
        u->own = range_size(here) ? (Range){ here.lo - first, here.hi - first } : (Range){ 0, 0 };
        u->own_w = tensor_flat_range(m->w, here.lo - piece.lo, here.hi - piece.lo);
        u->own_g = tensor_flat_range(m->g, here.lo - piece.lo, here.hi - piece.lo);
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

Tensor cluster_piece(const Cluster *c, Tensor flat, size_t server) {
    Range r = shard_range(tensor_count(flat), c->servers, server);
    return tensor_flat_range(flat, r.lo, r.hi);
}

Inbox inbox_new(const Cluster *c, const Model *m) {
    Inbox in = { arena(MEM_COMMUNICATION), (Tensor *)host_alloc(c->workers * sizeof(Tensor)),
                 (Request **)host_alloc(c->workers * sizeof(Request *)) };
    for (size_t w = 0; w < c->workers; w++) in.piece[w] = tensor_like(&in.buffers, m->g);
    return in;
}

void progress_free(Progress *p) {
    free(p->done);
    free(p->taken);
    free(p->waits);
}

void inbox_free(Inbox *in) {
    arena_free(&in->buffers);
    free(in->piece);
    free(in->coming);
}
