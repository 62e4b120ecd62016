// plan_stage.c computes the sizes, groups and positions of one stage of a pipeline, and the times
// of its products and messages, in picoseconds.
#include "08_3d/plan.h"
#include <math.h>

// ---------------------------------------------------------------- ranks, groups and nodes

size_t plan_micro_batches(const PlanTask *t, const PlanLayout *l) {
    return ceil_div(ceil_div(t->model.batch, l->n.dp), l->micro_batch);
}
size_t plan_rank(const PlanLayout *l, size_t d, size_t cp, size_t tp, size_t stage) {
    return mesh_rank(l->n, (Coordinates){ .dp = d, .cp = cp, .tp = tp, .pp = stage });
}
bool plan_in_blocks(const PlanTask *t, const PlanLayout *l) {
    return t->blockwise || mesh_cp(l->n) > 1;
}
size_t plan_replicas(const PlanLayout *l) { return l->n.dp * mesh_cp(l->n); }
bool plan_near(const PlanTask *t, size_t first, size_t last) {
    return t->cluster.node == 0 || first / t->cluster.node == last / t->cluster.node;
}

static size_t at_most(size_t a, size_t b) { return a < b ? a : b; }
// The members in one node follow one another in the group. In the middle of the group the numbers
// of members per node repeat after `stride` nodes. So the loop counts only the first node, at most
// `stride` + 1 nodes in the middle, and the last node.
PlanGroup plan_group(const PlanTask *t, size_t first, size_t n, size_t stride) {
    size_t node = t->cluster.node, rails = t->cluster.rails, least = n, most = 0, nodes = 0;
    PlanGroup g = { .n = n, .in_node = n };
    if (node == 0 || first / node == (first + (n - 1) * stride) / node) return g;
    for (size_t i = 0, members; i < n; i += members) {
        size_t rank = first + i * stride, left = node - rank % node;
        members = at_most(ceil_div(left, stride), n - i);
        least = at_most(least, members);
        most = members > most ? members : most;
        size_t last = (first + (n - 1) * stride) / node * node; // the first rank of the last node
        if (nodes++ != stride + 1 || last <= rank) continue;
        // Skips to the first member in the last node.
        members = last > first ? ceil_div(last - first, stride) - i : members;
    }
    g.in_node = least == most ? least : 0;
    g.cards = rails ? at_most(least, rails) : least;
    return g;
}
// Returns the slower of two groups that wait for each other: the group with fewer cards. A group
// inside one node is faster than any group across nodes.
static PlanGroup slower(PlanGroup a, PlanGroup b) {
    bool first = b.cards == 0 || (a.cards > 0 && a.cards <= b.cards);
    return first ? a : b;
}

// ---------------------------------------------------------------- the parts of the model

// Returns the number of blocks of part `part`, if L blocks are cut into parts of nearly equal cost.
// The head has as many FLOPs as `head` blocks. The embedding counts as 0 blocks. Only the parts of
// the embedding and of the head may have no block. For example, 126 blocks in 16 parts give 7, 14
// times 8, and 7, as in Llama 3.
static size_t balanced_blocks(size_t L, size_t parts, size_t head, size_t part, bool from_first) {
    if (parts == 1) return L;
    size_t most = ceil_div(L, parts);
    head = L < parts ? 1 : at_most(head, most - 1);
    most = ceil_div(L + head, parts);
    if (L >= parts) head = at_most(head, most - 1);
    // `less` parts have one block less. If from_first, part 0 is one of these parts. All other such
    // parts are directly before the last part.
    size_t less = most * parts - head - L, at_end = less - (from_first && less > 0);
    size_t blocks = part + 1 == parts ? most - head : most;
    bool taken =
        from_first && part == 0 ? less > 0 : part + 1 < parts && parts - 1 - part <= at_end;
    return blocks - taken;
}
// If l->balanced, a vision tower counts as blocks, too. So the first part has fewer blocks of the
// model, and the other parts share the remaining blocks.
size_t plan_part_blocks(const PlanTask *t, const PlanLayout *l, size_t part) {
    const ModelConfig *m = &t->model.model;
    size_t parts = l->n.pp * l->chunks, L = m->layers, tower = plan_vision_blocks(t);
    if (!l->balanced || parts == 1) return part_size(L, parts, part);
    CutSizes z = cut_sizes(m, 1, 0);
    size_t head = (size_t)(work_head(&z, 1).flops / work_block(&z, 1).flops + 0.5);
    if (tower == 0) return balanced_blocks(L, parts, head, part, true);
    size_t most = ceil_div(tower + L + head, parts), first = most > tower ? most - tower : 0;
    first = at_most(first, L);
    return part == 0 ? first : balanced_blocks(L - first, parts - 1, head, part - 1, false);
}

// In the zigzag order a rank has one chunk from the front and one chunk from the back. If twice the
// number of ranks does not divide the context, the remainder decides which rank has the most
// positions.
Positions plan_positions_of(const PlanTask *t, const PlanLayout *l, size_t cp) {
    size_t T = t->model.model.context, n = mesh_cp(l->n);
    if (n == 1) return (Positions){ 1, { { 0, T } } };
    return (Positions){ 2, { shard_range(T, 2 * n, cp), shard_range(T, 2 * n, 2 * n - 1 - cp) } };
}
size_t plan_most_positions(const PlanTask *t, const PlanLayout *l) {
    size_t n = mesh_cp(l->n);
    return t->model.model.context % (2 * n) > n ? n - 1 : 0;
}
size_t plan_positions(const PlanTask *t, const PlanLayout *l) {
    Positions most = plan_positions_of(t, l, plan_most_positions(t, l));
    return positions_count(&most);
}

// ZeRO 2 and 3 communicate over dp in every micro-batch, so all replicas wait for the slowest
// group.
PlanStage plan_chunk(const PlanTask *t, const PlanLayout *l, size_t d, size_t i, size_t k) {
    size_t tp = l->n.tp, dp = l->n.dp, cp = mesh_cp(l->n);
    PlanStage s = { .z = cut_stage(cut_sizes(&t->model.model, tp, 0), l->n.pp * l->chunks,
                                   k * l->n.pp + i),
                    .d = d,
                    .i = i };
    size_t from = l->zero < 2 ? d * cp : 0, to = (l->zero < 2 ? d + 1 : dp) * cp;
    s.z.blocks = plan_part_blocks(t, l, k * l->n.pp + i);
    s.tp = plan_group(t, plan_rank(l, from / cp, from % cp, 0, i), tp, 1);
    for (size_t r = from + 1; r < to && !plan_alike(t, l); r++)
        s.tp = slower(s.tp, plan_group(t, plan_rank(l, r / cp, r % cp, 0, i), tp, 1));
    s.dp = plan_group(t, plan_rank(l, 0, 0, 0, i), dp * cp, tp);
    for (size_t slice = 1; slice < plan_slices(t, l); slice++)
        s.dp = slower(s.dp, plan_group(t, plan_rank(l, 0, 0, slice, i), dp * cp, tp));
    Positions local = { 0 }; // n 0: all positions
    if (cp > 1) local = plan_positions_of(t, l, plan_most_positions(t, l));
    if (plan_in_blocks(t, l)) s.z = cut_positions(s.z, &local, true);
    if (l->sequence) s.z = cut_sequence(s.z, false);
    return s;
}
PlanStage plan_as_rank(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t cp,
                       bool forward) {
    PlanStage one = *s;
    Positions positions = plan_positions_of(t, l, cp);
    one.z = cut_positions(one.z, &positions, true);
    // Replicas that communicate over dp within an op wait for each other.
    const bool together = (l->zero == 3 || (l->zero == 2 && !forward)) && !plan_alike(t, l);
    one.tp = plan_group(t, plan_rank(l, s->d, cp, 0, s->i), l->n.tp, 1);
    for (size_t d = 0; together && d < l->n.dp; d++)
        one.tp = slower(one.tp, plan_group(t, plan_rank(l, d, cp, 0, s->i), l->n.tp, 1));
    return one;
}
PlanStage plan_stage(const PlanTask *t, const PlanLayout *l, size_t d, size_t i) {
    PlanStage s = plan_chunk(t, l, d, i, l->chunks - 1);
    s.z.first = i == 0;
    for (size_t k = 0; k + 1 < l->chunks; k++)
        s.z.blocks += plan_part_blocks(t, l, k * l->n.pp + i);
    return s;
}
static bool divides(size_t a, size_t b) { return a % b == 0 || b % a == 0; }
// Returns whether all groups of tp are placed on nodes alike, and likewise all groups of cp, and
// all groups of dp.
bool plan_alike(const PlanTask *t, const PlanLayout *l) {
    size_t node = t->cluster.node;
    size_t ring = l->n.tp * mesh_cp(l->n);
    return node == 0 ||
           (divides(l->n.tp, node) && divides(ring, node) && divides(ring * l->n.dp, node));
}
// Returns slice `slice` of stage s, the part of rank `slice` of tp. A slice communicates over dp
// with the same slice of other replicas. Slice `slice` may be smaller than the largest slice, and
// its group may be on another link.
PlanStage plan_slice(const PlanTask *t, const PlanLayout *l, const PlanStage *s, size_t slice) {
    PlanStage one = *s;
    CutSizes z = cut_sizes(&t->model.model, l->n.tp, slice);
    one.z.heads = z.heads;
    one.z.key_heads = z.key_heads;
    one.z.hidden = z.hidden;
    one.z.vocab = z.vocab;
    one.z.rank = slice;
    one.dp = plan_group(t, plan_rank(l, 0, 0, slice, s->i), plan_replicas(l), l->n.tp);
    return one;
}
// Returns the number of slices to compute: 1 if all groups are placed on nodes alike, because slice
// 0 is the largest; else tp.
size_t plan_slices(const PlanTask *t, const PlanLayout *l) {
    return plan_alike(t, l) ? 1 : l->n.tp;
}

// ---------------------------------------------------------------- times of products and messages

static double picoseconds(double seconds) { return round(seconds * 1e12); }

// Returns the time of `count` products of [m, k] and [k, n] in one kernel. The model is a roofline
// (Williams et al. 2009) whose two parts add, because no kernel hides one part completely behind
// the other.
// Multiprocessors compute tiles in waves, and the last wave may not be full (NVIDIA, "Matrix
// Multiplication Background").
// accumulates: [m, n] is the gradient of a weight, which is read and written.
enum { TILE_M = 128, TILE_N = 256 };
double plan_product_time(const PlanTask *t, size_t count, size_t m, size_t n, size_t k,
                         bool accumulates) {
    const PlanCluster *c = &t->cluster;
    double M = (double)m, N = (double)n, K = (double)k, e = (double)t->format.element, waves = 1;
    double bytes = e * (M * K + K * N) + (accumulates ? 2 * (double)t->format.gradient : e) * M * N;
    if (c->multiprocessors) {
        size_t tiles = count * ceil_div(m, TILE_M) * ceil_div(n, TILE_N);
        waves = (double)(ceil_div(tiles, c->multiprocessors) * c->multiprocessors) / (double)tiles;
    }
    double one = waves * 2 * M * N * K / (c->flops * c->efficiency) +
                 (c->bandwidth > 0 ? bytes / c->bandwidth : 0);
    return (double)count * picoseconds(one) + picoseconds(c->launch);
}
// The scores stay on the chip, so only queries, keys, values and outputs pass through memory (Dao
// et al. 2022).
double plan_attention_time(const PlanTask *t, size_t count, double pairs, size_t q, size_t k,
                           size_t D) {
    const PlanCluster *c = &t->cluster;
    double bytes = (double)(t->format.element * (q + k) * D), waves = 1;
    if (pairs == 0) return 0;
    if (c->multiprocessors) {
        size_t tiles = count * ceil_div(q, TILE_M);
        waves = (double)(ceil_div(tiles, c->multiprocessors) * c->multiprocessors) / (double)tiles;
    }
    double one = waves * 2 * pairs * (double)D / (c->flops * c->efficiency) +
                 (c->bandwidth > 0 ? bytes / c->bandwidth : 0);
    return (double)count * picoseconds(one) + picoseconds(c->launch);
}
// Returns the time of messages one after the other, with `bytes` bytes together. cards: the number
// of network cards between nodes; 0: the messages stay inside a node. All bytes between nodes also
// pass the link inside, so the cards together are at most as fast as that link.
static double link_time(const PlanTask *t, size_t cards, size_t messages, double bytes) {
    PlanLink inside = t->cluster.inside, link = cards ? t->cluster.between : inside;
    if (link.beta == 0) return 0;
    double rate = link.beta * (double)(cards ? cards : 1);
    if (inside.beta > 0) rate = fmin(rate, inside.beta);
    return picoseconds((double)messages * link.alpha + bytes / rate);
}
double plan_message_time(const PlanTask *t, bool near, double bytes) {
    return link_time(t, !near, 1, bytes);
}
// Returns whether the collective is hierarchical. A pass then has two steps, one inside the nodes
// and one between the nodes. Between the nodes a rank passes 1/in_node of the elements on its own
// card, to ranks with the same place in their nodes.
static bool in_two_steps(const PlanTask *t, PlanGroup g) {
    return t->how.hierarchical && g.cards > 0 && g.in_node > 1;
}
double plan_group_bytes(const PlanTask *t, PlanGroup g, size_t passes, size_t count, size_t size) {
    if (!in_two_steps(t, g)) return ring_bytes(passes, g.n, count, size);
    return ring_bytes(passes, g.in_node, count, size) +
           ring_bytes(passes, g.n / g.in_node, ceil_div(count, g.in_node), size);
}
double plan_group_time(const PlanTask *t, PlanGroup g, size_t passes, size_t count, size_t size) {
    if (!in_two_steps(t, g)) {
        double ring =
            link_time(t, g.cards, passes * (g.n - 1), ring_bytes(passes, g.n, count, size));
        if (!t->how.trees || passes != ALL_REDUCE_PASSES || g.n == 1) return ring;
        // Small pieces pass up and down a binary tree, so each link carries the whole tensor twice.
        size_t height = 0;
        while ((size_t)1 << height < g.n) height++;
        return fmin(ring, link_time(t, g.cards, 2 * height, 2 * (double)(count * size)));
    }
    size_t nodes = g.n / g.in_node, part = ceil_div(count, g.in_node);
    return link_time(t, 0, passes * (g.in_node - 1), ring_bytes(passes, g.in_node, count, size)) +
           link_time(t, 1, passes * (nodes - 1), ring_bytes(passes, nodes, part, size));
}
double plan_memory_time(const PlanTask *t, double bytes, double kernels) {
    const PlanCluster *c = &t->cluster;
    return c->bandwidth > 0 ? picoseconds(bytes / c->bandwidth + kernels * c->launch) : 0;
}
