// ranks: 4
// level: extra
// question: Can ranks send two thin matrices instead of each gradient, and still train the model?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Holds:  every rank has a replica, about 1/N of the sequences, and its own residual of Psi
//         elements. For every compressed matrix [rows, cols] a rank has a Q [cols, r], the same on
//         every rank.
// Sends:  a bucket takes up to three all-reduces per step. The first has the vectors and small
//         matrices, uncompressed, the second all P's [rows, r], the third all Q's [cols, r]. Per
//         matrix a rank sends 2(N-1)/N of r (rows + cols) elements.
// Saves:  compared with an exact all-reduce, 2(N-1)/N of (rows cols - r (rows + cols)) elements per
//         matrix.
// Costs:  the result is the sum projected on r columns, not the sum. A rank keeps Psi elements of
//         residual. Per matrix a rank computes three products, and makes the columns of P and Q
//         orthonormal.
// Vogels et al. 2019 (arXiv 1905.13727), algorithms 1 and 2. Beyond the paper, but as in PyTorch, Q
// is made orthonormal before the product P = M Q. A matrix is compressed if (rows + cols) r
// min_rate is less than rows cols. The training must have the bits of one device that applies the
// rule to N gradients. Left out: exact steps at first, and overlapping with backward.
#include "01_data_parallel/compression.h"

// Returns the view of matrix m in `flat`, which is a bucket's part of a gradient or residual.
static Tensor power_matrix(Tensor flat, const Matrix *m) {
    return tensor_reshape(tensor_flat_range(flat, m->offset, m->offset + m->rows * m->cols),
                          m->rows, m->cols);
}

// Numbers of elements that are sent for a bucket.
//     rest  vectors and small matrices, uncompressed
//     p     every P
//     q     every Q
typedef struct {
    size_t rest, p, q;
} PowerLengths;
static PowerLengths power_lengths(const CompressedBucket *b) {
    PowerLengths l = { 0, 0, 0 };
    for (size_t i = 0; i < b->n_params; i++) {
        const Matrix *m = &b->params[i];
        if (!m->low_rank) l.rest += m->rows * m->cols;
        else {
            l.p += m->rows * m->rank;
            l.q += m->cols * m->rank;
        }
    }
    return l;
}

// Returns the matrix [rows, cols] at place *at of `list`, and moves *at to the next matrix.
static Tensor power_next(Tensor list, size_t *at, size_t rows, size_t cols) {
    Tensor t = tensor_reshape(tensor_flat_range(list, *at, *at + rows * cols), rows, cols);
    *at += rows * cols;
    return t;
}

// Copies the bucket's vectors and small matrices, which are sent uncompressed, side by side into
// `rest`. power_unpack() writes these tensors back from `rest`.
static void power_pack(const CompressedBucket *b, Tensor rest, Tensor g) {
    size_t at = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        const Matrix *m = &b->params[i];
        if (!m->low_rank) tensor_copy(power_next(rest, &at, m->rows, m->cols), power_matrix(g, m));
    }
}
static void power_unpack(const CompressedBucket *b, Tensor g, Tensor rest) {
    size_t at = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        const Matrix *m = &b->params[i];
        if (!m->low_rank) tensor_copy(power_matrix(g, m), power_next(rest, &at, m->rows, m->cols));
    }
}

// Replaces g by a projection of the sum over ranks (PowerSGD). M is a rank's gradient plus its
// residual, and the sum of M over ranks is wanted. The old Q has the directions in which the last
// sum was large. P is the sum of M Q over ranks, made orthonormal, and has the directions in which
// the new sum is large. The new Q is the sum of M^T P over ranks. The result P Q^T is a projection,
// because P Q^T is P P^T times the sum of M. M is never sent. A rank's M Q and M^T P are partial
// sums, which all-reduces complete.
void compress_power_sgd(Compression *c, CompressedBucket *b, Tensor g, Tensor e) {
    Comm *dp = c->dp;
    Arena a = arena(MEM_COMMUNICATION);
    const PowerLengths length = power_lengths(b);
    Tensor rest = tensor_new(&a, 1, length.rest);
    Tensor ps = tensor_new(&a, 1, length.p), qs = tensor_new(&a, 1, length.q);
    Tensor sent = tensor_new(&a, 1, tensor_count(g));
    size_t at = 0, at_q = 0;
    op_add(e, e, g);
    tensor_copy(sent, e); // final for uncompressed tensors, so their residual is 0
    power_pack(b, rest, g);
    if (length.rest) comm_all_reduce(dp, rest);
    power_unpack(b, g, rest);
    tensor_fill(ps, 0);
    tensor_fill(qs, 0);

    // EXERCISE 01.08a (8 points): a round of PowerSGD, for every matrix m of b->params that is
    // low_rank. M = power_matrix(e, m) [rows, cols] is this rank's part of the matrix to send, and
    // m->q [cols, rank] is Q of the last round. First orthonormalise Q (orthonormalise) and compute
    // P = M Q (op_matmul), where P is power_next(ps, &at, m->rows, m->rank). Make ONE all-reduce of
    // all P's. Then orthonormalise every P and compute Q = M^T P (op_matmul_tn), where Q is
    // power_next(qs, &at_q, m->cols, m->rank). Make ONE all-reduce of all Q's. Finally copy each Q
    // to m->q for the next round. The sum over ranks is P Q^T (op_matmul_nt): leave it in
    // power_matrix(g, m), and its N-th part in power_matrix(sent, m) (op_scale). Make no call if
    // there is no such matrix (length.p is 0).
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        orthonormalise(m->q);
        // [rows, r] = [rows, cols] [cols, r]
        op_matmul(power_next(ps, &at, m->rows, m->rank), power_matrix(e, m), m->q);
    }
    if (length.p) comm_all_reduce(dp, ps); // sends 2 (N-1)/N of rows * r elements for each matrix
    at = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        Tensor p = power_next(ps, &at, m->rows, m->rank);
        orthonormalise(p);
        // [cols, r] = [rows, cols]^T [rows, r]
        op_matmul_tn(power_next(qs, &at_q, m->cols, m->rank), power_matrix(e, m), p);
    }
    if (length.q) comm_all_reduce(dp, qs); // sends 2 (N-1)/N of cols * r elements for each matrix
    at = at_q = 0;
    for (size_t i = 0; i < b->n_params; i++) {
        Matrix *m = &b->params[i];
        if (!m->low_rank) continue;
        tensor_copy(m->q, power_next(qs, &at_q, m->cols, m->rank));
        // [rows, cols] = [rows, r] [cols, r]^T
        op_matmul_nt(power_matrix(g, m), power_next(ps, &at, m->rows, m->rank), m->q);
        // The residuals of all N ranks must add up to the sum of the M's less P Q^T, so a rank
        // counts an N-th of P Q^T as sent.
        op_scale(power_matrix(sent, m), power_matrix(g, m), (real)1 / (real)dp->size);
    }
    // END

    compression_keep_rest(c, e, sent);
    arena_free(&a);
}
