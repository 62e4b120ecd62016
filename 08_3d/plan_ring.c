// plan_ring.c computes the time of ring attention as in 03.08. Queries stay on their rank. Keys and
// values are sent round the ring, one step ahead of the products that use them. In backward the
// gradients of keys and values follow one step behind.
#include "08_3d/plan.h"
#include <math.h>
#include <stdlib.h>

// Returns the number of pairs (query, key). A query attends to its own key and all earlier keys.
static double pairs(const Positions *queries, const Positions *keys) {
    double sum = 0;
    for (size_t i = 0; i < queries->n; i++)
        for (size_t k = 0; k < keys->n; k++) {
            Range q = queries->chunk[i], other = keys->chunk[k];
            double n = (double)range_size(q), m = (double)range_size(other);
            if (other.lo < q.lo) sum += n * m;
            if (other.lo == q.lo && m > 0) sum += n * (n + 1) / 2;
        }
    return sum;
}

// If all ranks of the ring take the same time, one rank is played, which then sends to itself.
size_t plan_ring_players(const PlanTask *t, const PlanLayout *l) {
    size_t node = t->cluster.node, n = mesh_cp(l->n);
    bool links = node == 0 || node % (l->n.tp * n) == 0 || l->n.tp % node == 0;
    return links && t->model.model.context % (2 * n) == 0 ? 1 : n;
}
// Returns whether the link from rank r to the next rank is inside a node. This must hold for all
// slices, and for all replicas that wait for each other.
static bool link_near(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t r) {
    size_t next = (r + 1) % mesh_cp(l->n), all = l->zero >= 2 && !plan_alike(t, l);
    bool near = true;
    for (size_t d = all ? 0 : s->d; near && d < (all ? l->n.dp : s->d + 1); d++)
        for (size_t tp = 0; near && tp < plan_slices(t, l); tp++)
            near = plan_near(t, plan_rank(l, d, r, tp, s->i), plan_rank(l, d, next, tp, s->i));
    return near;
}
// Returns the bytes of the keys and values of these positions. The plan counts as many bytes for
// the gradients of these keys and values.
static double block_bytes(const PlanTask *t, const CutSizes *z, const Positions *p, size_t B) {
    return (double)(B * positions_count(p) * 2 * z->key_heads * z->D * t->format.element);
}
// Two blocks of keys and values, and three blocks of gradients are in flight. Of the gradients, one
// block leaves, one block arrives, and one block is being computed. A ring of two ranks has one
// block less.
double plan_ring_room(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B) {
    size_t n = mesh_cp(l->n);
    Positions most = plan_positions_of(t, l, plan_most_positions(t, l));
    return n == 1 ? 0 : (double)(n > 2 ? 5 : 4) * block_bytes(t, z, &most, B);
}

// The keys and values of one rank, and the time of their message.
typedef struct {
    Positions positions;
    double bytes, takes[2]; // takes[0]: between nodes, takes[1]: inside a node
} Block;
typedef struct {
    size_t n, players; // ranks of the ring; ranks that are played
    Block *block;      // [n]
    // These two times are used only if `equal`: all ranks of the ring have the same work.
    // own: the time of a rank's products with its own block.
    // other: the time of a rank's products with another block.
    double own, other;
    // The time of the products of rank r in step k, at [r n + k]; NULL: computing() computes this
    // time.
    double *takes;
    bool forward, equal;
} Ring;
// The state of one rank, in picoseconds.
// at: the end of the rank's computation.
// lane: the time from which the rank's lane is free.
// block: the time at which the awaited block arrives.
// sum: the time at which the awaited sum of gradients arrives.
// products: the time of all products of the rank.
typedef struct {
    double at, lane, block, sum, products;
    bool near; // the next rank is in the same node
} Player;

static double products(const PlanTask *t, const CutSizes *z, const Ring *g, size_t r, size_t owner,
                       size_t B) {
    const Positions *queries = &g->block[r].positions, *keys = &g->block[owner].positions;
    return (g->forward ? 2 : 5) * plan_attention_time(t, B * z->heads, pairs(queries, keys),
                                                      positions_count(queries),
                                                      positions_count(keys), z->D);
}
static double computing(const PlanTask *t, const CutSizes *z, const Ring *g, size_t r, size_t k,
                        size_t B) {
    if (g->equal) return k == 0 ? g->own : g->other;
    if (g->takes) return g->takes[r * g->n + k];
    return products(t, z, g, r, (r + g->n - k) % g->n, B);
}

static void play(const PlanTask *t, const CutSizes *z, const Ring *g, Player *p, size_t B) {
    size_t players = g->players;
    for (size_t k = 0; k < g->n; k++) {
        bool more = k + 1 < g->n;
        // Keys and values travel on while the products use them.
        for (size_t r = 0; r < players && more; r++) {
            double takes = g->block[(r + g->n - k) % g->n].takes[p[r].near];
            p[r].lane = fmax(p[r].lane, p[r].at) + takes;
            p[(r + 1) % players].block = p[r].lane;
        }
        for (size_t r = 0; r < players; r++) {
            double takes = computing(t, z, g, r, k, B);
            p[r].products += takes;
            p[r].at += takes;
            // In backward a rank adds to the sum of earlier ranks, so the rank waits for that sum.
            if (!g->forward) p[r].at = fmax(p[r].at, p[r].sum);
        }
        for (size_t r = 0; r < players && !g->forward && g->n > 1; r++) {
            double takes = g->block[(r + g->n - k) % g->n].takes[p[r].near];
            p[r].lane = fmax(p[r].lane, p[r].at) + takes;
            p[(r + 1) % players].sum = p[r].lane;
        }
        for (size_t r = 0; r < players && more; r++) p[r].at = fmax(p[r].at, p[r].block);
    }
}

static Ring ring_new(const PlanTask *t, const PlanLayout *l, const CutSizes *z, bool forward,
                     size_t B) {
    size_t n = mesh_cp(l->n);
    Ring g = { .n = n,
               .players = plan_ring_players(t, l),
               .block = host_alloc(n * sizeof *g.block),
               .forward = forward,
               .equal = t->model.model.context % (2 * n) == 0 };
    for (size_t r = 0; r < n; r++) {
        Block *b = &g.block[r];
        b->positions = plan_positions_of(t, l, r);
        b->bytes = block_bytes(t, z, &b->positions, B);
        for (int near = 0; near < 2; near++) b->takes[near] = plan_message_time(t, near, b->bytes);
    }
    if (g.equal) {
        g.own = products(t, z, &g, 0, 0, B);
        g.other = products(t, z, &g, 0, n - 1, B);
    }
    return g;
}

PlanRing plan_ring(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                   size_t B) {
    Ring g = ring_new(t, l, &s->z, forward, B);
    Player *p = host_alloc(g.players * sizeof *p);
    PlanRing ring = { 0 };
    double all = 0;
    for (size_t r = 0; r < g.n; r++) all += g.block[r].bytes;
    for (size_t r = 0; r < g.players; r++) p[r].near = link_near(t, l, s, r);
    play(t, &s->z, &g, p, B);
    for (size_t r = 0; r < g.players; r++) {
        double takes = fmax(p[r].at, p[r].sum), once = all - g.block[(r + 1) % g.n].bytes;
        if (takes > ring.time) {
            ring.time = takes;
            ring.products = p[r].products;
        }
        if (g.n > 1) ring.bytes = fmax(ring.bytes, once + (forward ? 0 : all));
    }
    free(g.block);
    free(p);
    return ring;
}

// ---------------------------------------------------------------- ranks with unequal work

static void after(double *at, const double *takes, size_t n, double share) {
    for (size_t r = 0; r < n; r++) at[r] += share * takes[r];
}
// The rings of a block's forward or backward.
// ring: the ring of this forward or backward.
// again: the ring in the forward that backward repeats. again.block is NULL if backward repeats no
// forward.
// first: the share of the work besides attention that comes before `again`.
// before: the share of the work besides attention that comes directly before `ring`.
// p [n]: the ranks of the ring. pass() keeps `near` of each rank, and sets its other fields anew.
struct PlanRings {
    const PlanTask *t;
    CutSizes z;
    size_t B;
    Ring ring, again;
    double first, before;
    Player *p;
};
static Ring ring_with_times(const PlanTask *t, const PlanLayout *l, const CutSizes *z, bool forward,
                            size_t B) {
    Ring g = ring_new(t, l, z, forward, B);
    if (g.equal) return g;
    double *takes = host_alloc(g.n * g.n * sizeof *takes);
    for (size_t r = 0; r < g.n; r++)
        for (size_t k = 0; k < g.n; k++) takes[r * g.n + k] = computing(t, z, &g, r, k, B);
    g.takes = takes;
    return g;
}
// The products for q, k and v are about a quarter of a block's products. These products come before
// the ring in forward, and after the ring in backward. With grouped heads the part is smaller (a
// tenth for llama2-70b), but the plan uses a quarter for all models. With full recomputation a
// backward also repeats the forward. Of 12 equal parts of the work 1 comes before the first ring,
// and 2 after the second ring. Between the rings are 3 parts of the forward and 6 parts of the
// gradients.
PlanRings *plan_rings_new(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                          size_t B) {
    const bool full = !forward && l->recompute == RECOMPUTE_FULL;
    PlanRings *rings = host_alloc(sizeof *rings);
    *rings = (PlanRings){ .t = t,
                          .z = s->z,
                          .B = B,
                          .ring = ring_with_times(t, l, &s->z, forward, B),
                          .first = full ? 1.0 / 12 : 0,
                          .before = forward ? 0.25 : 0.75 };
    if (full) rings->again = ring_with_times(t, l, &s->z, true, B);
    rings->p = host_alloc(rings->ring.n * sizeof *rings->p);
    for (size_t r = 0; r < rings->ring.n; r++) rings->p[r].near = link_near(t, l, s, r);
    return rings;
}
void plan_rings_free(PlanRings *rings) {
    if (!rings) return;
    free(rings->ring.block);
    free(rings->ring.takes);
    free(rings->again.block);
    free(rings->again.takes);
    free(rings->p);
    free(rings);
}
static void pass(PlanRings *rings, const Ring *g, double *at) {
    Player *p = rings->p;
    for (size_t r = 0; r < g->n; r++) p[r] = (Player){ .at = at[r], .near = p[r].near };
    play(rings->t, &rings->z, g, p, rings->B);
    for (size_t r = 0; r < g->n; r++) at[r] = fmax(p[r].at, p[r].sum);
}
void plan_ring_block(PlanRings *rings, const double *takes, double *at) {
    const size_t n = rings->ring.n;
    if (rings->again.block) {
        after(at, takes, n, rings->first);
        pass(rings, &rings->again, at);
    }
    after(at, takes, n, rings->before);
    pass(rings, &rings->ring, at);
    after(at, takes, n, 1 - rings->first - rings->before);
}
