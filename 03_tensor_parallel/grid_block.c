// grid_block.c: computes the block of a GPT on a grid, x + attention(norm(x)) and then +
// mlp(norm(.)). The block's steps are those of the unsplit block in common/model/layer.c. Only
// linear layers (09_summa.c) and norms (grid_layers.c) communicate. x and y are this rank's parts
// [M/q, C/q]: B/q sequences, C/q features.
#include "03_tensor_parallel/grid_layers.h"

static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    const CommGrid *g = summa_grid(l);
    const ModelConfig *c = l->config;
    const Param *p = l->units[0]->params;
    const Batch own = summa_batch(g, b);
    size_t M = x.rows, C = x.cols, F = p[FC_W].w.cols;
    size_t A = range_size(l->heads) * (c->width / c->heads);

    saved_tensor(s, S_LN1, M, C);   // [M/q, C/q]
    saved_reals(s, S_STATS1, M, 2); // [M/q, 2]
    summa_norm_forward(l, s->t[S_LN1], s->t[S_STATS1], x, &p[LN1_GAIN]);
    saved_tensor(s, S_QKV, M, 3 * A); // [M/q, 3C/q]
    saved_tensor(s, S_MIX, M, A);     // [M/q, C/q]
    summa_linear_forward(g, summa_by_feature(c), s->t[S_QKV], s->t[S_LN1], &p[QKV_W]);
    AttentionHeads heads = layer_heads(l, &own);
    attention_forward(&heads, s); // whole heads, whole sequences: sends nothing
    saved_tensor(s, S_MIDDLE, M, C);
    Tensor middle = s->t[S_MIDDLE];
    summa_linear_forward(g, summa_by_head(c), middle, s->t[S_MIX], &p[PROJ_W]);
    op_dropout(middle, middle, summa_dropout(l, &own, SITE_MIDDLE));
    op_add(middle, x, middle);

    saved_tensor(s, S_LN2, M, C);
    saved_reals(s, S_STATS2, M, 2);
    summa_norm_forward(l, s->t[S_LN2], s->t[S_STATS2], middle, &p[LN2_GAIN]);
    saved_tensor(s, S_FC, M, F); // [M/q, 4C/q] each
    saved_tensor(s, S_ACT, M, F);
    summa_linear_forward(g, summa_by_feature(c), s->t[S_FC], s->t[S_LN2], &p[FC_W]);
    op_gelu(s->t[S_ACT], s->t[S_FC]);
    summa_linear_forward(g, summa_by_hidden(c), y, s->t[S_ACT], &p[OUT_W]);
    op_dropout(y, y, summa_dropout(l, &own, SITE_OUT));
    op_add(y, middle, y);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    const CommGrid *g = summa_grid(l);
    const ModelConfig *c = l->config;
    Param *p = l->units[0]->params;
    const Batch own = summa_batch(g, b);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, x), dnorm = tensor_like(&scratch, x);
    Tensor dmiddle = tensor_like(&scratch, x);
    Tensor dfc = tensor_like(&scratch, s->t[S_FC]);
    Tensor dmix = tensor_like(&scratch, s->t[S_MIX]);
    Tensor dqkv = tensor_like(&scratch, s->t[S_QKV]);

    op_dropout(d, dy, summa_dropout(l, &own, SITE_OUT));
    summa_linear_backward(g, summa_by_hidden(c), dfc, s->t[S_ACT], d, &p[OUT_W]);
    op_gelu_backward(dfc, s->t[S_FC], dfc);
    summa_linear_backward(g, summa_by_feature(c), dnorm, s->t[S_LN2], dfc, &p[FC_W]);
    summa_norm_backward(l, dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], dnorm, &p[LN2_GAIN]);
    op_add(dmiddle, dy, dmiddle); // the residual path

    op_dropout(d, dmiddle, summa_dropout(l, &own, SITE_MIDDLE));
    summa_linear_backward(g, summa_by_head(c), dmix, s->t[S_MIX], d, &p[PROJ_W]);
    AttentionHeads heads = layer_heads(l, &own);
    attention_backward(&heads, dqkv, dmix, s); // sends nothing
    summa_linear_backward(g, summa_by_feature(c), dnorm, s->t[S_LN1], dqkv, &p[QKV_W]);
    summa_norm_backward(l, dx, x, s->t[S_STATS1], dnorm, &p[LN1_GAIN]);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

// Computes the freed probabilities of attention again, for selective recomputation.
static void rebuild(Layer *l, const Batch *b, Saved *s) {
    const Batch own = summa_batch(summa_grid(l), b);
    AttentionHeads heads = layer_heads(l, &own);
    attention_rebuild(&heads, s);
}

const LayerKind summa_block = { .name = "SUMMA block",
                                .output = summa_features,
                                .forward = block_forward,
                                .backward = block_backward,
                                .shed = block_shed,
                                .rebuild = rebuild };
