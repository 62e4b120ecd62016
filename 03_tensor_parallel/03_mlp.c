// ranks: 4
// level: core
// question: How can two products, one after the other, be split with one communication in forward, one in backward?
//
// Holds:  of the MLP Y = GELU(X A + a) B + b each rank has A [C, F/t], a [F/t], B [F/t, C], and all
//         of b [C]. X, Y, dX and dY [M, C] are whole.
// Sends:  forward all-reduces Y, and backward all-reduces dX. In each all-reduce a rank sends
//         2 (t-1) ceil(M C/t) elements.
// Saves:  each rank has 1/t of 2 C F + F parameters, 2 M F kept elements and 12 M C F FLOPs.
// Costs:  two all-reduces per step, exposed. Each rank keeps all of b and X.
// The numbers hold for GELU, M tokens, C columns of X, F hidden columns and t ranks. Y, dX and the
// gradients must equal the unsplit MLP's within rounding. Shoeybi et al. 2019, section 3. Left out:
// norms and the residual path (06_transformer.c).
#include "03_tensor_parallel/tensor_parallel.h"

// Cuts the MLP of a Transformer, Y = GELU(X A + a) B + b. A is cut by columns and B by rows, by the
// same range. So a rank's rows of B multiply exactly the hidden columns that this rank computes,
// and nothing is sent between the two products. With SwiGLU (Shazeer 2020) A is gate | up, two
// blocks [C, F]. The range cuts each block, because hidden column i is silu(gate i) times up i.
void tensor_parallel_mlp_cut(Param *p, Range hidden) {
    column_parallel_cut(&p[MLP_A], hidden);      // [C, F/t]
    column_parallel_cut(&p[MLP_A_BIAS], hidden); // [F/t]
    row_parallel_cut(&p[MLP_B], hidden);         // [F/t, C]; MLP_B_BIAS [C] is not cut
}

void tensor_parallel_mlp_forward(Comm *tp, Param *p, Tensor y, Tensor x, Saved *s) {
    size_t M = x.rows;
    size_t F = p[MLP_B].w.rows;                // F/t, this rank's hidden columns
    saved_tensor(s, S_FC, M, p[MLP_A].w.cols); // [M, F/t]; SwiGLU: [M, 2 F/t]
    saved_tensor(s, S_ACT, M, F);
    Tensor h = s->t[S_FC];
    Tensor act = s->t[S_ACT];

    column_parallel_forward(h, x, &p[MLP_A], &p[MLP_A_BIAS]); // h_i = X A_i + a_i
    op_activation(act, h);                                    // element by element: sends nothing
    linear(y, act, &p[MLP_B]);                                // GELU(h_i) B_i
    // Y = GELU(h) B sums over all F rows of B. Each rank has GELU(h_i) B_i, the partial sum over
    // its own F/t columns of h.
    comm_all_reduce(tp, y);             // [M, C]
    op_add_bias(y, y, p[MLP_B_BIAS].w); // after the sum, because b counts once
}

void tensor_parallel_mlp_backward(Comm *tp, Param *p, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dh = tensor_like(&scratch, s->t[S_FC]);

    // dY is whole on every rank. So dact_i = dY B_i^T and the gradient of B_i are finished, and
    // nothing is sent.
    Tensor dact = tensor_col_range(dh, 0, s->t[S_ACT].cols); // GELU: all of dh; SwiGLU: gate
    row_parallel_backward(dact, s->t[S_ACT], dy, &p[MLP_B], &p[MLP_B_BIAS]);
    op_activation_backward(dh, s->t[S_FC], dact);
    op_matmul_nt(dx, dh, p[MLP_A].w);                   // dh_i A_i^T
    linear_gradients(&p[MLP_A], &p[MLP_A_BIAS], x, dh); // X^T dh_i: finished, because X is whole
    // dX = dh A^T sums over all F columns of A. Each rank has dh_i A_i^T, the partial sum over its
    // own F/t columns.
    comm_all_reduce(tp, dx); // [M, C]
    arena_free(&scratch);
}
