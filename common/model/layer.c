// layer.c: holds the unsplit layers, which are the reference of every split layer, and the plain
// walk.
#include "common/model/layer.h"
#include <stdlib.h>
#include <string.h>
#include "common/tensor/random.h"
#include "common/comm/record.h"

enum { KEY_DROPOUT = 2 }; // the purpose of a random number, its first coordinate; unit.c has 1

Saved saved_new(void) {
    return (Saved){ .arena = arena(MEM_ACTIVATIONS), .attention = arena(MEM_ACTIVATIONS) };
}
void saved_free(Saved *s) {
    arena_free(&s->arena);
    arena_free(&s->attention);
}
void saved_tensor(Saved *s, int name, size_t rows, size_t cols) {
    s->t[name] = tensor_shaped(&s->arena, tensor_shape(rows, cols, s->storage));
}
void saved_reals(Saved *s, int name, size_t rows, size_t cols) {
    s->t[name] = tensor_new(&s->arena, rows, cols);
}

// ---- pieces ----

Shape hidden_shape(const Layer *l, const Batch *b) {
    return stored_shape(l, b->B * b->T, l->config->width);
}
Shape logits_shape(const Layer *l, const Batch *b) {
    return tensor_shape(b->B * b->T, range_size(l->vocab), REALS);
}
Shape token_shape(const Layer *l, const Batch *b) {
    (void)l;
    return tensor_shape(b->B * b->T, 1, REALS);
}

Dropout layer_dropout(const Layer *l, const Batch *b, int site) {
    uint64_t key = random_key(random_key(l->config->seed, KEY_DROPOUT), b->step);
    key = random_key(random_key(key, l->number), (uint64_t)site);
    return (Dropout){ .key = key,
                      .p = b->training ? l->config->dropout : 0,
                      .T = b->T,
                      .length = l->config->context,
                      .first_sequence = b->first_sequence,
                      .position = b->position };
}

void linear(Tensor y, Tensor x, const Param *w) { op_matmul(y, x, w->w); }

// Returns memory for a contribution to p's gradient. A contribution is computed from zero and added
// once, so its bits do not depend on earlier contributions. The first contribution after zeroing is
// written in place. A later contribution is in reals, so adding it rounds a gradient of 16 bits
// only once.
static Tensor contribution(const Param *p, Arena *scratch) {
    return p->gradient_empty ? p->g : tensor_new(scratch, p->g.rows, p->g.cols);
}
static void add_contribution(Param *p, Tensor c) {
    if (!p->gradient_empty) op_add(p->g, p->g, c);
    p->gradient_empty = false;
}

// Returns a copy of t in s->later, because a deferred gradient of weights needs t after the other
// tensors of s have been freed. The input of the layer is not copied, because the caller of the
// layer keeps this input.
static Tensor kept(Saved *s, Tensor t) {
    if (!t.data || t.data == s->input.data) return t;
    Tensor copy = tensor_like(&s->later, t);
    tensor_copy(copy, t);
    return copy;
}
static void defer(Saved *s, WeightGradient g) {
    if (s->n_deferred == SAVED_GRADIENTS)
        fault("a layer has more than %d weight gradients to defer", SAVED_GRADIENTS);
    g.x = kept(s, g.x);
    g.stats = kept(s, g.stats);
    g.dy = kept(s, g.dy);
    s->deferred[s->n_deferred++] = g;
}

void linear_gradients(Param *w, Param *bias, Tensor x, Tensor dy) {
    if (w->deferred) { // the first half of a backward leaves this gradient to the second half
        defer(w->deferred, (WeightGradient){ .w = w, .bias = bias, .x = x, .dy = dy });
        return;
    }
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dw = contribution(w, &scratch);
    op_matmul_tn(dw, x, dy); // dW[K,N] = x[M,K]^T dy[M,N]
    add_contribution(w, dw);
    arena_free(&scratch);
    if (bias) bias_gradient(bias, dy);
}

void bias_gradient(Param *bias, Tensor dy) {
    if (bias->cols == 0) return; // the family has no such bias
    if (bias->deferred) {
        defer(bias->deferred, (WeightGradient){ .bias = bias, .dy = dy });
        return;
    }
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor db = contribution(bias, &scratch);
    op_sum_rows(db, dy);
    add_contribution(bias, db);
    arena_free(&scratch);
}

void normalize(const Layer *l, const Param norm[2], Tensor y, Tensor x, Saved *s, int stats) {
    const ModelConfig *c = l->config;
    const bool rms = c->norm == NORM_RMS;
    saved_reals(s, stats, x.rows, rms ? 1 : 2);
    if (rms) op_rms_norm(y, s->t[stats], x, norm[0].w, c->norm_eps > 0 ? c->norm_eps : 1e-5);
    else op_layer_norm(y, s->t[stats], x, norm[0].w, norm[1].w);
}
void normalize_backward(Tensor dx, Tensor x, Tensor stats, Tensor gain, Tensor dy) {
    (stats.cols == 1 ? op_rms_norm_backward : op_layer_norm_backward)(dx, x, stats, gain, dy);
}
void norm_gradients(Param *gain, Param *bias, Tensor x, Tensor stats, Tensor dy) {
    if (gain->deferred) {
        defer(gain->deferred, (WeightGradient){ gain, bias, x, stats, dy, .norm = true });
        return;
    }
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dgain = contribution(gain, &scratch), dbias = contribution(bias, &scratch);
    if (bias->cols) op_layer_norm_grads(dgain, dbias, x, stats, dy);
    else op_rms_norm_grads(dgain, x, stats, dy);
    add_contribution(gain, dgain);
    add_contribution(bias, dbias);
    arena_free(&scratch);
}

static void defer_gradients(Layer *l, Saved *s) {
    for (size_t i = 0; i < l->n_units; i++)
        for (size_t k = 0; k < l->units[i]->n_params; k++) l->units[i]->params[k].deferred = s;
}

void layer_defer(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    s->input = x;
    s->later = arena(MEM_ACTIVATIONS);
    defer_gradients(l, s);
    layer_backward(l, b, x, dy, dx, s);
    defer_gradients(l, NULL);
    saved_free(s); // only the first half needs q, k, v, scores, ...
    s->arena = s->later;
}
void layer_deferred(Layer *l, const Batch *b, Tensor x, Saved *s) {
    (void)l;
    (void)b;
    (void)x;
    for (size_t i = 0; i < s->n_deferred; i++) {
        const WeightGradient *g = &s->deferred[i];
        if (g->norm) norm_gradients(g->w, g->bias, g->x, g->stats, g->dy);
        else if (!g->w) bias_gradient(g->bias, g->dy);
        else linear_gradients(g->w, g->bias, g->x, g->dy);
    }
}

void layer_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    if (l->inner && !l->kind->backward_inputs)
        fault("layer %zu (%s): its backward has no halves: choose a schedule of whole backwards",
              l->number, l->kind->name);
    (l->kind->backward_inputs ? l->kind->backward_inputs : layer_defer)(l, b, x, dy, dx, s);
}
void layer_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s) {
    (l->kind->backward_weights ? l->kind->backward_weights : layer_deferred)(l, b, x, s);
}

// ---- embedding: y = dropout(wte[token] + wpe[position]) ----

static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x;
    (void)s; // nothing is kept, because backward reads the tokens again
    op_embed_tokens(y, l->units[0]->params[0].w, b->tokens, l->vocab.lo);
    op_add_positions(y, y, l->units[1]->params[0].w, b->position);
    op_dropout(y, y, layer_dropout(l, b, SITE_EMBEDDING));
}

void embedding_gradients(Layer *l, const Batch *b, Tensor dy) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, dy);
    op_dropout(d, dy, layer_dropout(l, b, SITE_EMBEDDING));
    Param *wte = &l->units[0]->params[0], *wpe = &l->units[1]->params[0];
    Tensor dwte = contribution(wte, &scratch), dwpe = contribution(wpe, &scratch);
    op_embed_tokens_grad(dwte, b->tokens, d, l->vocab.lo);
    op_add_positions_grad(dwpe, b->position, d);
    add_contribution(wte, dwte);
    add_contribution(wpe, dwpe);
    arena_free(&scratch);
}

static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x;
    (void)dx;
    (void)s; // tokens have no gradient
    embedding_gradients(l, b, dy);
}

void embedding_backward_inputs(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)l;
    (void)b;
    (void)x;
    (void)dx;
    s->t[S_DY] = tensor_like(&s->arena, dy);
    tensor_copy(s->t[S_DY], dy);
}
void embedding_backward_weights(Layer *l, const Batch *b, Tensor x, Saved *s) {
    (void)x;
    embedding_gradients(l, b, s->t[S_DY]);
}

const LayerKind layer_embedding = {
    .name = "embedding",
    .output = hidden_shape,
    .forward = embedding_forward,
    .backward = embedding_backward,
    .backward_inputs = embedding_backward_inputs,
    .backward_weights = embedding_backward_weights,
};

// ---- attention, over the local heads ----

static double rotary_base(const ModelConfig *c) {
    if (c->positions == POSITIONS_LEARNED) return 0;
    return c->rope_theta > 0 ? c->rope_theta : 10000;
}
AttentionHeads layer_heads(const Layer *l, const Batch *b) {
    Dropout d = layer_dropout(l, b, SITE_ATTENTION);
    return (AttentionHeads){ .B = b->B,
                             .T = b->T,
                             .D = l->config->width / l->config->heads,
                             .heads = l->heads,
                             .ratio = config_head_ratio(l->config),
                             .theta = rotary_base(l->config),
                             .key = d.key,
                             .drop = d.p,
                             .first_sequence = b->first_sequence,
                             .position = b->position,
                             .kind = l->attention,
                             .cp = l->cp,
                             .length = l->config->context };
}

Tensor attention_part(const AttentionHeads *h, Tensor qkv, size_t which) {
    size_t A = range_size(h->heads) * h->D, K = attention_key_columns(h);
    if (which == 0) return tensor_col_range(qkv, 0, A);
    return tensor_col_range(qkv, A + (which - 1) * K, A + which * K);
}
Tensor attention_repeat(const AttentionHeads *h, Tensor keys, Arena *scratch) {
    if (attention_ratio(h) == 1) return keys;
    Tensor wide =
        tensor_shaped(scratch, tensor_shape(keys.rows, keys.cols * h->ratio, keys.element));
    op_repeat_heads(wide, keys, h->D);
    return wide;
}
Tensor attention_fold(const AttentionHeads *h, Tensor wide, Arena *scratch) {
    if (attention_ratio(h) == 1) return wide;
    Tensor keys = tensor_new(scratch, wide.rows, wide.cols / h->ratio);
    op_fold_heads(keys, wide, h->D);
    return keys;
}
static real score_scale(const AttentionHeads *h) {
    return (real)(1 / __builtin_sqrt((double)h->D));
}
static HeadsPlace heads_place(const AttentionHeads *h) {
    return (HeadsPlace){ h->B, range_size(h->heads), h->position, h->position };
}
static void dropped(const AttentionHeads *h, Tensor y, Tensor x) {
    op_dropout_heads(y, x, h->key, h->drop, h->first_sequence, h->heads.lo, heads_place(h));
}

// Computes S_PROBS and S_DROPPED from S_QKV.
static void probabilities(const AttentionHeads *h, Saved *s) {
    size_t heads = range_size(h->heads);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor keys = attention_repeat(h, attention_part(h, s->t[S_QKV], 1), &scratch);
    Shape square = tensor_shape(h->B * heads * h->T, h->T, s->storage); // [B*H/tp*T, T]
    s->t[S_PROBS] = tensor_shaped(&s->attention, square);
    // The scores are reals. The probabilities overwrite the scores, unless the probabilities have
    // 16 bits.
    Tensor scores = s->t[S_PROBS];
    if (square.element != REALS) scores = tensor_new(&scratch, square.rows, square.cols);
    op_heads_scores(scores, attention_part(h, s->t[S_QKV], 0), keys, h->B, heads);
    op_causal_softmax(s->t[S_PROBS], scores, score_scale(h), heads_place(h));
    arena_free(&scratch);
    s->t[S_DROPPED] = s->t[S_PROBS]; // without dropout the two names are the same tensor
    if (h->drop == 0) return;
    s->t[S_DROPPED] = tensor_shaped(&s->attention, square);
    dropped(h, s->t[S_DROPPED], s->t[S_PROBS]);
}

static void plain_forward(const AttentionHeads *h, Saved *s) {
    probabilities(h, s);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor values = attention_repeat(h, attention_part(h, s->t[S_QKV], 2), &scratch);
    op_heads_mix(s->t[S_MIX], s->t[S_DROPPED], values, h->B, range_size(h->heads));
    arena_free(&scratch);
}

// Computes `to` [B*T, K] = p^T `with`, summed over the heads of each group. Without groups nothing
// is summed.
static void to_keys(const AttentionHeads *h, Tensor to, Tensor p, Tensor with) {
    Arena scratch = arena(MEM_WORKSPACE);
    bool grouped = attention_ratio(h) > 1;
    Tensor wide = grouped ? tensor_new(&scratch, to.rows, with.cols) : to;
    op_heads_mix_t(wide, p, with, h->B, range_size(h->heads));
    if (grouped) op_fold_heads(to, wide, h->D);
    arena_free(&scratch);
}

static void plain_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    size_t heads = range_size(h->heads);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor q = attention_part(h, s->t[S_QKV], 0),
           k = attention_repeat(h, attention_part(h, s->t[S_QKV], 1), &scratch),
           v = attention_repeat(h, attention_part(h, s->t[S_QKV], 2), &scratch);
    Tensor dp = tensor_new(&scratch, s->t[S_PROBS].rows, h->T);
    to_keys(h, attention_part(h, dqkv, 2), s->t[S_DROPPED], dmix); // dV = dropout(P)^T dO
    op_heads_scores(dp, dmix, v, h->B, heads);                     // d(dropout(P)) = dO V^T
    dropped(h, dp, dp);
    op_causal_softmax_backward(dp, s->t[S_PROBS], dp, score_scale(h), heads_place(h)); // dS
    op_heads_mix(attention_part(h, dqkv, 0), dp, k, h->B, heads);                      // dQ = dS K
    to_keys(h, attention_part(h, dqkv, 1), dp, q); // dK = dS^T Q
    arena_free(&scratch);
}

static const AttentionKind plain = {
    .name = "plain", .forward = plain_forward, .backward = plain_backward, .rebuild = probabilities
};
static const AttentionKind *kind_of(const AttentionHeads *h) { return h->kind ? h->kind : &plain; }

// Rotates queries and keys by an angle that grows with their position (Su et al. 2021). Then the
// score of a query and a key depends on the distance of their positions, but not on the two
// positions themselves. Only this function rotates: in forward q and k, right after q|k|v is
// computed, and in backward the gradients of q and k. So every kind of attention reads rotated
// rows, on any rank.
static void rotate(const AttentionHeads *h, Tensor qkv, int direction) {
    size_t turned = range_size(h->heads) * h->D + attention_key_columns(h);
    if (h->theta > 0)
        op_rotate(tensor_col_range(qkv, 0, turned), h->D, h->position, h->T, h->theta, direction);
}
void attention_forward(const AttentionHeads *h, Saved *s) {
    rotate(h, s->t[S_QKV], 1);
    kind_of(h)->forward(h, s);
}
// The backward of a rotation multiplies by the transpose, which is the rotation by the opposite
// angle. So direction is -1.
void attention_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    kind_of(h)->backward(h, dqkv, dmix, s);
    // EXERCISE 00.unsplit-c (2 points): backward of the rotation. dqkv is the gradient of the
    // rotated queries and keys, and of the values. Make it the gradient of queries and keys as they
    // were before the rotation.
    rotate(h, dqkv, -1);
    // END
}
void attention_rebuild(const AttentionHeads *h, Saved *s) {
    if (kind_of(h)->rebuild) kind_of(h)->rebuild(h, s);
}

// ---- block: x + attention(norm(x)), then + mlp(norm(.)) ----
// Compare block_forward and block_backward with the block of 03_tensor_parallel/06_transformer.c,
// where a rank has a part of the weights and a block has four all-reduces.

static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params;
    size_t M = b->B * b->T, C = l->config->width, A = range_size(l->heads) * (C / l->config->heads),
           F = p[OUT_W].w.rows;

    saved_tensor(s, S_LN1, M, C);
    normalize(l, &p[LN1_GAIN], s->t[S_LN1], x, s, S_STATS1);
    saved_tensor(s, S_QKV, M, p[QKV_W].w.cols); // q | k | v, in GPT-2 [B*T, 3C]
    linear(s->t[S_QKV], s->t[S_LN1], &p[QKV_W]);
    op_add_bias(s->t[S_QKV], s->t[S_QKV], p[QKV_B].w);
    saved_tensor(s, S_MIX, M, A); // [B*T, C]: the heads side by side
    AttentionHeads heads = layer_heads(l, b);
    attention_forward(&heads, s);
    saved_tensor(s, S_MIDDLE, M, C);
    Tensor middle = s->t[S_MIDDLE];
    linear(middle, s->t[S_MIX], &p[PROJ_W]);
    op_add_bias(middle, middle, p[PROJ_B].w);
    op_dropout(middle, middle, layer_dropout(l, b, SITE_MIDDLE));
    op_add(middle, x, middle);

    saved_tensor(s, S_LN2, M, C);
    normalize(l, &p[LN2_GAIN], s->t[S_LN2], middle, s, S_STATS2);
    saved_tensor(s, S_FC, M, p[FC_W].w.cols); // GPT-2: [B*T, 4C]; SwiGLU: gate | up
    saved_tensor(s, S_ACT, M, F);             // GPT-2: [B*T, 4C]
    linear(s->t[S_FC], s->t[S_LN2], &p[FC_W]);
    op_add_bias(s->t[S_FC], s->t[S_FC], p[FC_B].w);
    op_activation(s->t[S_ACT], s->t[S_FC]);
    linear(y, s->t[S_ACT], &p[OUT_W]);
    op_add_bias(y, y, p[OUT_B].w);
    op_dropout(y, y, layer_dropout(l, b, SITE_OUT));
    op_add(y, middle, y);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, x), dnorm = tensor_like(&scratch, x),
           dmiddle = tensor_like(&scratch, x);
    Tensor dfc = tensor_like(&scratch, s->t[S_FC]);
    Tensor dmix = tensor_like(&scratch, s->t[S_MIX]), dqkv = tensor_like(&scratch, s->t[S_QKV]);

    op_dropout(d, dy, layer_dropout(l, b, SITE_OUT));
    linear_gradients(&p[OUT_W], &p[OUT_B], s->t[S_ACT], d);
    Tensor dact = tensor_col_range(dfc, 0, s->t[S_ACT].cols); // SwiGLU: the half of gate
    op_matmul_nt(dact, d, p[OUT_W].w);
    op_activation_backward(dfc, s->t[S_FC], dact);
    linear_gradients(&p[FC_W], &p[FC_B], s->t[S_LN2], dfc);
    op_matmul_nt(dnorm, dfc, p[FC_W].w);
    norm_gradients(&p[LN2_GAIN], &p[LN2_BIAS], s->t[S_MIDDLE], s->t[S_STATS2], dnorm);
    normalize_backward(dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], p[LN2_GAIN].w, dnorm);
    op_add(dmiddle, dy, dmiddle); // adds the gradient of the residual path

    op_dropout(d, dmiddle, layer_dropout(l, b, SITE_MIDDLE));
    linear_gradients(&p[PROJ_W], &p[PROJ_B], s->t[S_MIX], d);
    op_matmul_nt(dmix, d, p[PROJ_W].w);
    AttentionHeads heads = layer_heads(l, b);
    attention_backward(&heads, dqkv, dmix, s);
    linear_gradients(&p[QKV_W], &p[QKV_B], s->t[S_LN1], dqkv);
    op_matmul_nt(dnorm, dqkv, p[QKV_W].w);
    norm_gradients(&p[LN1_GAIN], &p[LN1_BIAS], x, s->t[S_STATS1], dnorm);
    normalize_backward(dx, x, s->t[S_STATS1], p[LN1_GAIN].w, dnorm);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

void block_shed(Saved *s) { arena_free(&s->attention); }
void block_rebuild(Layer *l, const Batch *b, Saved *s) {
    AttentionHeads heads = layer_heads(l, b);
    attention_rebuild(&heads, s);
}

const LayerKind layer_block = { .name = "block",
                                .output = hidden_shape,
                                .forward = block_forward,
                                .backward = block_backward,
                                .shed = block_shed,
                                .rebuild = block_rebuild };

// ---- head: logits = norm(x) wte^T, or with its own table if untied ----

static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)b;
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    saved_tensor(s, S_LN, x.rows, x.cols);
    normalize(l, p, s->t[S_LN], x, s, S_STATS);
    op_matmul_nt(y, s->t[S_LN], wte->w); // [B*T, V]
}

static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)b;
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dnorm = tensor_like(&scratch, dx);
    linear_gradients(wte, NULL, dy, s->t[S_LN]); // dwte[V,C] = dlogits^T norm(x)
    op_matmul(dnorm, dy, wte->w);
    norm_gradients(&p[0], &p[1], x, s->t[S_STATS], dnorm);
    normalize_backward(dx, x, s->t[S_STATS], p[0].w, dnorm);
    arena_free(&scratch);
}

const LayerKind layer_head = { .name = "head",
                               .output = logits_shape,
                               .input = hidden_shape,
                               .forward = head_forward,
                               .backward = head_backward };

// ---- loss: -log softmax(logits)[target], of every counted token ----

static void loss_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor max = tensor_new(&scratch, x.rows, 1), picked = tensor_new(&scratch, x.rows, 1);
    saved_reals(s, S_SUM, x.rows, 1);
    op_row_max(max, x);
    op_pick_target(picked, x, b->targets, l->vocab.lo);
    op_exp_sum(s->t[S_SUM], x, max); // from here on x holds exponentials
    op_token_loss(y, picked, max, s->t[S_SUM], b->targets);
    arena_free(&scratch);
}

void loss_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    op_cross_entropy_backward(x, s->t[S_SUM], b->targets, dy, l->vocab.lo);
    if (dx.data != x.data) tensor_copy(dx, x);
}

const LayerKind layer_loss = { .name = "loss",
                               .output = token_shape,
                               .input = logits_shape,
                               .in_place = true,
                               .forward = loss_forward,
                               .backward = loss_backward };

// ---- shapes and properties of any layer ----

Shape layer_output(const Layer *l, const Batch *b) {
    while (!l->kind->output) l = &l->inner[l->n_inner - 1];
    return l->kind->output(l, b);
}
Shape layer_input(const Layer *l, const Batch *b) {
    while (!l->kind->output) l = l->inner;
    return l->kind->input ? l->kind->input(l, b) : l->kind->output(l, b);
}
// A wrapper around one layer is in place if that layer is. A wrapper around several layers has its
// own kind->in_place.
bool layer_in_place(const Layer *l) {
    while (!l->kind->output && l->n_inner == 1) l = l->inner;
    return l->kind->in_place;
}

Layer *layer_wrap(Layer *l, const LayerKind *kind, Comm *comm) {
    Layer *inner = host_alloc(sizeof *inner);
    *inner = *l;
    l->kind = kind;
    l->comm = comm;
    l->inner = inner;
    l->n_inner = 1;
    l->technique = NULL;
    return inner;
}

// ---- the plain walk ----

ActivationStash *walk_forward(Layer *layers, size_t n, const Batch *b, Tensor x, Tensor y) {
    record_enter_chunk(EVENT_FORWARD, b->number, layers[0].chunk);
    ActivationStash *f = host_alloc(sizeof *f);
    f->n = n;
    f->x = x;
    f->layer = host_alloc(n * sizeof *f->layer);
    for (size_t i = 0; i < n; i++) {
        f->layer[i].arena = arena(MEM_ACTIVATIONS);
        f->layer[i].y =
            i + 1 == n ? y : tensor_shaped(&f->layer[i].arena, layer_output(&layers[i], b));
        f->layer[i].saved = saved_new();
        layer_forward(&layers[i], b, x, f->layer[i].y, &f->layer[i].saved);
        x = f->layer[i].y;
    }
    record_leave();
    return f;
}

// Frees the y of layer i, which the next layer has read, and the saved items of layer i.
static void free_layer(ActivationStash *f, size_t i) {
    saved_free(&f->layer[i].saved);
    arena_free(&f->layer[i].arena);
}

// Walks backward. If `whole` is true, the walk also computes the gradients of weights, and frees
// the layers' tensors.
static void walk_back(Layer *layers, size_t n, const Batch *b, ActivationStash *f, Tensor dy,
                      Tensor dx, bool whole) {
    record_enter_chunk(EVENT_BACKWARD, b->number, layers[0].chunk);
    Arena incoming = arena(MEM_WORKSPACE); // holds dy, if the walk has allocated dy
    for (size_t i = n; i-- > 0;) {
        Arena outgoing = arena(MEM_WORKSPACE);
        Tensor x = i ? f->layer[i - 1].y : f->x;
        Tensor d = i == 0 ? dx : layer_in_place(&layers[i]) ? x : tensor_like(&outgoing, x);
        (whole ? layer_backward : layer_backward_inputs)(&layers[i], b, x, dy, d,
                                                         &f->layer[i].saved);
        if (whole) free_layer(f, i);
        arena_free(&incoming);
        incoming = outgoing;
        dy = d;
    }
    arena_free(&incoming);
    record_leave();
}

void walk_backward(Layer *layers, size_t n, const Batch *b, ActivationStash *f, Tensor dy,
                   Tensor dx) {
    walk_back(layers, n, b, f, dy, dx, true);
    activation_stash_free(f);
}
void walk_backward_inputs(Layer *layers, size_t n, const Batch *b, ActivationStash *f, Tensor dy,
                          Tensor dx) {
    walk_back(layers, n, b, f, dy, dx, false);
}
void walk_backward_weights(Layer *layers, size_t n, const Batch *b, ActivationStash *f) {
    record_enter(EVENT_WEIGHTS, b->number);
    for (size_t i = n; i-- > 0;) {
        layer_backward_weights(&layers[i], b, i ? f->layer[i - 1].y : f->x, &f->layer[i].saved);
        free_layer(f, i);
    }
    activation_stash_free(f);
    record_leave();
}

void walk_forward_only(Layer *layers, size_t n, const Batch *b, Tensor x, Tensor y) {
    record_enter(EVENT_FORWARD, b->number);
    Arena incoming = arena(MEM_ACTIVATIONS); // holds x, if the walk has allocated x
    for (size_t i = 0; i < n; i++) {
        Arena outgoing = arena(MEM_ACTIVATIONS);
        Saved saved = saved_new();
        Tensor out = i + 1 == n ? y : tensor_shaped(&outgoing, layer_output(&layers[i], b));
        layer_forward(&layers[i], b, x, out, &saved);
        saved_free(&saved);
        arena_free(&incoming);
        incoming = outgoing;
        x = out;
    }
    arena_free(&incoming);
    record_leave();
}

void activation_stash_free(ActivationStash *f) {
    for (size_t i = 0; i < f->n; i++) free_layer(f, i);
    free(f->layer);
    free(f);
}
