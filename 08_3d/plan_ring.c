// plan_ring.c: see plan.h. Ring attention as 03.08 runs it: queries stay, keys and values go round,
// a step ahead of the products with them; backward their gradients follow a step behind.
#include "08_3d/plan.h"
#include <math.h>
#include <stdlib.h>

// Zigzag: a chunk from the front and the one as far from the back. A rank has most positions, and
// the most products, where the remainder of 2 cp chunks says.
Positions plan_positions_of(const PlanTask *t, const PlanLayout *l, size_t cp) {
    size_t T = t->model.model.context, n = mesh_cp(l->n);
    if (n == 1) return (Positions){ 1, { { 0, T } } };
    return (Positions){ 2, { shard_range(T, 2 * n, cp), shard_range(T, 2 * n, 2 * n - 1 - cp) } };
}
static size_t count(const Positions *p) {
    size_t sum = 0;
    for (size_t i = 0; i < p->n; i++) sum += range_size(p->chunk[i]);
    return sum;
}
size_t plan_most_positions(const PlanTask *t, const PlanLayout *l) {
    size_t n = mesh_cp(l->n);
    return t->model.model.context % (2 * n) > n ? n - 1 : 0;
}
size_t plan_positions(const PlanTask *t, const PlanLayout *l) {
    Positions most = plan_positions_of(t, l, plan_most_positions(t, l));
    return count(&most);
}

// A query sees the keys before it, and itself.
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

// Do all ranks of the ring take the same time? Then one of them is played, which is its own
// neighbour.
size_t plan_ring_players(const PlanTask *t, const PlanLayout *l) {
    size_t node = t->cluster.node, n = mesh_cp(l->n);
    bool links = node == 0 || node % (l->n.tp * n) == 0 || l->n.tp % node == 0;
    return links && t->model.model.context % (2 * n) == 0 ? 1 : n;
}
// From rank r to the next one; of all slices, and replicas that go in step, the slowest link.
static bool link_near(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t r) {
    size_t next = (r + 1) % mesh_cp(l->n), all = l->zero >= 2 && !plan_alike(t, l);
    bool near = true;
    for (size_t d = all ? 0 : s->d; near && d < (all ? l->n.dp : s->d + 1); d++)
        for (size_t tp = 0; near && tp < plan_slices(t, l); tp++)
            near = plan_near(t, plan_rank(l, d, r, tp, s->i), plan_rank(l, d, next, tp, s->i));
    return near;
}
// Of k and v, or their gradients, of these positions.
static double block_bytes(const PlanTask *t, const CutSizes *z, const Positions *its, size_t B) {
    return (double)(B * count(its) * 2 * z->heads * z->D * t->format.element);
}
// Two blocks of keys and values; of gradients the one that leaves, the one that comes, and the one
// at work.
double plan_ring_room(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B) {
    size_t n = mesh_cp(l->n);
    Positions most = plan_positions_of(t, l, plan_most_positions(t, l));
    return n == 1 ? 0 : (double)(n > 2 ? 5 : 4) * block_bytes(t, z, &most, B);
}

// What step k costs rank r: its products, and the message with the keys that it has then, on a link
// of each kind.
typedef struct {
    Positions mine;
    double bytes, takes[2];
} Block;
typedef struct {
    size_t n, players;
    Block *block;
    double own, other;
    bool forward, equal;
} Ring;
// Of one rank: until when it has computed; when its lane to the next one is free; when the block
// that it waits for comes, and the sum of gradients.
typedef struct {
    double at, lane, block, sum, products;
    bool near;
} Player;

static double products(const PlanTask *t, const CutSizes *z, const Ring *g, size_t r, size_t owner,
                       size_t B) {
    const Positions *mine = &g->block[r].mine, *theirs = &g->block[owner].mine;
    return (g->forward ? 2 : 5) * plan_attention_time(t, B * z->heads, pairs(mine, theirs),
                                                      count(mine), count(theirs), z->D);
}
static double computing(const PlanTask *t, const CutSizes *z, const Ring *g, size_t r, size_t k,
                        size_t B) {
    if (g->equal) return k == 0 ? g->own : g->other;
    return products(t, z, g, r, (r + g->n - k) % g->n, B);
}

static void play(const PlanTask *t, const CutSizes *z, const Ring *g, Player *p, size_t B) {
    size_t players = g->players;
    for (size_t k = 0; k < g->n; k++) {
        bool more = k + 1 < g->n;
        // k and v go on while they are worked with
        for (size_t r = 0; r < players && more; r++) {
            double takes = g->block[(r + g->n - k) % g->n].takes[p[r].near];
            p[(r + 1) % players].block = p[r].lane = fmax(p[r].lane, p[r].at) + takes;
        }
        for (size_t r = 0; r < players; r++) {
            double its = computing(t, z, g, r, k, B);
            p[r].products += its;
            p[r].at += its;
            // what the ranks before have added
            if (!g->forward) p[r].at = fmax(p[r].at, p[r].sum);
        }
        for (size_t r = 0; r < players && !g->forward && g->n > 1; r++) {
            double takes = g->block[(r + g->n - k) % g->n].takes[p[r].near];
            p[(r + 1) % players].sum = p[r].lane = fmax(p[r].lane, p[r].at) + takes;
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
        b->mine = plan_positions_of(t, l, r);
        b->bytes = block_bytes(t, z, &b->mine, B);
        for (int near = 0; near < 2; near++) b->takes[near] = plan_link_time(t, near, 1, b->bytes);
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

// ---------------------------------------------------------------- ranks that are not alike

static void after(double *at, const PlanOp *each, size_t n, double share) {
    for (size_t r = 0; r < n; r++) at[r] += share * plan_op_time(&each[r]);
}
// p [n]: of which only the links are kept from pass to pass.
static void pass(const PlanTask *t, const PlanStage *s, const Ring *g, Player *p, size_t B,
                 double *at) {
    for (size_t r = 0; r < g->n; r++) p[r] = (Player){ .at = at[r], .near = p[r].near };
    play(t, &s->z, g, p, B);
    for (size_t r = 0; r < g->n; r++) at[r] = fmax(p[r].at, p[r].sum);
}
// Of a block's products, those of q, k, v come before attention: about a quarter.
void plan_ring_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, const PlanOp *each,
                  bool forward, size_t B, double *at) {
    bool full = !forward && l->recompute == RECOMPUTE_FULL,
         together = l->zero == 3 || (l->zero == 2 && !forward);
    Ring g = ring_new(t, l, &s->z, forward, B), again = { 0 };
    if (full) again = ring_new(t, l, &s->z, true, B);
    Player *p = host_alloc(g.n * sizeof *p);
    for (size_t r = 0; r < g.n; r++) p[r].near = link_near(t, l, s, r);
    double part = 1 / (double)s->z.blocks;
    for (size_t i = 0; i < s->z.blocks; i++) {
        double first = full ? 1.0 / 12 : 0,
               before = forward ? 0.25
                        : full  ? 7.0 / 12
                                : 0.75,
               last = 0;
        if (full) {
            after(at, each, g.n, part * first);
            pass(t, s, &again, p, B, at);
        }
        after(at, each, g.n, part * before);
        pass(t, s, &g, p, B, at);
        after(at, each, g.n, part * (1 - first - before));
        for (size_t r = 0; r < g.n; r++) last = fmax(last, at[r]);
        // ZeRO's units are of all replicas
        for (size_t r = 0; r < g.n && together; r++) at[r] = last;
    }
    free(g.block);
    free(again.block);
    free(p);
}
