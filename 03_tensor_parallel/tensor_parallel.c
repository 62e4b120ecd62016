// tensor_parallel.c: see tensor_parallel.h. Compare block_forward and block_backward here with those of
// common/model/layer.c: the lines that end in "ALL" are the whole difference.
#include "03_tensor_parallel/tensor_parallel.h"

// ---------------------------------------------------------------- who holds what

void cut_columns(Param *p, Range part) { p->cut = CUT_COLS; p->part = part; }
void cut_rows(Param *p, Range part) { p->cut = CUT_ROWS; p->part = part; }

static void cut_block(Layer *l, Comm *tp) {
    const ModelConfig *c = l->config;
    Param *p = l->units[0]->params;
    size_t D = c->width / c->heads;                                        // columns of one head
    l->heads = shard_range(c->heads, tp->size, tp->rank);
    Range features = {l->heads.lo * D, l->heads.hi * D};                   // of q, of k, of v, and of the heads' output
    Range hidden = shard_range(4 * c->width, tp->size, tp->rank);          // of the MLP
    cut_columns(&p[QKV_W], features); cut_columns(&p[QKV_B], features);    // blocks is 3: q, k, v one by one
    cut_rows(&p[PROJ_W], features);                                        // bias whole: added once, after the sum
    cut_columns(&p[FC_W], hidden);    cut_columns(&p[FC_B], hidden);
    cut_rows(&p[OUT_W], hidden);
    l->kind = &tensor_parallel_block;
}
static void cut_vocabulary(Layer *l, Unit *wte, Comm *tp, const LayerKind *kind) {
    l->vocab = shard_range(l->config->vocab, tp->size, tp->rank);
    cut_rows(&wte->params[0], l->vocab);
    l->kind = kind;
}

void tensor_parallel(Model *m, Comm *tp) {
    REQUIRE(tp->size <= m->config.heads, "%zu tensor-parallel ranks need as many heads; the model has %zu: choose "
            "%zu ranks or fewer, or more --heads", tp->size, m->config.heads, m->config.heads);
    REQUIRE(tp->size <= m->config.vocab, "%zu tensor-parallel ranks need as many words; the vocabulary has %zu: "
            "choose %zu ranks or fewer", tp->size, m->config.vocab, m->config.vocab);
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].inner || m->w.data)
            fault("tensor_parallel() of layer %zu (%s%s): it cuts plain layers, before recompute() and before weights "
                  "are allocated", m->layers[i].number, m->layers[i].kind->name, m->w.data ? ", with weights" : "");
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        l->comm = tp;
        if (l->kind == &layer_embedding) cut_vocabulary(l, l->units[0], tp, &tensor_parallel_embedding);
        else if (l->kind == &layer_head) cut_vocabulary(l, l->units[1], tp, &tensor_parallel_head);
        else cut_block(l, tp);
    }
    // A whole tensor has the same gradient on every rank: only rank 0's copy enters the norm.
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++)
            m->units[i].params[k].counted = m->units[i].params[k].cut != WHOLE || tp->rank == 0;
}

// ---------------------------------------------------------------- block

static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params;
    size_t M = b->B * b->T, C = l->config->width, A = range_size(l->heads) * (C / l->config->heads), F = p[FC_W].w.cols;

    saved_tensor(s, S_LN1, M, C); saved_tensor(s, S_STATS1, M, 2);
    op_layer_norm(s->t[S_LN1], s->t[S_STATS1], x, p[LN1_GAIN].w, p[LN1_BIAS].w);
    saved_tensor(s, S_QKV, M, 3 * A);                                      // [B*T, 3C/tp]: q | k | v of my heads
    linear(s->t[S_QKV], s->t[S_LN1], &p[QKV_W]);
    op_add_bias(s->t[S_QKV], s->t[S_QKV], p[QKV_B].w);
    saved_tensor(s, S_MIX, M, A);                                          // [B*T, C/tp]: my heads side by side
    attention_forward(l, b, s);
    saved_tensor(s, S_MIDDLE, M, C);
    Tensor middle = s->t[S_MIDDLE];
    linear(middle, s->t[S_MIX], &p[PROJ_W]);                               // my rows: a partial sum
    comm_all_reduce(l->comm, middle);                                      // ALL: B*T*C reals
    op_add_bias(middle, middle, p[PROJ_B].w);                              // once, after the sum
    op_dropout(middle, middle, layer_dropout(l, b, SITE_MIDDLE));          // the same mask on every rank
    op_add(middle, x, middle);

    saved_tensor(s, S_LN2, M, C); saved_tensor(s, S_STATS2, M, 2);
    op_layer_norm(s->t[S_LN2], s->t[S_STATS2], middle, p[LN2_GAIN].w, p[LN2_BIAS].w);
    saved_tensor(s, S_FC, M, F); saved_tensor(s, S_ACT, M, F);             // [B*T, 4C/tp] each
    linear(s->t[S_FC], s->t[S_LN2], &p[FC_W]);                             // my columns: nothing to say
    op_add_bias(s->t[S_FC], s->t[S_FC], p[FC_B].w);
    op_gelu(s->t[S_ACT], s->t[S_FC]);
    linear(y, s->t[S_ACT], &p[OUT_W]);                                     // my rows: a partial sum
    comm_all_reduce(l->comm, y);                                           // ALL: B*T*C reals
    op_add_bias(y, y, p[OUT_B].w);
    op_dropout(y, y, layer_dropout(l, b, SITE_OUT));
    op_add(y, middle, y);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params;
    size_t M = b->B * b->T, C = l->config->width;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_new(&scratch, M, C), dnorm = tensor_new(&scratch, M, C), dmiddle = tensor_new(&scratch, M, C);
    Tensor dfc = tensor_new(&scratch, M, s->t[S_FC].cols);
    Tensor dmix = tensor_new(&scratch, M, s->t[S_MIX].cols), dqkv = tensor_new(&scratch, M, s->t[S_QKV].cols);

    op_dropout(d, dy, layer_dropout(l, b, SITE_OUT));
    linear_gradients(&p[OUT_W], &p[OUT_B], s->t[S_ACT], d);
    op_matmul_nt(dfc, d, p[OUT_W].w);
    op_gelu_backward(dfc, s->t[S_FC], dfc);
    linear_gradients(&p[FC_W], &p[FC_B], s->t[S_LN2], dfc);
    op_matmul_nt(dnorm, dfc, p[FC_W].w);                                   // what my columns say about their input
    comm_all_reduce(l->comm, dnorm);                                       // ALL: B*T*C reals
    norm_gradients(&p[LN2_GAIN], &p[LN2_BIAS], s->t[S_MIDDLE], s->t[S_STATS2], dnorm);
    op_layer_norm_backward(dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], p[LN2_GAIN].w, dnorm);
    op_add(dmiddle, dy, dmiddle);                                          // the residual path: already whole

    op_dropout(d, dmiddle, layer_dropout(l, b, SITE_MIDDLE));
    linear_gradients(&p[PROJ_W], &p[PROJ_B], s->t[S_MIX], d);
    op_matmul_nt(dmix, d, p[PROJ_W].w);
    attention_backward(l, b, dqkv, dmix, s);
    linear_gradients(&p[QKV_W], &p[QKV_B], s->t[S_LN1], dqkv);
    op_matmul_nt(dnorm, dqkv, p[QKV_W].w);
    comm_all_reduce(l->comm, dnorm);                                       // ALL: B*T*C reals
    norm_gradients(&p[LN1_GAIN], &p[LN1_BIAS], x, s->t[S_STATS1], dnorm);
    op_layer_norm_backward(dx, x, s->t[S_STATS1], p[LN1_GAIN].w, dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

const LayerKind tensor_parallel_block = { "tensor-parallel block", block_forward, block_backward, block_shed,
                                          block_rebuild };

// ---------------------------------------------------------------- embedding: every rank looks up its own words

static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x; (void)s;
    op_embed_tokens(y, l->units[0]->params[0].w, b->tokens, l->vocab.lo);  // zero rows for words of other ranks
    comm_all_reduce(l->comm, y);                                           // ALL: B*T*C reals; one summand is not zero
    op_add_positions(y, y, l->units[1]->params[0].w, b->T);
    op_dropout(y, y, layer_dropout(l, b, SITE_EMBEDDING));
}
static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x; (void)dx; (void)s;
    embedding_gradients(l, b, dy);                                         // dy is whole: I take my words' rows
}
const LayerKind tensor_parallel_embedding = { "tensor-parallel embedding", embedding_forward, embedding_backward,
                                              NULL, NULL };

// ---------------------------------------------------------------- head: the logits [B*T, V] never meet on one rank
// Three scalars a token are exchanged instead: the largest logit, the target's logit, the sum of exponentials.

static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    size_t M = b->B * b->T;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, M, 1), picked = tensor_new(&scratch, M, 1);
    saved_tensor(s, S_LN, M, l->config->width); saved_tensor(s, S_STATS, M, 2);
    saved_tensor(s, S_LOGITS, M, range_size(l->vocab)); saved_tensor(s, S_SUM, M, 1);  // [B*T, V/tp]

    op_layer_norm(s->t[S_LN], s->t[S_STATS], x, p[0].w, p[1].w);
    op_matmul_nt(s->t[S_LOGITS], s->t[S_LN], wte->w);
    op_row_max(max, s->t[S_LOGITS]);
    comm_all_reduce_max(l->comm, max);                                     // ALL: B*T reals
    op_pick_target(picked, s->t[S_LOGITS], b->targets, l->vocab.lo);
    comm_all_reduce(l->comm, picked);                                      // ALL: B*T reals; one summand is not zero
    op_exp_sum(s->t[S_SUM], s->t[S_LOGITS], max);
    comm_all_reduce(l->comm, s->t[S_SUM]);                                 // ALL: B*T reals
    op_token_loss(y, picked, max, s->t[S_SUM], b->targets);
    arena_free(&scratch);
}

static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dnorm = tensor_new(&scratch, dx.rows, dx.cols);
    Tensor dlogits = s->t[S_LOGITS];
    op_cross_entropy_backward(dlogits, s->t[S_SUM], b->targets, dy, l->vocab.lo);
    linear_gradients(wte, NULL, dlogits, s->t[S_LN]);                      // dwte[V/tp, C]
    op_matmul(dnorm, dlogits, wte->w);
    comm_all_reduce(l->comm, dnorm);                                       // ALL: B*T*C reals
    norm_gradients(&p[0], &p[1], x, s->t[S_STATS], dnorm);
    op_layer_norm_backward(dx, x, s->t[S_STATS], p[0].w, dnorm);
    arena_free(&scratch);
}
const LayerKind tensor_parallel_head = { "tensor-parallel head", head_forward, head_backward, NULL, NULL };
