// layout_traffic.c predicts, from sizes, the bytes that a rank sends in a step of a layout, inside
// its node and to other nodes. The file also reads the measured bytes from the ledgers.
#include "08_3d/experiments/experiments.h"

// ---------------------------------------------------------------- predicted

typedef struct {
    Degrees n;
    Coordinates at;
    size_t node;
    LayoutOrder *order;
} Place;

static size_t node_of(const Place *p, Coordinates c) {
    size_t rank = mesh_rank(p->n, c);
    return p->node ? (p->order ? p->order(p->n, rank) : rank) / p->node : 0;
}
// Returns whether all ranks that differ from rank p->at only along these axes share the node of
// p->at.
static bool one_node(const Place *p, unsigned axes) {
    bool one = true;
    for (size_t r = 0; r < p->n.dp * p->n.tp * p->n.pp; r++) {
        Coordinates c = mesh_coordinates(p->n, r);
        bool member = (axes & MESH_DP || c.dp == p->at.dp) &&
                      (axes & MESH_TP || c.tp == p->at.tp) && (axes & MESH_PP || c.pp == p->at.pp);
        one &= !member || node_of(p, c) == node_of(p, p->at);
    }
    return one;
}
static void add(LayoutTraffic *t, bool inside, double bytes) {
    *(inside ? &t->inside : &t->between) += bytes;
}

LayoutTraffic layout_traffic(const TrainerConfig *c, const Prediction *p, size_t rank, size_t node,
                             LayoutOrder *order) {
    Place at = {
        .n = c->mesh, .at = mesh_coordinates(c->mesh, rank), .node = node, .order = order
    };
    LayoutTraffic t = { 0 };
    size_t world = at.n.dp * at.n.tp * at.n.pp;
    // The loss is one double. In a ring over the world a rank sends this double in each of its 2
    // (world - 1) messages.
    double loss = (double)(2 * (world - 1) * sizeof(double));
    add(&t, one_node(&at, MESH_TP), (double)p->tp_bytes);
    add(&t, one_node(&at, MESH_DP), (double)p->dp_bytes);
    add(&t, one_node(&at, MESH_ALL), loss);
    add(&t, one_node(&at, MESH_TP | MESH_PP), (double)p->scalar_bytes - loss);
    // A rank sends activations to the next stage, and as many bytes of gradients to the previous
    // stage.
    size_t neighbours = (at.at.pp > 0) + (at.at.pp + 1 < at.n.pp);
    for (size_t after = 0; after < 2; after++) {
        Coordinates peer = at.at;
        if (after ? peer.pp + 1 == at.n.pp : peer.pp == 0) continue;
        peer.pp = after ? peer.pp + 1 : peer.pp - 1;
        add(&t, node_of(&at, peer) == node_of(&at, at.at),
            (double)p->pp_bytes / (double)neighbours);
    }
    // The first and the last stage sum the gradient of the tied embedding.
    Coordinates other = at.at;
    other.pp = at.n.pp - 1 - at.at.pp;
    if (p->tied_bytes) add(&t, node_of(&at, other) == node_of(&at, at.at), (double)p->tied_bytes);
    return t;
}

// ---------------------------------------------------------------- measured

LayoutTraffic layout_sent(const Mesh *m, LayoutOrder *process) {
    LayoutTraffic sent = { 0 };
    const Comm *groups[] = { m->tp, m->dp, m->model, m->world, m->tied };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i]) add(&sent, groups[i]->one_node, (double)comm_bytes_sent(groups[i]));
    Coordinates to[2] = { m->at, m->at };
    size_t neighbours = (m->at.pp > 0) + (m->at.pp + 1 < m->n.pp), me = mesh_rank(m->n, m->at);
    to[0].pp--;
    to[1].pp++;
    for (size_t i = 0; i < 2; i++) {
        if (to[i].pp >= m->n.pp) continue; // no such stage; 0 - 1 is the largest size_t
        size_t peer = mesh_rank(m->n, to[i]);
        bool near = process ? clock_same_node(process(m->n, me), process(m->n, peer))
                            : clock_same_node(me, peer);
        add(&sent, near, (double)comm_bytes_sent(m->pp) / (double)neighbours);
    }
    return sent;
}
