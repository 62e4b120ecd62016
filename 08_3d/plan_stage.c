// plan_stage.c computes the time of one stage of a pipeline, in picoseconds, and the bytes that the
// stage's ranks send.
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
// Returns the group of n ranks: first, first + stride, ... The members in one node follow one
// another in the group. In the middle of the group the numbers of members repeat after `stride`
// nodes. So the loop counts only the first node, at most `stride` + 1 nodes in the middle, and the
// last node.
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

// Returns the number of blocks of a part of equal cost. The head counts as `head` blocks, the
// number of blocks with as many FLOPs. The embedding counts as 0 blocks. Only the parts of the
// embedding and of the head may have no block. Some parts may have one block less. If `from_first`,
// the first part is one of these parts. All other such parts are at the end. For example, 126
// blocks on 16 stages give 7, 14 times 8, and 7, as in Llama 3.
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
// Returns the number of blocks of a part. A vision tower counts as blocks, too, so the first part
// has fewer blocks of the model. The other parts share the remaining blocks, and the last parts
// have fewer.
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

// Returns chunk k of stage i: part k pp + i of the model. ZeRO 2 and 3 communicate over dp in every
// micro-batch, so all replicas wait for the slowest group.
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
    // In ZeRO's units all replicas wait for each other.
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
// Returns whether one of two numbers divides the other.
static bool divides(size_t a, size_t b) { return a % b == 0 || b % a == 0; }
// Returns whether all groups of one kind are placed on nodes alike. Kinds are the groups of tp, of
// cp and of dp.
bool plan_alike(const PlanTask *t, const PlanLayout *l) {
    size_t node = t->cluster.node;
    size_t ring = l->n.tp * mesh_cp(l->n);
    return node == 0 ||
           (divides(l->n.tp, node) && divides(ring, node) && divides(ring * l->n.dp, node));
}
// Returns slice `slice` of stage s. A slice communicates over dp with the same slice of other
// replicas. Slice `slice` may be smaller than the largest slice, and its group may be on another
// link.
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
// Returns the number of slices that differ.
size_t plan_slices(const PlanTask *t, const PlanLayout *l) {
    return plan_alike(t, l) ? 1 : l->n.tp;
}

// ---------------------------------------------------------------- times of products and messages

static double picoseconds(double seconds) { return round(seconds * 1e12); }

// Returns the time of `count` products of [m, k] and [k, n] in one kernel. The model is a roofline
// (Williams et al. 2009) whose two parts add, because no kernel hides one part completely behind
// the other.
// Multiprocessors compute tiles in waves, and the last wave is not full (NVIDIA, "Matrix
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
// Returns the time of the products with one block of scores. The scores stay on the chip, so only
// queries, keys, values and outputs pass through memory (Dao et al. 2022).
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
// Returns the time of messages one after the other, inside a node or over `cards` network cards.
// All bytes between nodes also pass the link inside, so the cards together are at most as fast as
// that link.
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
// Returns whether the collective is hierarchical. A pass then runs inside the nodes. 1/in_node of
// the elements also pass between the ranks with the same place in all nodes, each rank on its own
// card.
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
// Returns the time to read and write `bytes` in `kernels` kernels. Norms, dropout, GELU, residual
// additions and the update take this time.
static double through_memory(const PlanTask *t, double bytes, double kernels) {
    const PlanCluster *c = &t->cluster;
    return c->bandwidth > 0 ? picoseconds(bytes / c->bandwidth + kernels * c->launch) : 0;
}

double plan_op_time(const PlanOp *op) { return op->products + op->rest + op->tp + op->cp + op->dp; }
void plan_op_add(PlanOp *sum, PlanOp op, double times) {
    sum->products += times * op.products;
    sum->rest += times * op.rest;
    sum->tp += times * op.tp;
    sum->cp += times * op.cp;
    sum->dp += times * op.dp;
    sum->tp_bytes += times * op.tp_bytes;
    sum->cp_bytes += times * op.cp_bytes;
    sum->dp_bytes += times * op.dp_bytes;
}
static void add_tp(PlanOp *op, const PlanTask *t, const PlanStage *s, double times, size_t passes,
                   size_t count) {
    op->tp += times * plan_group_time(t, s->tp, passes, count, t->format.element);
    op->tp_bytes += times * plan_group_bytes(t, s->tp, passes, count, t->format.element);
}
static void add_dp(PlanOp *op, const PlanTask *t, const PlanStage *s, double times, size_t passes,
                   size_t count, size_t size) {
    op->dp += times * plan_group_time(t, s->dp, passes, count, size);
    op->dp_bytes += times * plan_group_bytes(t, s->dp, passes, count, size);
}
// Adds one pass over dp for each layer of the stage.
static void add_units(PlanOp *op, const PlanTask *t, const PlanStage *s, size_t size) {
    for (size_t i = 0; i < cut_layers(&s->z); i++)
        add_dp(op, t, s, 1, ONE_PASS, plan_unit(t, &s->z, i), size);
}
static void add_ring(PlanOp *op, PlanRing r, double times) {
    op->products += times * r.products;
    op->cp += times * (r.time - r.products);
    op->cp_bytes += times * r.bytes;
}
static void add_table(PlanOp *op, const PlanTask *t, const PlanStage *s, size_t size) {
    add_dp(op, t, s, (double)stage_tables(&s->z), ONE_PASS, elements_wte(&s->z), size);
}
PlanOp plan_tables(const PlanTask *t, const PlanStage *s, size_t size) {
    PlanOp op = { 0 };
    add_table(&op, t, s, size);
    return op;
}

// ------------------------------------------------------------ a forward or backward of B sequences

// The number of a block's kernels besides the products: norms, dropout, GELU, additions.
enum { OTHER_KERNELS = 10 };
// Ops such as GELU and softmax move this many times as many bytes in backward as in forward. The
// backward reads x or y, reads dy and writes dx. The forward reads x and writes y.
static const double BACKWARD_REST = 1.5;

// The bytes that the ops on whole features read and write. These ops are not cut over tp, so each
// rank runs them on all rows, or with sequence parallelism on its own rows (Korthikanti section
// 4.2.2). A block has two norms and two additions to the residual path, each with dropout in one
// kernel (Megatron-LM's bias_dropout_add).
//     norm       x -> y                                  dy, x -> dx
//     addition   x, residual -> y, mask                  two gradients -> their sum
//     dropout                                            dy, mask -> dx
// kept: the bytes of these ops among those of plan_block_bytes().
typedef struct {
    double forward, backward, kept;
} RowBytes;
static RowBytes row_bytes(const PlanTask *t, const CutSizes *z, size_t B) {
    const double row = (double)(cut_rows(z, B) * z->C), e = (double)t->format.element;
    const double dropout = z->dropout ? 1 : 0, mask = (double)t->format.mask;
    return (RowBytes){ .forward = 2 * row * (2 * e + 3 * e + dropout * mask),
                       .backward = 2 * row * (3 * e + 3 * e + dropout * (2 * e + mask)),
                       .kept = row * (3 * e + 2 * dropout * mask) };
}

// The times of the products in a block. These are the products with the four matrices (q|k|v,
// projection, fc, out) and, unless attention is blockwise, the products in all heads. Gate and up
// of SwiGLU are one matrix (block.h). Communication may run beside the products with the four
// matrices.
// scores: q k^T alone, because selective recomputation repeats this product.
// forwards: the product with each matrix in forward.
// inputs: the product that gives each dx.
// weights: the product that gives each dW.
typedef struct {
    double forward, backward, scores, forwards[4], inputs[4], weights[4];
} Products;
static Products block_products(const PlanTask *t, const CutSizes *z, size_t B) {
    size_t M = B * z->T, C = z->C, A = z->heads * z->D, K = z->key_heads * z->D, F = z->hidden;
    const size_t n[4] = { A + 2 * K, C, z->gates * F, C }, k[4] = { C, A, C, F };
    Products p = { 0 };
    if (!z->online) {
        p.scores = plan_product_time(t, B * z->heads, z->T, z->Tk, z->D, false);
        p.forward = p.scores + plan_product_time(t, B * z->heads, z->T, z->D, z->Tk, false);
        p.backward = 2 * p.forward;
    }
    for (size_t i = 0; i < 4; i++) {
        p.forwards[i] = plan_product_time(t, 1, M, n[i], k[i], false);
        p.inputs[i] = plan_product_time(t, 1, M, k[i], n[i], false);
        p.weights[i] = plan_product_time(t, 1, k[i], n[i], M, true);
        p.forward += p.forwards[i];
        p.backward += p.inputs[i] + p.weights[i];
    }
    return p;
}

// Returns the time of the communication over tp that products hide. A product hides communication
// for at most the product's own time.
// tp: in backward the sum of a dx runs beside the product for dW. With sequence parallelism the
// second gather of an input runs beside the product for dx (Korthikanti section 4.2.2;
// Megatron-LM's LinearWithGradAccumulationAndAsyncCommunication).
// pieces: the other gathers and sums, too, run in tp pieces beside the product that needs or makes
// their tensor. The first or last piece is not hidden (Transformer Engine's user buffers,
// --tp-comm-overlap).
// rows: elements of one sum.
static double hidden_sums(const PlanTask *t, const PlanLayout *l, const PlanStage *s,
                          const Products *p, double head, size_t rows, bool forward) {
    const double tp = (double)s->z.t;
    double half = plan_group_time(t, s->tp, ONE_PASS, rows, t->format.element), block = 0;
    double sum =
        l->sequence ? half : plan_group_time(t, s->tp, ALL_REDUCE_PASSES, rows, t->format.element);
    for (size_t i = 0; i < 4; i++) {
        bool column = i % 2 == 0; // q|k|v and fc: x is gathered, dx is summed
        double other = (column ? half : sum) * (1 - 1 / tp), product = p->forwards[i];
        if (!forward && column) block += fmin(sum, p->weights[i]);
        if (!forward && column && l->sequence) block += fmin(half, p->inputs[i]);
        if (!forward) {
            other = half * (1 - 1 / tp);
            product = p->inputs[i];
        }
        // Without sequence parallelism nothing is gathered.
        bool exists = column ? forward && l->sequence : forward || l->sequence;
        if (t->how.overlap.pieces && exists) block += fmin(other, product);
    }
    return (double)s->z.blocks * block + (!forward && s->z.last ? fmin(sum, head) : 0);
}

PlanOp plan_op_alone(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                     size_t B) {
    const CutSizes *z = &s->z;
    size_t M = B * z->T;
    double blocks = (double)z->blocks, first = z->first, last = z->last;
    Products p = block_products(t, z, B);
    // The head has one product in forward, and two products in backward, for its dx and its dW.
    double head = 0, head_input = 0, head_weight = 0;
    if (z->last) {
        head = plan_product_time(t, 1, M, z->vocab, z->C, false);
        head_input = plan_product_time(t, 1, M, z->C, z->vocab, false);
        head_weight = plan_product_time(t, 1, z->C, z->vocab, M, true);
    }
    // Softmax and dropout read and write the scores.
    const RowBytes rows_of = row_bytes(t, z, B);
    const double score_bytes = plan_block_bytes(t, z, B, true);
    const double features = plan_block_bytes(t, z, B, false) + score_bytes - rows_of.kept;
    double scores = through_memory(t, 2 * score_bytes, 2);
    double rest = through_memory(t, features + rows_of.forward, OTHER_KERNELS);
    double rest_back = through_memory(t, BACKWARD_REST * features + rows_of.backward,
                                      BACKWARD_REST * OTHER_KERNELS);
    double logits = through_memory(t, 2 * (double)(M * z->vocab * t->format.logit), 2);
    bool full = l->recompute == RECOMPUTE_FULL, selective = l->recompute == RECOMPUTE_SELECTIVE;
    PlanOp op = { 0 };
    if (forward) {
        op.products = blocks * p.forward + head;
        op.rest = blocks * rest + last * logits;
    } else {
        op.products = blocks * (p.backward + (full        ? p.forward
                                              : selective ? p.scores
                                                          : 0)) +
                      head_input + head_weight;
        op.rest = blocks * (rest_back + (full ? rest : selective ? scores : 0)) + last * logits;
    }
    // A block has four all-reduces of [M, C] over tp, two of them in forward. With sequence
    // parallelism each all-reduce is a reduce-scatter and an all-gather, and backward gathers the
    // inputs of q|k|v and fc once more.
    size_t rows = l->sequence ? z->t * cut_rows(z, B) * z->C : M * z->C;
    double halves = 2 * (forward ? 2 * blocks : 2 * blocks + last + (full ? 2 * blocks : 0));
    if (forward) halves += 2 * first;
    if (l->sequence) halves += forward ? last - first : 2 * blocks + first;
    if (l->sequence) add_tp(&op, t, s, halves, ONE_PASS, rows);
    else add_tp(&op, t, s, halves / 2, ALL_REDUCE_PASSES, rows);
    if (t->how.overlap.tp && l->n.tp > 1)
        op.tp -= hidden_sums(t, l, s, &p, head_weight, rows, forward);
    // The loss needs three sums of [M, 1].
    if (forward && z->last) add_tp(&op, t, s, 3, ALL_REDUCE_PASSES, M);
    // ZeRO 3 gathers the weights for each forward and each backward. ZeRO 2 and 3 reduce the
    // gradients in each backward. All slices wait for the slowest slice.
    for (size_t slice = 0; l->zero >= 2 && slice < plan_slices(t, l); slice++) {
        PlanStage one = plan_slice(t, l, s, slice);
        PlanOp units = { 0 };
        if (l->zero == 3) add_units(&units, t, &one, t->format.weight);
        if (!forward) add_units(&units, t, &one, t->format.gradient);
        op.dp = fmax(op.dp, units.dp);
        op.dp_bytes = fmax(op.dp_bytes, units.dp_bytes);
    }
    if (z->first && plan_has_vision(t)) plan_op_add(&op, plan_vision_op(t, l, s, forward, B), 1);
    if (!forward && l->sequence && l->zero >= 2) {
        PlanOp sums = plan_partial_sums(t, l, s);
        op.tp += sums.tp;
        op.tp_bytes += sums.tp_bytes;
    }
    return op;
}
PlanOp plan_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward, size_t B) {
    PlanOp op = plan_op_alone(t, l, s, forward, B);
    if (!s->z.online) return op; // the products include plain attention
    double blocks = (double)s->z.blocks;
    if (forward || l->recompute == RECOMPUTE_FULL)
        add_ring(&op, plan_ring(t, l, s, true, B), blocks);
    if (!forward) add_ring(&op, plan_ring(t, l, s, false, B), blocks);
    return op;
}

// ---------------------------------------------------------------- once per step

// Returns the cost of adding up partial gradients over tp. With sequence parallelism a rank has
// only its own rows, so the gradients of norms and biases are partial sums.
PlanOp plan_partial_sums(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    size_t elements[PARTIAL_SUMS];
    PlanOp op = { 0 };
    if (!l->sequence) return op;
    elements_partial_sums(&s->z, elements);
    for (size_t i = 0; i < PARTIAL_SUMS; i++)
        if (elements[i])
            add_tp(&op, t, s, i + 1 < PARTIAL_SUMS ? (double)s->z.blocks : s->z.last,
                   ALL_REDUCE_PASSES, elements[i]);
    if (s->z.first && plan_has_vision(t)) plan_op_add(&op, plan_vision_sums(t, l, s), 1);
    return op;
}
PlanOp plan_reduction(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    PlanOp op = { 0 };
    size_t g = t->format.gradient;
    if (l->zero == 0) add_dp(&op, t, s, 1, ALL_REDUCE_PASSES, plan_elements(t, &s->z), g);
    if (l->zero == 1) add_units(&op, t, s, g);
    if (l->zero >= 1) add_table(&op, t, s, g);
    return op;
}
PlanOp plan_gather(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    PlanOp op = { 0 };
    if (l->zero == 1 || l->zero == 2) add_units(&op, t, s, t->format.weight);
    // ZeRO 3 gathers wte before the first forward. This function counts that gather, too.
    if (l->zero >= 1) add_table(&op, t, s, t->format.weight);
    return op;
}
// Returns the time of the update. The optimizer reads weight, gradient and state, and writes weight
// and state.
double plan_update_time(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    const PlanFormat *f = &t->format;
    double elements = (double)plan_elements(t, &s->z) / (l->zero ? (double)plan_replicas(l) : 1);
    return through_memory(t, elements * (double)(2 * f->weight + f->gradient + 2 * f->state), 1);
}
