// ranks: 4
// level: core
// question: How do ranks share one linear layer, and must they communicate in forward or in backward?
// vary: M 4..9, K 8..14, N 8..13
//
// Holds:  by columns, a rank has W [K, N/t], b [N/t], and all of X [M, K]. By rows, a rank has
//         W [K/t, N], all of b, and X [M, K/t].
// Sends:  by columns, backward all-reduces dX. Each rank then sends 2 (t-1) ceil(M K/t) elements.
//         By rows, forward all-reduces Y. Each rank then sends 2 (t-1) ceil(M N/t) elements.
// Saves:  each rank has 1/t of W, of the gradient of W and of the FLOPs; by rows also 1/t of X.
// Costs:  one all-reduce per step, exposed, because nothing is computed meanwhile.
// Shoeybi et al. 2019, section 3. Megatron-LM names the places of these all-reduces f (input of a
// column-parallel layer) and g (output of a row-parallel layer). Left out: a second layer
// (03_mlp.c).
// Outputs and gradients equal the unsplit layer's within rounding, not in every bit. A cut sum is
// added in parts, and the BLAS chooses its order of additions by the sizes (docs/numbers.md).
#include "03_tensor_parallel/tensor_parallel.h"

// linear(y, x, w) computes y = x w. linear_gradients(w, b, x, dy) adds x^T dy to w->g and the sum
// of dy's rows to b->g. The unsplit layers of common/model call these functions, too.

// ---------------------------------------------------------------- column-parallel

void column_parallel_cut(Param *p, Range columns) { p->own_cols = columns; }

// Sets y to this rank's columns of Y. Sends nothing.
void column_parallel_forward(Tensor y, Tensor x, const Param *w, const Param *b) {
    linear(y, x, w);         // [M, N/t] = [M, K] x [K, N/t]: finished columns of Y
    op_add_bias(y, y, b->w); // [N/t]: b is cut as the columns are
}

void column_parallel_backward(Comm *tp, Tensor dx, Tensor x, Tensor dy, Param *w, Param *b) {
    // EXERCISE 03.02a (3 points): backward of a column-parallel layer. dy [M, N/t] is the gradient
    // of this rank's columns. x [M, K] is the whole input. w [K, N/t] and b [N/t] are this rank's
    // parts. Add the gradients of w and b with linear_gradients. Make dx [M, K] the gradient of the
    // whole input, the same on every rank. op_matmul_nt(c, a, b) computes c = a b^T; w->w are the
    // weights. All ranks together need one all-reduce.
    op_matmul_nt(dx, dy, w->w); // [M, K] = [M, N/t] x [K, N/t]^T
    // Megatron-LM starts the all-reduce of dX here, and hides it behind the product for dW, which
    // does not read dX. In this lesson the all-reduce begins after both products, and is exposed.
    linear_gradients(w, b, x, dy); // [K, N/t] = [M, K]^T x [M, N/t]: finished
    // f: dX = dY W^T sums over all N columns of W. Each rank has dY_i W_i^T, a partial sum.
    comm_all_reduce(tp, dx); // of M K elements: each rank sends 2 (t-1) ceil(M K/t)
    // END
}

// Lays the y [M, N/t] of all ranks side by side in whole [M, N] (Megatron-LM's gather_output),
// because the next layer may need all columns. The backward of this gather sends nothing, because
// every rank has the whole gradient, and takes its own columns.
void column_parallel_gather(Comm *tp, Tensor whole, Tensor y) {
    size_t M = y.rows;
    size_t widest = ceil_div(whole.cols, tp->size);
    Arena scratch = arena(MEM_WORKSPACE);
    // Rows i M to (i+1) M - 1 of parts have the columns of rank i. The all-gather cuts `parts` into
    // pieces of equal size, so a rank with fewer columns pads its piece with zeros.
    Tensor parts = tensor_shaped(&scratch, tensor_shape(tp->size * M, widest, y.element));
    tensor_fill(parts, 0);
    Tensor own = tensor_row_range(parts, tp->rank * M, (tp->rank + 1) * M);
    tensor_copy(tensor_col_range(own, 0, y.cols), y);
    comm_all_gather(tp, parts, own); // each rank sends (t-1) M ceil(N/t) elements
    for (size_t i = 0; i < tp->size; i++) {
        Range columns = shard_range(whole.cols, tp->size, i);
        Tensor part = tensor_row_range(parts, i * M, (i + 1) * M);
        tensor_copy(tensor_col_range(whole, columns.lo, columns.hi),
                    tensor_col_range(part, 0, range_size(columns)));
    }
    arena_free(&scratch);
}

// ---------------------------------------------------------------- row-parallel

void row_parallel_cut(Param *p, Range rows) { p->own_rows = rows; }

void row_parallel_forward(Comm *tp, Tensor y, Tensor x, const Param *w, const Param *b) {
    // EXERCISE 03.02b (2 points): forward through a row-parallel layer. x [M, K/t] are this rank's
    // columns of the input. w [K/t, N] are its rows of the weights. b [N] is the whole bias, on
    // every rank. linear() multiplies; op_add_bias adds b->w to every row. Make y [M, N] the whole
    // layer's output, on every rank.
    linear(y, x, w); // [M, N] = [M, K/t] x [K/t, N]
    // g: Y = X W sums over all K rows of W. Each rank has X_i W_i, a partial sum.
    comm_all_reduce(tp, y);  // of M N elements: each rank sends 2 (t-1) ceil(M N/t)
    op_add_bias(y, y, b->w); // [N]: after the sum, because b counts once
    // END
}

// Sets dx, and adds the gradients of w and b. Sends nothing, because every rank has all of dy. So
// the rank's columns of dX and rows of dW are finished. The bias's gradient is the same on every
// rank, so no sum is needed.
void row_parallel_backward(Tensor dx, Tensor x, Tensor dy, Param *w, Param *b) {
    op_matmul_nt(dx, dy, w->w);    // [M, K/t] = [M, N] x [K/t, N]^T
    linear_gradients(w, b, x, dy); // [K/t, N] = [M, K/t]^T x [M, N]
}
