// plan_ring.c: see plan.h. Ring attention as 03.08 runs it: queries stay, keys and values go round, a step ahead of the
// products with them; backward their gradients follow a step behind.
#include "08_3d/plan.h"
#include <math.h>
#include <stdlib.h>

// Zigzag: a chunk from the front and the one as far from the back. A rank has most positions, and the most products,
// where the remainder of 2 cp chunks says.
Positions plan_positions_of(const PlanTask *t, const PlanLayout *l, size_t cp) {
    size_t T = t->model.model.context, n = mesh_cp(l->n);
    if (n == 1) return (Positions){ 1, { {0, T} } };
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

// Do all ranks of the ring take the same time? Then one of them is played, which is its own neighbour.
static bool ring_alike(const PlanTask *t, const PlanLayout *l) {
    size_t node = t->cluster.node, n = mesh_cp(l->n);
    bool links = node == 0 || node % (l->n.tp * n) == 0 || l->n.tp % node == 0;
    return n == 1 || (links && t->model.model.context % (2 * n) == 0);
}
// From rank r to the next one; of all slices, and replicas that go in step, the slowest link.
static bool link_near(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t r) {
    size_t next = (r + 1) % mesh_cp(l->n), all = l->zero >= 2 && !plan_alike(t, l);
    bool near = true;
    for (size_t d = all ? 0 : s->d; d < (all ? l->n.dp : s->d + 1); d++)
        for (size_t tp = 0; tp < plan_slices(t, l); tp++)
            near = near && plan_near(t, plan_rank(l, d, r, tp, s->i), plan_rank(l, d, next, tp, s->i));
    return near;
}
// Of k and v, or their gradients, of rank r's positions.
static double block_bytes(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t r, size_t B) {
    Positions its = plan_positions_of(t, l, r);
    return (double)(B * count(&its) * 2 * z->heads * z->D * t->format.element);
}
// Two blocks of keys and values; of gradients the one that leaves, the one that comes, and the one at work.
double plan_ring_room(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t B) {
    size_t n = mesh_cp(l->n);
    return n == 1 ? 0 : (double)(n > 2 ? 5 : 4) * block_bytes(t, l, z, plan_most_positions(t, l), B);
}

// Of one rank: until when it has computed; when its lane to the next one is free; when the block that it waits for
// comes, and the sum of gradients.
typedef struct { double at, lane, block, sum, products; bool near; } Player;

// Products with the keys that rank r has in step k.
static double products(const PlanTask *t, const PlanLayout *l, const CutSizes *z, size_t r, size_t k, bool forward,
                       size_t B) {
    size_t n = mesh_cp(l->n);
    Positions mine = plan_positions_of(t, l, r), theirs = plan_positions_of(t, l, (r + n - k) % n);
    return (forward ? 2 : 5) * plan_attention_time(t, B * z->heads, pairs(&mine, &theirs), count(&mine),
                                                   count(&theirs), z->D);
}
PlanRing plan_ring(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward, size_t B) {
    size_t n = mesh_cp(l->n), players = ring_alike(t, l) ? 1 : n;
    Player *p = host_alloc(players * sizeof *p);
    for (size_t r = 0; r < players; r++) p[r].near = link_near(t, l, s, r);
    for (size_t k = 0; k < n; k++) {
        for (size_t r = 0; r < players && k + 1 < n; r++) {        // k and v go on while they are worked with
            double takes = plan_link_time(t, p[r].near, 1, block_bytes(t, l, &s->z, (r + n - k) % n, B));
            p[(r + 1) % players].block = p[r].lane = fmax(p[r].lane, p[r].at) + takes;
        }
        for (size_t r = 0; r < players; r++) {
            double computing = products(t, l, &s->z, r, k, forward, B);
            p[r].products += computing;
            p[r].at += computing;
            if (!forward) p[r].at = fmax(p[r].at, p[r].sum);       // what the others have added
        }
        for (size_t r = 0; r < players && !forward && n > 1; r++) {
            double takes = plan_link_time(t, p[r].near, 1, block_bytes(t, l, &s->z, (r + n - k) % n, B));
            p[(r + 1) % players].sum = p[r].lane = fmax(p[r].lane, p[r].at) + takes;
        }
        for (size_t r = 0; r < players && k + 1 < n; r++) p[r].at = fmax(p[r].at, p[r].block);
    }
    PlanRing ring = {0};
    for (size_t r = 0; r < players; r++) {
        double takes = fmax(p[r].at, p[r].sum), others = 0;
        if (takes > ring.time) { ring.time = takes; ring.products = p[r].products; }
        for (size_t j = 0; j < n; j++) others += j == (r + 1) % n ? 0 : block_bytes(t, l, &s->z, j, B);
        if (n > 1) ring.bytes = fmax(ring.bytes, others + (forward ? 0 : others + block_bytes(t, l, &s->z, (r + 1) % n, B)));
    }
    free(p);
    return ring;
}
