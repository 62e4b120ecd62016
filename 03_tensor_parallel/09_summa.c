// ranks: 4
// level: extra
// question: Can weights and activations both be cut over all ranks, and what must the ranks send for it?
// vary: ranks 9, M 10..14, K 20..26, N 30..38
//
// Holds: t = q x q ranks form a grid. The rank in row i and column j has number i q + j and holds
//     block (i, j) of every matrix: weights, activations, gradients. Vectors are cut by columns and
//     held by row 0 only.
// Sends: each product takes q turns. A turn broadcasts or reduces one block of X (or dX) along the
//     rank's row and one block of W (or dW) along its column. A Transformer block has 4 linear
//     layers. A linear layer has one product forward and two backward.
// Saves: matrices and activations are divided by q^2. No rank ever holds a whole row or column of a
//     matrix.
// Costs: the formulas count received elements, because the ledger counts a broadcast's sent bytes
//     at its root alone. In a product a rank receives (q-1)/q^2 (|X| + |W|), where |X| is the
//     number of elements of X. The 4 linear layers of a Transformer block have |X| = 7 BTC and |W|
//     = 12 C^2 together. So a rank receives 3(q-1)/q^2 (7 BTC + 12 C^2) per Transformer block, and
//     in 1D 8 BTC (t-1)/t. 2D receives less if 3(7 BTC + 12 C^2) < 8 BTC (q+1), which holds for
//     more than BT = 36 C/(8q-13) tokens per micro-batch. Y, dX and dW must equal those of the
//     unsplit product within rounding. Not all bits are equal, because sums are added in q parts.
// SUMMA: van de Geijn and Watts 1997; for Transformers: Optimus, Xu et al. 2021 (arXiv 2104.05343),
// section 3. Left out: broadcasts that overlap with products.
//
// The rows of the grid divide the sequences and the columns divide the heads, so attention sends
// nothing. grid_block.c has the block of a GPT. grid_layers.c has the norms. grid_model.c has all
// other layers, and cuts the model.
#include "03_tensor_parallel/tensor_parallel.h"

// ---------------------------------------------------------------- three products
// X [M, K], W [K, N] and Y [M, N] are cut in blocks [M/q, K/q], [K/q, N/q] and [M/q, N/q]. With
// q = 2, rank (i, j) takes part in these sums:
//
//     Y = X W        Y(i,j)  = X(i,0) W(0,j)    + X(i,1) W(1,j)     X of row i, W of column j
//     dX = dY W^T    dX(i,l) = dY(i,0) W(l,0)^T + dY(i,1) W(l,1)^T   summed over the ranks of row i
//     dW = X^T dY    dW(l,j) = X(0,l)^T dY(0,j) + X(1,l)^T dY(1,j)   summed over column j
//
// Each product takes q turns. A turn broadcasts the blocks of X and W that other ranks need, and
// multiplies. A block of Y is added locally. A block of dX or dW is reduced to its owner. In q
// turns a rank receives q-1 blocks along its row and q-1 along its column.
//
// X and W have the same cut along K. The pieces need not be equal: SummaCut { n, each } deals out n
// groups of `each` elements by shard_range. SummaCut { 5, 4 } keeps 5 heads of 4 columns whole. For
// q = 2 shard_range then cuts the 20 columns into 12 and 8.

Range summa_range(SummaCut cut, size_t q, size_t l) {
    Range r = shard_range(cut.n, q, l);
    return (Range){ r.lo * cut.each, r.hi * cut.each };
}

Tensor summa_panel(Arena *a, bool is_own, Tensor block, size_t rows, size_t cols) {
    return is_own ? block : tensor_shaped(a, tensor_shape(rows, cols, block.element));
}

// Sets y [M/q, N/q] to this rank's block of Y = X W. x [M/q, K/q] and w [K/q, N/q] are this rank's
// blocks of X and W. g->in_row has the ranks of this rank's row, numbered by their column.
// g->in_col has the ranks of this rank's column, numbered by their row.
void summa_product(const CommGrid *g, Tensor y, Tensor x, Tensor w, SummaCut k) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor part = tensor_new(&scratch, y.rows, y.cols), sum = y;
    if (y.element != REALS) sum = tensor_new(&scratch, y.rows, y.cols); // rounded at the end only
    for (size_t l = 0; l < g->cols; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        size_t width = range_size(summa_range(k, g->cols, l));
        Tensor x_l = summa_panel(&panels, g->col == l, x, x.rows, width); // X(i,l)
        Tensor w_l = summa_panel(&panels, g->row == l, w, width, w.cols); // W(l,j)
        comm_broadcast(g->in_row, x_l, l);   // M/q * K/q elements from column l to the row
        comm_broadcast(g->in_col, w_l, l);   // K/q * N/q elements from row l to the column
        op_matmul(l ? part : sum, x_l, w_l); // turn 0 overwrites the sum
        if (l) op_add(sum, sum, part);       // complete after the last turn
        arena_free(&panels);
    }
    if (y.element != REALS) tensor_copy(y, sum);
    arena_free(&scratch);
}

// Sets x [M/q, K/q] to this rank's block of X = Y W^T. y [M/q, N/q] and w [K/q, N/q] are this
// rank's blocks of Y and W.
void summa_product_nt(const CommGrid *g, Tensor x, Tensor y, Tensor w, SummaCut k) {
    for (size_t l = 0; l < g->cols; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        size_t width = range_size(summa_range(k, g->cols, l));
        // EXERCISE 03.09a (4 points): one turn of dX = dY W^T. Turn l makes dX(i,l) on the rank of
        // column l in every row. This rank's blocks: y [M/q, N/q] of dY, w [K/q, N/q] of W, and
        // x [M/q, K/q] of dX. width is the width of piece l of K. summa_panel(&panels, is_own,
        // block, rows, cols) returns the rank's own block or room for another one. You need W(l,j),
        // a product (op_matmul_nt(c, a, b) is c = a b^T), and a sum over g->in_row or g->in_col.
        Tensor w_l = summa_panel(&panels, g->row == l, w, width, w.cols); // W(l,j)
        Tensor x_l = summa_panel(&panels, g->col == l, x, x.rows, width); // dX(i,l)
        comm_broadcast(g->in_col, w_l, l); // K/q * N/q elements from row l to the column
        op_matmul_nt(x_l, y, w_l);         // a partial sum: over the rank's columns of dY
        comm_reduce(g->in_row, x_l, l);    // M/q * K/q elements from the row to column l
        // END
        arena_free(&panels);
    }
}

// Sets w [K/q, N/q] to this rank's block of W = X^T Y. x [M/q, K/q] and y [M/q, N/q] are this
// rank's blocks of X and Y.
void summa_product_tn(const CommGrid *g, Tensor w, Tensor x, Tensor y, SummaCut k) {
    for (size_t l = 0; l < g->cols; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        size_t width = range_size(summa_range(k, g->cols, l));
        Tensor x_l = summa_panel(&panels, g->col == l, x, x.rows, width); // X(i,l)
        Tensor w_l = summa_panel(&panels, g->row == l, w, width, w.cols); // dW(l,j)
        comm_broadcast(g->in_row, x_l, l); // M/q * K/q elements from column l to the row
        op_matmul_tn(w_l, x_l, y);         // a partial sum: over the rank's M/q tokens
        comm_reduce(g->in_col, w_l, l);    // K/q * N/q elements from the column to row l
        arena_free(&panels);
    }
}

// ------------------------------------------------- a linear layer: p[0] its weights, p[1] its bias
// The bias [N] is cut by columns. Row 0 holds the bias and sends the bias down the columns.
// Backward sums the bias's gradient up the columns, back to row 0.

void summa_linear_forward(const CommGrid *g, SummaCut k, Tensor y, Tensor x, const Param *p) {
    summa_product(g, y, x, p[0].w, k);
    Arena panels = arena(MEM_COMMUNICATION);
    Tensor bias = summa_panel(&panels, g->row == 0, p[1].w, 1, y.cols);
    comm_broadcast(g->in_col, bias, 0); // N/q elements from row 0, which holds the bias
    op_add_bias(y, y, bias);            // once, because each element of Y is on one rank
    arena_free(&panels);
}

void summa_linear_backward(const CommGrid *g, SummaCut k, Tensor dx, Tensor x, Tensor dy,
                           Param *p) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dw = tensor_like(&scratch, p[0].g); // partial sums have the element type of gradients
    Tensor db = tensor_shaped(&scratch, tensor_shape(1, dy.cols, p[0].g.element));
    summa_product_tn(g, dw, x, dy, k);
    param_add_gradient(&p[0], dw);
    op_sum_rows(db, dy);           // a partial sum: over this rank's tokens
    comm_reduce(g->in_col, db, 0); // N/q elements from the column to row 0
    if (g->row == 0) param_add_gradient(&p[1], db);
    summa_product_nt(g, dx, dy, p[0].w, k);
    arena_free(&scratch);
}
