// ranks: 8
// level: extra
// question: If each of q x q x q ranks holds its own part of X, W and Y, what must it send for Y = X W?
// vary: B 5..11, T 2..4, K 9..16, N 8..13, ranks 8
//
// Holds: each of t = q^3 ranks (layer, row, col) holds 1/q^3 of every matrix but wpe, of the
//     matrix's gradient and optimizer state, and of the activations. A rank holds 1/q of wpe and of
//     each bias and gain. The q^2 ranks of a plane hold the same elements of these tensors.
// Sends: forward of a linear layer all-gathers X along the column and W along the depth, then
//     reduce-scatters Y along the row. Backward makes a reduce-scatter of the gradient for each of
//     these all-gathers, and an all-gather of the gradient for the reduce-scatter. A step
//     all-reduces the gradients of vectors and of wpe over a plane.
// Saves: matrices and activations are divided by q^3. The gathered X and W stay for backward
//     (divided by q^2), or backward gathers them again.
// Costs: per linear layer a rank sends 2(q-1)/q^3 (|X| + |W| + |Y|) elements, where |X| is the
//     number of elements of X. Per block a rank sends (q-1)/q^3 (32 BTC + 24 C^2). If backward
//     gathers again, X and W have the factor 3 instead of 2, and a block has 39 BTC + 36 C^2. In 1D
//     a rank sends 8 BTC (t-1)/t per block and holds all of X. If the gathered X and W stay, 3D
//     sends less than 1D for more than BT = 3 C/(q^2+q-3) tokens per micro-batch. Y, dX and dW must
//     equal those of the unsplit product within rounding.
// 3D tensor parallelism: Bian et al. 2021, section 3. (The paper stores vectors on a diagonal and
// broadcasts them.) Left out: overlap. cube_block.c and cube_model.c make a GPT of such linear
// layers.
//
// The products of Y = X W form a cube: X[m,k] W[k,n] is the point (m, k, n). The cube is cut in q x
// q x q smaller cubes, one per rank. A rank's cube reads a face of X and a face of W and makes sums
// of Y. Each face is q times as large as the part that the rank holds:
//
//     x [M/q^2, K/q]  --all-gather, column-->    X [M/q, K/q]     column: ranks that differ in row
//     w [K/q^2, N/q]  --all-gather, depth-->     W [K/q, N/q]     depth: ranks that differ in layer
//     X W [M/q, N/q]  --reduce-scatter, row-->   y [M/q^2, N/q]   row: ranks that differ in col
//
// The rows of x are cut over layer, then row; the columns of x over col. The rows of y are cut over
// layer, then col; the columns of y over row. So row and col swap with each linear layer. After two
// linear layers y has the layout of x again, and the residual path can add x and y.
#include "03_tensor_parallel/cube_layers.h"

// ---------------------------------------------------------------- the layout of an activation

CubeLayout cube_layout(const Cube *c, const Batch *b) {
    const CommGrid *g = &c->grid; // in_col: the ranks of one column
    return (CubeLayout){ .rows = g->in_col,
                         .cols = g->in_row,
                         .layers = g->in_depth,
                         .B = range_size(shard_range(b->B, g->depth, g->layer)),
                         .T = b->T };
}
CubeLayout cube_swapped(CubeLayout l) {
    CubeLayout y = l;
    y.rows = l.cols; // the reduce-scatter along l.cols cuts the rows of y
    y.cols = l.rows; // w is cut along l.rows, and so are the columns of y
    return y;
}
Range cube_sequences(CubeLayout l, size_t B) {
    Range layer = shard_range(B, l.layers->size, l.layers->rank);
    Range own = shard_range(range_size(layer), l.rows->size, l.rows->rank);
    return (Range){ layer.lo + own.lo, layer.lo + own.hi };
}

Tensor cube_gather(Comm *axis, Arena *a, size_t n, size_t positions, Tensor part) {
    const size_t row = positions * part.cols;
    Tensor whole = tensor_shaped(a, tensor_shape(n * positions, part.cols, part.element));
    comm_all_gather_rows(axis, tensor_reshape(whole, n, row),
                         tensor_reshape(part, part.rows / positions, row));
    return whole;
}
void cube_scatter(Comm *axis, size_t n, Tensor part, Tensor sum) {
    size_t positions = n ? sum.rows / n : 1, row = positions * sum.cols;
    comm_reduce_scatter_rows(axis, tensor_reshape(part, part.rows / positions, row),
                             tensor_reshape(sum, n, row));
}

// ---------------------------------------------------------------- y = x w

// Gathers the operands of y = x w. The gathered X has all rows of the rank's layer of the cube, and
// K/q columns. The gathered W has the K/q rows that these columns multiply. A rank holds 1/q of the
// gathered X and W and receives the rest, (q-1)/q of [M/q, K/q] and of [K/q, N/q].
CubeOperands cube_operands(CubeLayout at, Arena *a, Tensor x, Tensor w) {
    return (CubeOperands){ .x = cube_gather(at.rows, a, at.B, at.T, x),
                           .w = cube_gather(at.layers, a, x.cols, 1, w) };
}

void cube_forward(CubeLayout at, Tensor y, CubeOperands o) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor sum = tensor_shaped(&scratch, tensor_shape(o.x.rows, o.w.cols, y.element));
    op_matmul(sum, o.x, o.w);            // [M/q, N/q]: a partial sum over K/q columns of X
    cube_scatter(at.cols, at.B, y, sum); // adds the partial sums; sends (q-1)/q of [M/q, N/q]
    arena_free(&scratch);
}

// Sets dx, and adds to the gradient of w. dX = dY W^T is a sum over the columns of Y, which are cut
// over at.rows. dW = X^T dY is a sum over all rows, which are cut over at.layers. Both products
// read the gathered dY [M/q, N/q].
void cube_backward(CubeLayout at, Tensor dx, Param *w, Tensor dy, CubeOperands o) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dX = tensor_like(&scratch, o.x);
    // The partial sums of dW have the element type of gradients, which may differ from that of w.
    Tensor dW = tensor_shaped(&scratch, tensor_shape(o.w.rows, o.w.cols, w->g.element));
    Tensor dw = tensor_like(&scratch, w->g);
    // EXERCISE 03.11a (4 points): backward of y = x w. dy [M/q^2, N/q] has the layout of y. o.x
    // [M/q, K/q] and o.w [K/q, N/q] are gathered. Compute dx [M/q^2, K/q] in the layout of x, and
    // dw [K/q^2, N/q]. dX [M/q, K/q] and dW [K/q, N/q] are room for the partial sums. You need one
    // cube_gather, two products (op_matmul_nt(c, a, b) is c = a b^T, op_matmul_tn(c, a, b) is c =
    // a^T b) and two cube_scatter. Along which axis does each of the three communicate?
    Tensor dY = cube_gather(at.cols, &scratch, at.B, at.T, dy); // [M/q, N/q]: receives (q-1)/q
    op_matmul_nt(dX, dY, o.w);                // a partial sum over N/q columns of dY
    cube_scatter(at.rows, at.B, dx, dX);      // sends (q-1)/q of dX
    op_matmul_tn(dW, o.x, dY);                // a partial sum over the layer's rows
    cube_scatter(at.layers, dW.rows, dw, dW); // sends (q-1)/q of dW
    // END
    param_add_gradient(w, dw);
    arena_free(&scratch);
}
