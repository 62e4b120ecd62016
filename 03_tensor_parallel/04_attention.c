// ranks: 4
// level: core
// question: Why is attention split by whole heads?
//
// Holds:  each rank has H/t heads: W_qkv [C, 3C/t], b_qkv [3C/t], W_O [C/t, C], and all of b_O. X,
//         Y, dX and dY [M, C] are whole, with M = B T tokens.
// Sends:  forward all-reduces Y, and backward all-reduces dX. In each all-reduce a rank sends
//         2 (t-1) ceil(M C/t) elements.
// Saves:  each rank has 1/t of 4 C C + 3 C parameters, of 4 M C + 2 B H T T kept elements (without
//         dropout 4 M C + B H T T), and of the FLOPs.
// Costs:  two all-reduces per step, exposed. Each rank keeps all of b_O and X.
// Y, dX and the gradients must equal the unsplit layer's within rounding, also with dropout,
// because the masks are the same.
// Shoeybi et al. 2019, section 3. Left out: norms and the residual path (06_transformer.c), and a
// cut inside of the heads. Such a cut would have to add the scores q k^T, B H T T elements, over
// the ranks.
#include "03_tensor_parallel/tensor_parallel.h"

// Cuts Y = attention(X W_qkv + b_qkv) W_O + b_O by heads. W_qkv [C, 3C] is W_Q | W_K | W_V, and
// each head owns D columns of each of these matrices. So a rank's columns are three pieces: q, k
// and v of the rank's heads. The model describes W_qkv and b_qkv with p->blocks = 3, and a cut by
// columns cuts each block. With 9 heads and 4 ranks:
//
//      q: head 0 .. 8          k: head 0 .. 8          v: head 0 .. 8
//     [0 0 0 1 1 2 2 3 3]     [0 0 0 1 1 2 2 3 3]     [0 0 0 1 1 2 2 3 3]     the rank of each head
//
// A cut in one piece would give rank 0 only columns of q, and no k or v.
//
// With grouped heads (Ainslie et al. 2023) `ratio` neighbouring heads of q share one head of k and
// v. Then the heads of k and v are cut, and each head of q stays with its head of k and v
// (p->ratio).
void tensor_parallel_attention_cut(Param *p, Range heads, size_t D) {
    size_t ratio = p[ATTENTION_QKV].ratio;                       // GPT-2: 1
    Range keys = { heads.lo / ratio * D, heads.hi / ratio * D }; // columns of k, and of v
    Range features = { heads.lo * D, heads.hi * D };             // columns of q and of the output
    column_parallel_cut(&p[ATTENTION_QKV], keys);                // [C, 3C/t]
    column_parallel_cut(&p[ATTENTION_QKV_BIAS], keys);           // [3C/t]
    row_parallel_cut(&p[ATTENTION_O], features);                 // [C/t, C]; b_O [C] is not cut
}

void tensor_parallel_attention_forward(Comm *tp, const AttentionHeads *h, Param *p, Tensor y,
                                       Tensor x, Saved *s) {
    saved_tensor(s, S_QKV, x.rows, p[ATTENTION_QKV].w.cols); // [M, 3C/t]: q | k | v
    saved_tensor(s, S_MIX, x.rows, p[ATTENTION_O].w.rows);   // [M, C/t]: output of own heads
    column_parallel_forward(s->t[S_QKV], x, &p[ATTENTION_QKV], &p[ATTENTION_QKV_BIAS]);
    // Scores, softmax and output of one head read no other head. So common/model's attention runs
    // on this rank's heads alone, and sends nothing. A dropout mask depends on the head's number in
    // the whole layer (h->heads). So each head has the same mask as in the unsplit layer.
    attention_forward(h, s);
    linear(y, s->t[S_MIX], &p[ATTENTION_O]);
    // Y = O W_O, where O is the output of all heads, sums over all C rows of W_O. Each rank has the
    // partial sum over the rows of its own heads.
    comm_all_reduce(tp, y);                   // [M, C]
    op_add_bias(y, y, p[ATTENTION_O_BIAS].w); // after the sum, because b_O counts once
}

void tensor_parallel_attention_backward(Comm *tp, const AttentionHeads *h, Param *p, Tensor dx,
                                        Tensor x, Tensor dy, Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dmix = tensor_like(&scratch, s->t[S_MIX]); // [M, C/t]
    Tensor dqkv = tensor_like(&scratch, s->t[S_QKV]); // [M, 3C/t]
    // dY is whole on every rank. So dO_i and the gradient of this rank's rows of W_O are finished.
    row_parallel_backward(dmix, s->t[S_MIX], dy, &p[ATTENTION_O], &p[ATTENTION_O_BIAS]);
    attention_backward(h, dqkv, dmix, s); // head by head: sends nothing
    op_matmul_nt(dx, dqkv, p[ATTENTION_QKV].w);
    linear_gradients(&p[ATTENTION_QKV], &p[ATTENTION_QKV_BIAS], x, dqkv); // finished: X is whole
    // dX = dqkv W_qkv^T sums over all 3C columns. Each rank has the partial sum over its heads'
    // columns.
    comm_all_reduce(tp, dx); // [M, C]
    arena_free(&scratch);
}
