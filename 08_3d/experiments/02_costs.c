// 02_costs.c: see 02_costs.h.
#include "08_3d/experiments/02_costs.h"

typedef struct { Degrees n; Coordinates at; size_t node; LayoutOrder *order; } Place;

static size_t node_of(const Place *p, Coordinates c) {
    size_t rank = mesh_rank(p->n, c);
    return p->node ? (p->order ? p->order(p->n, rank) : rank) / p->node : 0;
}
// Do all ranks that differ from me along these axes share my node?
static bool one_node(const Place *p, unsigned axes) {
    bool one = true;
    for (size_t r = 0; r < p->n.dp * p->n.tp * p->n.pp; r++) {
        Coordinates c = mesh_coordinates(p->n, r);
        bool member = (axes & MESH_DP || c.dp == p->at.dp) && (axes & MESH_TP || c.tp == p->at.tp) &&
                      (axes & MESH_PP || c.pp == p->at.pp);
        one &= !member || node_of(p, c) == node_of(p, p->at);
    }
    return one;
}
static void add(LayoutTraffic *t, bool inside, double bytes) { *(inside ? &t->inside : &t->between) += bytes; }

LayoutTraffic layout_traffic(const TrainerConfig *c, const Prediction *p, size_t rank, size_t node,
                             LayoutOrder *order) {
    Place at = { .n = c->mesh, .at = mesh_coordinates(c->mesh, rank), .node = node, .order = order };
    LayoutTraffic t = {0};
    size_t world = at.n.dp * at.n.tp * at.n.pp;
    double loss = (double)(2 * (world - 1) * sizeof(double));  // one double in a ring over the world: chunks of one
    add(&t, one_node(&at, MESH_TP), (double)p->tp_bytes);
    add(&t, one_node(&at, MESH_DP), (double)p->dp_bytes);
    add(&t, one_node(&at, MESH_ALL), loss);
    add(&t, one_node(&at, MESH_TP | MESH_PP), (double)p->scalar_bytes - loss);
    // Activations to the stage after this one, gradients to the one before: as many bytes.
    size_t neighbours = (at.at.pp > 0) + (at.at.pp + 1 < at.n.pp);
    for (size_t after = 0; after < 2; after++) {
        Coordinates peer = at.at;
        if (after ? peer.pp + 1 == at.n.pp : peer.pp == 0) continue;
        peer.pp = after ? peer.pp + 1 : peer.pp - 1;
        add(&t, node_of(&at, peer) == node_of(&at, at.at), (double)p->pp_bytes / (double)neighbours);
    }
    // The tied embedding: first and last stage.
    Coordinates other = at.at;
    other.pp = at.n.pp - 1 - at.at.pp;
    if (p->tied_bytes) add(&t, node_of(&at, other) == node_of(&at, at.at), (double)p->tied_bytes);
    return t;
}
