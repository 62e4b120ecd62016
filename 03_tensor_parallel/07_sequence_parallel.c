// ranks: 4
// level: core
// question: Can norms and residual paths be cut too, without sending more?
// vary: SEQUENCES 3..5, MICRO_BATCHES 2..3, vocab 50..70
//
// Holds: each rank has 1/t of every matrix but wpe, as in 06_transformer.c. Rank i of t has
//     shard_range(M, t, i) of the M = B T rows for the operations that work row by row: norms,
//     dropout, residual paths. Matrix products read all M rows.
// Sends: a block makes 2 all-gathers and 2 reduce-scatters of M C elements forward, and as many
//     backward. Embedding and head make one all-gather and one reduce-scatter each. With KEEP_SHARD
//     backward makes 2 more all-gathers per block, and one more in the head. The loss makes three
//     all-reduces of M elements. In each collective a rank sends (t-1)/t of the elements, in an
//     all-reduce twice as many. A step all-reduces the gradients of norms, and of biases that are
//     added after a sum: 6 C elements per block, and 2 C for the last norm. These gradients are
//     partial sums, because each rank has seen only its own rows.
// Saves: with KEEP_SHARD a rank keeps only its own rows of four tensors [M, C], the inputs and
//     outputs of a block's two norms, and 2 statistics per own row and norm. So M C (4 + 4/C)
//     elements become M C (4 + 4/C)/t. With KEEP_WHOLE the norms' outputs are whole:
//     M C (2 + 2/t + 4/(C t)).
// Costs: with KEEP_WHOLE a rank sends 8 M C (t-1)/t elements per block and micro-batch, as many as
//     under tensor parallelism. With KEEP_SHARD a rank sends 10 M C (t-1)/t.
// Loss, gradients and weights must equal those of the unsplit GPT within rounding.
// Korthikanti et al. 2022, section 4.2.2. Left out: hiding the second all-gather of backward behind
// the product for dX.
//
//   norm: M/t rows | all-gather | A by columns, GELU, B by rows: M rows | reduce-scatter | + x: M/t
//
// An all-reduce is a reduce-scatter followed by an all-gather. In 06_transformer.c the all-gather
// follows at once. Here norms and residual paths run between the two collectives, and there every
// rank has only its own rows. sequence_layers.c has the embedding and the head.
#include "03_tensor_parallel/sequence_rows.h"

// -------------------------------------------------------- from own rows to all rows, and back
// In these comments A is a matrix cut by columns and B is a matrix cut by rows, as in the MLP of
// 03_mlp.c: h = X A and Y = GELU(h) B. A_i, h_i and B_i are the parts of rank i.

// Gathers all rows, in forward before A (g of Korthikanti et al. 2022). A rank multiplies all rows
// by its columns of A, but has only its own rows.
void sequence_enter(Comm *tp, Tensor whole, Tensor own) { comm_all_gather_rows(tp, whole, own); }
// Adds the ranks' products dh_i A_i^T, in backward after A. Each product has all rows of dX, but
// sums only over the rank's own columns of A. The norm's backward needs the finished sum, but only
// for the rank's own rows.
void sequence_enter_backward(Comm *tp, Tensor d_own, Tensor dpartial) {
    comm_reduce_scatter_rows(tp, d_own, dpartial);
}
// Adds the ranks' GELU(h_i) B_i, in forward after B (g bar of the same paper). Each product is a
// partial sum of all rows of Y. Bias, dropout and the residual path need the finished sum, but only
// of the rank's own rows.
void sequence_leave(Comm *tp, Tensor own, Tensor partial) {
    comm_reduce_scatter_rows(tp, own, partial);
}
// Gathers all rows of dY, in backward before B. A rank has only its own rows of dY. But dB_i =
// GELU(h_i)^T dY and dact_i = dY B_i^T read all rows, because each rank has added to every row of
// Y.
void sequence_leave_backward(Comm *tp, Tensor dwhole, Tensor d_own) {
    comm_all_gather_rows(tp, dwhole, d_own);
}

// ---------------------------------------------- block: x + attention(norm(x)), then + mlp(norm(.))
// Runs a block. x, middle, y and their gradients are [M/tp, C]. In these shapes tp is t, the number
// of ranks in the group tp. 06_transformer.c calls functions of 03_mlp.c and 04_attention.c, which
// make one all-reduce each. Here the products run between sequence_enter() and sequence_leave().
// sequence_input() gives two tensors of a norm's output. The norm writes norm.own [M/tp, C], and
// the all-gather fills norm.whole [M, C]. KEEP_WHOLE keeps norm.whole for backward. KEEP_SHARD
// keeps norm.own, and in backward sequence_input_again() gathers all rows a second time.
static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Comm *tp = l->comm;
    Param *p = l->units[0]->params;
    AttentionHeads heads = layer_heads(l, b);
    size_t M = b->B * b->T, C = x.cols;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor partial = tensor_shaped(&scratch, hidden_shape(l, b)); // all rows: partial sums

    SequenceInput norm = sequence_input(l, b, s, S_LN1, &scratch);
    normalize(l, &p[LN1_GAIN], norm.own, x, s, S_STATS1);
    sequence_enter(tp, norm.whole, norm.own);    // all-gather of M C: QKV needs all rows
    saved_tensor(s, S_QKV, M, p[QKV_W].w.cols);  // [M, 3C/tp]
    saved_tensor(s, S_MIX, M, p[PROJ_W].w.rows); // [M, C/tp]
    column_parallel_forward(s->t[S_QKV], norm.whole, &p[QKV_W], &p[QKV_B]);
    attention_forward(&heads, s);
    linear(partial, s->t[S_MIX], &p[PROJ_W]);
    saved_tensor(s, S_MIDDLE, x.rows, C);
    Tensor middle = s->t[S_MIDDLE];           // [M/tp, C]
    sequence_leave(tp, middle, partial);      // reduce-scatter of M C: own rows
    op_add_bias(middle, middle, p[PROJ_B].w); // once, because only this rank has these rows
    op_dropout(middle, middle, sequence_dropout(l, b, SITE_MIDDLE));
    op_add(middle, x, middle);

    norm = sequence_input(l, b, s, S_LN2, &scratch);
    normalize(l, &p[LN2_GAIN], norm.own, middle, s, S_STATS2);
    sequence_enter(tp, norm.whole, norm.own);   // all-gather of M C: FC needs all rows
    saved_tensor(s, S_FC, M, p[FC_W].w.cols);   // [M, 4C/tp]; SwiGLU: gate | up
    saved_tensor(s, S_ACT, M, p[OUT_W].w.rows); // [M, 4C/tp]
    column_parallel_forward(s->t[S_FC], norm.whole, &p[FC_W], &p[FC_B]);
    op_activation(s->t[S_ACT], s->t[S_FC]);
    linear(partial, s->t[S_ACT], &p[OUT_W]);
    sequence_leave(tp, y, partial); // reduce-scatter of M C: own rows
    op_add_bias(y, y, p[OUT_B].w);
    op_dropout(y, y, sequence_dropout(l, b, SITE_OUT));
    op_add(y, middle, y);
    arena_free(&scratch);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Comm *tp = l->comm;
    Param *p = l->units[0]->params;
    AttentionHeads heads = layer_heads(l, b);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, x); // d, dnorm, dmiddle: own rows
    Tensor dnorm = tensor_like(&scratch, x);
    Tensor dmiddle = tensor_like(&scratch, x);
    Tensor dwhole = tensor_shaped(&scratch, hidden_shape(l, b)); // dwhole and below: all rows
    Tensor dh = tensor_like(&scratch, s->t[S_FC]);
    Tensor dmix = tensor_like(&scratch, s->t[S_MIX]);
    Tensor dqkv = tensor_like(&scratch, s->t[S_QKV]);

    // EXERCISE 03.07a (5 points): backward of the MLP half. dy [M/tp, C] has this rank's rows.
    // Write dmiddle [M/tp, C], the gradient of S_MIDDLE with the residual path. d and dnorm [M/tp,
    // C], dwhole [M, C] and dh [M, 4C/tp] are free for intermediate results. Add all gradients of
    // LN2, FC and OUT: linear_gradients (bias NULL: weights only), bias_gradient for OUT_B,
    // norm_gradients. S_ACT and S_FC have all rows. sequence_input_again() returns the input of FC.
    op_dropout(d, dy, sequence_dropout(l, b, SITE_OUT));
    bias_gradient(&p[OUT_B], d);                             // own rows: a partial sum
    sequence_leave_backward(tp, dwhole, d);                  // all-gather of M C: dY
    linear_gradients(&p[OUT_W], NULL, s->t[S_ACT], dwhole);  // all rows: finished
    Tensor dact = tensor_col_range(dh, 0, s->t[S_ACT].cols); // with GELU all columns of dh
    op_matmul_nt(dact, dwhole, p[OUT_W].w);
    op_activation_backward(dh, s->t[S_FC], dact);
    Tensor fc_input = sequence_input_again(l, b, s, S_LN2, &scratch); // KEEP_SHARD: all-gather
    linear_gradients(&p[FC_W], &p[FC_B], fc_input, dh);               // all rows: finished
    op_matmul_nt(dwhole, dh, p[FC_W].w);                              // own columns: a partial sum
    sequence_enter_backward(tp, dnorm, dwhole);                       // reduce-scatter of M C
    norm_gradients(&p[LN2_GAIN], &p[LN2_BIAS], s->t[S_MIDDLE], s->t[S_STATS2], dnorm); // partial
    normalize_backward(dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], p[LN2_GAIN].w, dnorm);
    op_add(dmiddle, dy, dmiddle);
    // END

    op_dropout(d, dmiddle, sequence_dropout(l, b, SITE_MIDDLE));
    bias_gradient(&p[PROJ_B], d);           // own rows: a partial sum
    sequence_leave_backward(tp, dwhole, d); // all-gather of M C: dY
    linear_gradients(&p[PROJ_W], NULL, s->t[S_MIX], dwhole);
    op_matmul_nt(dmix, dwhole, p[PROJ_W].w);
    attention_backward(&heads, dqkv, dmix, s);
    Tensor qkv_input = sequence_input_again(l, b, s, S_LN1, &scratch); // KEEP_SHARD: all-gather
    linear_gradients(&p[QKV_W], &p[QKV_B], qkv_input, dqkv);
    op_matmul_nt(dwhole, dqkv, p[QKV_W].w);     // own columns: a partial sum
    sequence_enter_backward(tp, dnorm, dwhole); // reduce-scatter of M C
    norm_gradients(&p[LN1_GAIN], &p[LN1_BIAS], x, s->t[S_STATS1], dnorm);
    normalize_backward(dx, x, s->t[S_STATS1], p[LN1_GAIN].w, dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

const LayerKind sequence_parallel_block = { .name = "sequence-parallel block",
                                            .output = sequence_shape,
                                            .forward = block_forward,
                                            .backward = block_backward,
                                            .shed = block_shed,
                                            .rebuild = block_rebuild };
