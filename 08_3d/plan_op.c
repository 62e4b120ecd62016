// plan_op.c computes times in picoseconds: of one forward or backward of a stage, and of the sums
// and the update at the end of a step. The file also computes the bytes that a rank sends.
#include "08_3d/plan.h"
#include <math.h>

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

static PlanStage tower_stage(const PlanTask *t, const PlanStage *s) {
    PlanStage stage = *s;
    stage.z = plan_tower(t, &s->z);
    return stage;
}

// ------------------------------------------------------------ a forward or backward of B sequences

// The number of a block's kernels besides the products: norms, dropout, GELU, additions.
enum { OTHER_KERNELS = 10 };
// The bytes that an op such as GELU or softmax moves in backward, divided by the bytes in forward.
// The backward reads x or y, reads dy and writes dx. The forward reads x and writes y.
static const double BACKWARD_REST = 1.5;

// The bytes that the ops on all C features of a token read and write. These ops are not cut over
// tp, so each rank runs them on all rows, or with sequence parallelism on its own rows (Korthikanti
// section 4.2.2). A block has two norms and two additions to the residual path, each with dropout
// in one kernel (Megatron-LM's bias_dropout_add).
//     norm       x -> y                                  dy, x -> dx
//     addition   x, residual -> y, mask                  two gradients -> their sum
//     dropout                                            dy, mask -> dx
// kept: the bytes that these ops keep for backward, which plan_block_bytes() also counts.
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

// The times of the products in a block. A block has products with four matrices (q|k|v, projection,
// fc, out). Unless attention is blockwise, the products in all heads count, too. Gate and up of
// SwiGLU are one matrix (block.h). Communication may run beside the products with the four
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
// overlap.tp: in backward the sum of a dx runs beside the product for dW. With sequence parallelism
// the second gather of an input runs beside the product for dx (Korthikanti section 4.2.2;
// Megatron-LM's LinearWithGradAccumulationAndAsyncCommunication).
// overlap.pieces: the other gathers and sums, too, run in tp pieces beside the product that reads
// or writes the tensor. The first or last piece is not hidden (Transformer Engine's user buffers,
// --tp-comm-overlap).
// head: the time of the head's product for dW.
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
    double scores = plan_memory_time(t, 2 * score_bytes, 2);
    double rest = plan_memory_time(t, features + rows_of.forward, OTHER_KERNELS);
    double rest_back = plan_memory_time(t, BACKWARD_REST * features + rows_of.backward,
                                        BACKWARD_REST * OTHER_KERNELS);
    double logits = plan_memory_time(t, 2 * (double)(M * z->vocab * t->format.logit), 2);
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

// ---------------------------------------------------------------- the vision tower

// Returns the time of the products at the ends of the tower: the patch embedding and the merger.
// The input of the patch embedding needs no gradient.
static double ends(const PlanTask *t, const CutSizes *z, size_t images, bool forward) {
    const PlanVision *v = &t->model.vision;
    size_t rows = images * z->T, merged = ceil_div(rows, v->merge), in = plan_tower_merged(t);
    size_t hidden = part_size(in, z->t, z->rank), out = t->model.model.width;
    if (forward)
        return plan_product_time(t, 1, rows, z->C, v->patch, false) +
               plan_product_time(t, 1, merged, hidden, in, false) +
               plan_product_time(t, 1, merged, out, hidden, false);
    return plan_product_time(t, 1, v->patch, z->C, rows, true) +
           plan_product_time(t, 1, merged, hidden, out, false) +
           plan_product_time(t, 1, hidden, out, merged, true) +
           plan_product_time(t, 1, merged, in, hidden, false) +
           plan_product_time(t, 1, in, hidden, merged, true);
}
PlanOp plan_vision_op(const PlanTask *t, const PlanLayout *l, const PlanStage *s, bool forward,
                      size_t B) {
    PlanStage stage = tower_stage(t, s);
    PlanLayout one_pass = *l;
    const CutSizes *z = &stage.z;
    const size_t images = plan_tower_images(t, l, B), heads = images * z->heads, T = z->T;
    const bool again = !forward && l->recompute == RECOMPUTE_FULL;
    one_pass.zero = 0; // the layer of the embedding counts the tower's communication over dp
    PlanOp op = plan_op_alone(t, &one_pass, &stage, forward, images);
    // Blockwise attention has two products in forward and five in backward, over all pairs of
    // patches.
    const double products = forward ? 2 : again ? 5 + 2 : 5;
    if (z->online)
        op.products += (double)z->blocks * products *
                       plan_attention_time(t, heads, (double)T * (double)T, T, T, z->D);
    op.products += ends(t, z, images, forward);
    // The ranks of tp sum the merger's output, or the gradient of its input.
    const size_t count = ceil_div(images * T, t->model.vision.merge) *
                         (forward ? t->model.model.width : plan_tower_merged(t));
    op.tp += plan_group_time(t, s->tp, ALL_REDUCE_PASSES, count, t->format.element);
    op.tp_bytes += plan_group_bytes(t, s->tp, ALL_REDUCE_PASSES, count, t->format.element);
    return op;
}

// ---------------------------------------------------------------- once per step

// Returns the cost of adding up partial gradients over tp. With sequence parallelism a rank has
// only its own rows, so its gradients of norms, and of biases after row-cut products, are partial
// sums.
PlanOp plan_partial_sums(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    size_t elements[PARTIAL_SUMS];
    PlanOp op = { 0 };
    if (!l->sequence) return op;
    elements_partial_sums(&s->z, elements);
    for (size_t i = 0; i < PARTIAL_SUMS; i++)
        if (elements[i])
            add_tp(&op, t, s, i + 1 < PARTIAL_SUMS ? (double)s->z.blocks : s->z.last,
                   ALL_REDUCE_PASSES, elements[i]);
    if (s->z.first && plan_has_vision(t)) {
        const PlanStage tower = tower_stage(t, s);
        plan_op_add(&op, plan_partial_sums(t, l, &tower), 1);
    }
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
    // ZeRO 3 gathers the tables before the first forward. plan_gather() counts this gather of the
    // tables, too.
    if (l->zero >= 1) add_table(&op, t, s, t->format.weight);
    return op;
}
// Counts the optimizer's reads of weight, gradient and state, and its writes of weight and state.
// The optimizer reads the master instead of the weight if weights have 16 bits, so the count is
// slightly too high.
double plan_update_time(const PlanTask *t, const PlanLayout *l, const PlanStage *s) {
    const PlanFormat *f = &t->format;
    double elements = (double)plan_elements(t, &s->z) / (l->zero ? (double)plan_replicas(l) : 1);
    return plan_memory_time(t, elements * (double)(2 * f->weight + f->gradient + 2 * f->state), 1);
}
