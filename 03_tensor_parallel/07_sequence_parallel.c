// ranks: 4
// level: core
// question: What tensor parallelism keeps whole on every rank, can it be cut too, without sending more?
// vary: SEQUENCES 3..5, MICRO_BATCHES 2..3, vocab 50..70
//
// Holds: 1/t of every matrix, as 06_transformer: attention by heads, the MLP by hidden columns, wte
//     by entries. Of M = bs rows, rank i of t has shard_range(M, t, i) wherever the work is row by
//     row: norms, dropout, residual paths. Matrix products read all M rows.
// Sends: per block forward 2 all-gathers and 2 reduce-scatters of M h elements, backward the same;
//     KEEP_SHARD: 2 more all-gathers in backward. Each sends (t-1)/t of its elements. Per step one
//     all-reduce of 6h elements per block and of 2h for the last norm: gradients of a rank's rows.
// Saves: of kept activations, bsh(4 + 4/h) elements per block become bsh(4 + 4/h)/t, or with
//     KEEP_WHOLE bsh(2 + 2/t + 4/(ht)).
// Costs: sent per block and micro-batch 8 bsh(t-1)/t elements, as tensor parallelism does, or with
//     KEEP_SHARD 10 bsh(t-1)/t.
// Korthikanti et al. 2022, section 4.2.2. Left out: to hide backward's second all-gather behind the
// product for dX.
//
//   norm: M/t rows | all-gather | A by columns, GELU, B by rows: M rows | reduce-scatter | + x: M/t
//
// The all-reduce of 06_transformer is a reduce-scatter and an all-gather. Here the two stand at the
// two ends of a region in which all rows are present. Its embedding and head: sequence_layers.c.
#include "03_tensor_parallel/sequence_layers.h"

// ---------------------------------------------------------------- the two ends of a region
// Forward, before A. A rank multiplies all rows with its columns of A, and it has its own rows: it
// gathers the others'. (The paper's g.)
void sequence_enter(Comm *tp, Tensor whole, Tensor own) { comm_all_gather_rows(tp, whole, own); }
// Backward, after dh_i A_i^T. That is a partial sum of dX, over the rank's columns of A, in all
// rows; the norm's backward needs the finished sum of the rank's own rows only.
void sequence_enter_backward(Comm *tp, Tensor down, Tensor dpartial) {
    comm_reduce_scatter_rows(tp, down, dpartial);
}
// Forward, after B. h_i B_i is a partial sum of Y in all rows; bias, dropout and the residual path
// need the finished sum of the rank's own rows only. (The paper's g with a bar.)
void sequence_leave(Comm *tp, Tensor own, Tensor partial) {
    comm_reduce_scatter_rows(tp, own, partial);
}
// Backward, before B. dB_i = h_i^T dY and dh_i = dY B_i^T read dY in all rows, because each rank
// added to every row of Y; a rank has dY of its own rows.
void sequence_leave_backward(Comm *tp, Tensor dwhole, Tensor down) {
    comm_all_gather_rows(tp, dwhole, down);
}

// ---------------------------------------------- block: x + attention(norm(x)), then + mlp(norm(.))
// x, middle, y and their gradients are [M/tp, C]. Where 06_transformer.c calls lessons 03 and 04,
// which end in an all-reduce, the products stand here, between enter and leave.
static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Comm *tp = l->comm;
    Param *p = l->units[0]->params;
    AttentionHeads heads = layer_heads(l, b);
    size_t M = b->B * b->T, C = x.cols, F = p[FC_W].w.cols;        // F: of this rank, 4C/tp
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor partial = tensor_new(&scratch, M, C);        // all rows, summed over this rank's columns

    SequenceInput norm = sequence_input(l, b, s, S_LN1, &scratch);
    saved_tensor(s, S_STATS1, x.rows, 2);
    op_layer_norm(norm.own, s->t[S_STATS1], x, p[LN1_GAIN].w, p[LN1_BIAS].w);
    sequence_enter(tp, norm.whole, norm.own);            // all-gather of M*C: q, k, v need all rows
    saved_tensor(s, S_QKV, M, p[QKV_W].w.cols);            // [M, 3C/tp]
    saved_tensor(s, S_MIX, M, p[PROJ_W].w.rows);           // [M, C/tp]
    column_parallel_forward(s->t[S_QKV], norm.whole, &p[QKV_W], &p[QKV_B]);
    attention_forward(&heads, s);
    linear(partial, s->t[S_MIX], &p[PROJ_W]);
    saved_tensor(s, S_MIDDLE, x.rows, C);
    Tensor middle = s->t[S_MIDDLE];                        // [M/tp, C]
    sequence_leave(tp, middle, partial);                  // reduce-scatter of M*C: sums of own rows
    op_add_bias(middle, middle, p[PROJ_B].w);              // once: no other rank has these rows
    op_dropout(middle, middle, sequence_dropout(l, b, SITE_MIDDLE));
    op_add(middle, x, middle);

    norm = sequence_input(l, b, s, S_LN2, &scratch);
    saved_tensor(s, S_STATS2, x.rows, 2);
    op_layer_norm(norm.own, s->t[S_STATS2], middle, p[LN2_GAIN].w, p[LN2_BIAS].w);
    sequence_enter(tp, norm.whole, norm.own);              // all-gather of M*C: FC needs all rows
    saved_tensor(s, S_FC, M, F);
    saved_tensor(s, S_ACT, M, F);
    column_parallel_forward(s->t[S_FC], norm.whole, &p[FC_W], &p[FC_B]);
    op_gelu(s->t[S_ACT], s->t[S_FC]);
    linear(partial, s->t[S_ACT], &p[OUT_W]);
    sequence_leave(tp, y, partial);                       // reduce-scatter of M*C: sums of own rows
    op_add_bias(y, y, p[OUT_B].w);
    op_dropout(y, y, sequence_dropout(l, b, SITE_OUT));
    op_add(y, middle, y);
    arena_free(&scratch);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Comm *tp = l->comm;
    Param *p = l->units[0]->params;
    AttentionHeads heads = layer_heads(l, b);
    size_t M = b->B * b->T, C = x.cols;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_new(&scratch, x.rows, C);                    // of this rank's rows
    Tensor dnorm = tensor_new(&scratch, x.rows, C);
    Tensor dmiddle = tensor_new(&scratch, x.rows, C);
    Tensor dwhole = tensor_new(&scratch, M, C);                    // of all rows
    Tensor dh = tensor_new(&scratch, M, s->t[S_FC].cols);
    Tensor dmix = tensor_new(&scratch, M, s->t[S_MIX].cols);
    Tensor dqkv = tensor_new(&scratch, M, s->t[S_QKV].cols);

    // EXERCISE 03.07a (5 points): back through the MLP half. dy [M/tp, C] has my rows; d and dnorm
    // [M/tp, C], dwhole [M, C] and dh [M, 4C/tp] are there to be written, dmiddle [M/tp, C] is the
    // result: the gradient of S_MIDDLE, the residual path included. Add all gradients of LN2, FC
    // and OUT: linear_gradients (bias NULL: of the weights alone), bias_gradient of OUT_B,
    // norm_gradients. S_ACT and S_FC were kept of all rows; sequence_input_again() has the input of
    // FC.
    op_dropout(d, dy, sequence_dropout(l, b, SITE_OUT));
    bias_gradient(&p[OUT_B], d);                                   // of my rows: partial
    sequence_leave_backward(tp, dwhole, d);                     // all-gather of M*C: dY of all rows
    linear_gradients(&p[OUT_W], NULL, s->t[S_ACT], dwhole);        // of all rows: finished
    op_matmul_nt(dh, dwhole, p[OUT_W].w);
    op_gelu_backward(dh, s->t[S_FC], dh);
    Tensor fc_input = sequence_input_again(l, b, s, S_LN2, &scratch);      // KEEP_SHARD: all-gather
    linear_gradients(&p[FC_W], &p[FC_B], fc_input, dh);            // of all rows: finished
    op_matmul_nt(dwhole, dh, p[FC_W].w);                           // a partial sum, of my columns
    sequence_enter_backward(tp, dnorm, dwhole);                   // reduce-scatter of M*C: own rows
    norm_gradients(&p[LN2_GAIN], &p[LN2_BIAS], s->t[S_MIDDLE], s->t[S_STATS2], dnorm);    // partial
    op_layer_norm_backward(dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], p[LN2_GAIN].w, dnorm);
    op_add(dmiddle, dy, dmiddle);
    // END

    op_dropout(d, dmiddle, sequence_dropout(l, b, SITE_MIDDLE));
    bias_gradient(&p[PROJ_B], d);                                  // of this rank's rows: partial
    sequence_leave_backward(tp, dwhole, d);                     // all-gather of M*C: dY of all rows
    linear_gradients(&p[PROJ_W], NULL, s->t[S_MIX], dwhole);
    op_matmul_nt(dmix, dwhole, p[PROJ_W].w);
    attention_backward(&heads, dqkv, dmix, s);
    Tensor qkv_input = sequence_input_again(l, b, s, S_LN1, &scratch);     // KEEP_SHARD: all-gather
    linear_gradients(&p[QKV_W], &p[QKV_B], qkv_input, dqkv);
    op_matmul_nt(dwhole, dqkv, p[QKV_W].w);                       // partial, of this rank's columns
    sequence_enter_backward(tp, dnorm, dwhole);                   // reduce-scatter of M*C: own rows
    norm_gradients(&p[LN1_GAIN], &p[LN1_BIAS], x, s->t[S_STATS1], dnorm);
    op_layer_norm_backward(dx, x, s->t[S_STATS1], p[LN1_GAIN].w, dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

#define BLOCK(text) { .name = text, .output = sequence_shape, .forward = block_forward, \
                      .backward = block_backward, .shed = block_shed, \
                      .rebuild = block_rebuild }
const LayerKind sequence_parallel_block = BLOCK("sequence-parallel block");
const LayerKind sequence_parallel_block_whole =
    BLOCK("sequence-parallel block that keeps gathered inputs");

// ---------------------------------------------------------------- the model
// Parameters are cut as before. Norms, and biases that are added after a sum, have seen this rank's
// rows only, so their gradients are partial: model_partial_sums() adds them over tp once per step.
void sequence_parallel(Model *m, Comm *tp, KeptInput keep) {
    static const int of_rows[] = { LN1_GAIN, LN1_BIAS, PROJ_B, LN2_GAIN, LN2_BIAS, OUT_B };
    bool whole = keep == KEEP_WHOLE;
    tensor_parallel(m, tp);
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (l->kind == &tensor_parallel_embedding) l->kind = &sequence_parallel_embedding;
        if (l->kind == &tensor_parallel_block) {
            l->kind = whole ? &sequence_parallel_block_whole : &sequence_parallel_block;
            for (size_t k = 0; k < sizeof of_rows / sizeof *of_rows; k++)
                l->units[0]->params[of_rows[k]].partial = tp;
        }
        if (l->kind == &tensor_parallel_head) {
            l->kind = whole ? &sequence_parallel_head_whole : &sequence_parallel_head;
            for (size_t k = 0; k < 2; k++) l->units[0]->params[k].partial = tp;
        }
    }
}
