// cube_model.c: computes the embedding, the head and the loss of a GPT on a cube, and cuts a
// model's description for the ranks of the cube. common/model/layer.c has the same layers unsplit.
#include "03_tensor_parallel/cube_layers.h"
#include "common/model/block.h"

// ------------------------------------------------ embedding: y = onehot(tokens) wte is linear, too

// Gathers wte over the layers of the cube. A rank holds [V/q^2, C/q] of wte: its rows are cut over
// row, then layer, and its columns over col. X = onehot(tokens) need not be gathered, because every
// rank has all tokens.
static Tensor table_of(const Layer *l, CubeLayout at, Arena *a, const Unit *wte) {
    return cube_gather(at.layers, a, range_size(l->vocab), 1, wte->params[0].w); // [V/q, C/q]
}
static const int *tokens_of_layer(const Batch *b, CubeLayout at) {
    return b->tokens + shard_range(b->B, at.layers->size, at.layers->rank).lo * b->T;
}

static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x;
    (void)s;
    CubeLayout at = cube_stream(l, b);
    Batch own = cube_rows(b, at);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor table = table_of(l, at, &scratch, l->units[0]);
    Tensor sum = tensor_shaped(&scratch, stored_shape(l, at.B * at.T, y.cols));
    // Puts zeros for entries of other ranks.
    op_embed_tokens(sum, table, tokens_of_layer(b, at), l->vocab.lo);
    cube_scatter(at.rows, at.B, y, sum); // one rank has put the row, the other ranks zeros
    op_add_positions(y, y, l->units[1]->params[0].w, own.position);
    op_dropout(y, y, cube_dropout(l, b, at, SITE_EMBEDDING));
    arena_free(&scratch);
}

static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x;
    (void)dx;
    (void)s;
    CubeLayout at = cube_stream(l, b);
    Batch own = cube_rows(b, at);
    Param *wte = &l->units[0]->params[0], *wpe = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, dy);
    Tensor dtable =
        tensor_shaped(&scratch, tensor_shape(range_size(l->vocab), dy.cols, wte->g.element));
    Tensor dwte = tensor_like(&scratch, wte->g);
    Tensor dwpe = tensor_new(&scratch, wpe->w.rows, dy.cols); // reals; rounded when added
    op_dropout(d, dy, cube_dropout(l, b, at, SITE_EMBEDDING));
    op_add_positions_grad(dwpe, own.position, d); // a partial sum: over this rank's rows
    param_add_gradient(wpe, dwpe);
    Tensor whole = cube_gather(at.rows, &scratch, at.B, at.T, d); // [M/q, C/q]
    // dtable is a partial sum over the rows of this rank's layer.
    op_embed_tokens_grad(dtable, tokens_of_layer(b, at), whole, l->vocab.lo);
    cube_scatter(at.layers, dtable.rows, dwte, dtable);
    param_add_gradient(wte, dwte);
    arena_free(&scratch);
}
static const LayerKind cube_embedding = {
    .name = "3D embedding",
    .output = cube_stream_shape,
    .forward = embedding_forward,
    .backward = embedding_backward,
};

// ----------------------------------------------------------- head: logits = norm(x) wte^T, swapped

static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Param *p = l->units[0]->params;
    CubeLayout at = cube_stream(l, b);
    bool again = cube_of(l)->gather_again;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor norm = cube_new_x(l, s, &scratch, x.rows, x.cols);
    saved_reals(s, S_STATS, x.rows, 2);
    cube_norm_forward(at, l->config->width, norm, s->t[S_STATS], x, &p[0], &p[1]);
    Arena *kept = again ? &scratch : &s->arena;
    Tensor X = cube_gather(at.rows, kept, at.B, at.T, norm), W = table_of(l, at, kept, l->units[1]);
    Tensor sum = tensor_new(&scratch, X.rows, W.rows); // logits are reals
    op_matmul_nt(sum, X, W);                           // [M/q, V/q]
    cube_scatter(at.cols, at.B, y, sum);
    s->t[S_LN] = again ? norm : cube_own_rows(at, X);
    s->t[CUBE_WHOLE_X + CUBE_HEAD] = again ? (Tensor){ 0 } : X;
    s->t[CUBE_WHOLE_W + CUBE_HEAD] = again ? (Tensor){ 0 } : W;
    arena_free(&scratch);
}

static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Param *p = l->units[0]->params, *wte = &l->units[1]->params[0];
    CubeLayout at = cube_stream(l, b);
    bool again = cube_of(l)->gather_again;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor X = again ? cube_gather(at.rows, &scratch, at.B, at.T, s->t[S_LN])
                     : s->t[CUBE_WHOLE_X + CUBE_HEAD];
    Tensor W = again ? table_of(l, at, &scratch, l->units[1]) : s->t[CUBE_WHOLE_W + CUBE_HEAD];
    Tensor dX = tensor_like(&scratch, X), dnorm = tensor_like(&scratch, x);
    Tensor dW = tensor_shaped(&scratch, tensor_shape(W.rows, W.cols, wte->g.element));
    Tensor dw = tensor_like(&scratch, wte->g);
    Tensor dY = cube_gather(at.cols, &scratch, at.B, at.T, dy); // [M/q, V/q]
    op_matmul(dX, dY, W);
    cube_scatter(at.rows, at.B, dnorm, dX);
    op_matmul_tn(dW, dY, X); // [V/q, C/q]
    cube_scatter(at.layers, dW.rows, dw, dW);
    param_add_gradient(wte, dw);
    cube_norm_backward(at, l->config->width, dx, x, s->t[S_STATS], &p[0], &p[1], dnorm);
    arena_free(&scratch);
}

static Shape swapped_logits(const Layer *l, const Batch *b) { // [M/q^2, V/q]
    size_t sequences = range_size(cube_sequences(cube_swapped(cube_stream(l, b)), b->B));
    return tensor_shape(sequences * b->T, range_size(l->vocab), REALS);
}
static const LayerKind cube_head = { .name = "3D head",
                                     .output = swapped_logits,
                                     .input = cube_stream_shape,
                                     .forward = head_forward,
                                     .backward = head_backward };

// ------------------------------------------------------ loss: a token's logits are cut over row

static void cube_loss_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    CubeLayout sw = cube_swapped(cube_stream(l, b));
    Batch own = cube_rows(b, sw);
    saved_reals(s, S_SUM, x.rows, 1);
    // Makes three all-reduces of [M/q^2, 1] over the q ranks that have the same tokens.
    vocab_parallel_loss(sw.cols, y, s->t[S_SUM], x, own.targets, l->vocab.lo);
    if (sw.cols->rank > 0) op_scale(y, y, 0); // q ranks have the loss; one rank counts the loss
}
static void cube_loss_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Batch own = cube_rows(b, cube_swapped(cube_stream(l, b)));
    loss_backward(l, &own, x, dy, dx, s);
}
static Shape swapped_tokens(const Layer *l, const Batch *b) { // [M/q^2, 1]
    size_t sequences = range_size(cube_sequences(cube_swapped(cube_stream(l, b)), b->B));
    return tensor_shape(sequences * b->T, 1, REALS);
}
static const LayerKind cube_loss = { .name = "3D loss",
                                     .output = swapped_tokens,
                                     .input = swapped_logits,
                                     .in_place = true,
                                     .forward = cube_loss_forward,
                                     .backward = cube_loss_backward };

// ------------------------------------------------ the parts of each rank

// Cuts a matrix. rows and cols are the ranges of the gathered weights. This rank holds the part of
// `rows` that belongs to its layer of the cube.
static void cut_matrix(const Cube *c, Param *p, Range rows, Range cols) {
    Range own = shard_range(range_size(rows), c->grid.depth, c->grid.layer);
    p->own_rows = (Range){ rows.lo + own.lo, rows.lo + own.hi };
    p->own_cols = cols;
}
// Cuts a vector or wpe. `same` has the ranks of a plane, which hold the same columns. Each of these
// ranks computes a partial sum of the gradient, over its own rows.
static void cut_vector(Comm *same, Param *p, Range cols) {
    p->own_cols = cols;
    p->partial = same;
    p->in_norm = same->rank == 0;
}
static Range times(Range r, size_t n) { return (Range){ r.lo * n, r.hi * n }; }

static void cut_block(const Cube *c, const ModelConfig *z, Layer *l, Range width) {
    Param *p = l->units[0]->params;
    Range heads = times(l->heads, z->width / z->heads);
    Range hidden = shard_range(block_hidden(z), c->grid.rows, c->grid.row);
    cut_matrix(c, &p[QKV_W], width, heads);
    cut_matrix(c, &p[PROJ_W], heads, width);
    cut_matrix(c, &p[FC_W], width, hidden);
    cut_matrix(c, &p[OUT_W], hidden, width);
    cut_vector(c->same_row, &p[QKV_B], heads);
    cut_vector(c->same_row, &p[FC_B], hidden);
    const int of_stream[] = { LN1_GAIN, LN1_BIAS, PROJ_B, LN2_GAIN, LN2_BIAS, OUT_B };
    for (size_t i = 0; i < sizeof of_stream / sizeof *of_stream; i++)
        cut_vector(c->same_col, &p[of_stream[i]], width);
}

void cube_parallel(Model *m, const Cube *c) {
    const ModelConfig *z = &m->config;
    const CommGrid *g = &c->grid;
    REQUIRE(config_is_gpt2(z),
            "a cube cuts layer norms, learned positions and q | k | v of equal width, which only "
            "GPT-2 has: choose that family, or --tensor 1d");
    REQUIRE(g->rows <= z->heads && g->rows <= z->vocab,
            "%zu x %zu x %zu ranks need %zu heads and vocabulary entries; the model has %zu and "
            "%zu: choose fewer ranks, or more --heads",
            g->rows, g->rows, g->rows, g->rows, z->heads, z->vocab);
    Range width = shard_range(z->width, g->cols, g->col);
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (l->inner || m->w.data)
            fault("cube_parallel() of layer %zu (%s%s): it cuts plain layers, before recompute() "
                  "and before weights are allocated",
                  l->number, l->kind->name, m->w.data ? ", with weights" : "");
        l->technique = (void *)c;
        l->heads = shard_range(z->heads, g->rows, g->row);
        l->vocab = shard_range(z->vocab, g->rows, g->row);
        if (l->kind == &layer_embedding || l->kind == &layer_head) {
            bool head = l->kind == &layer_head;
            cut_matrix(c, &l->units[head]->params[0], l->vocab, width);
            for (size_t k = 0; k < l->units[!head]->n_params;
                 k++) { // wpe, or gain and bias of the last norm
                cut_vector(c->same_col, &l->units[!head]->params[k], width);
            }
            l->kind = head ? &cube_head : &cube_embedding;
        } else if (l->kind == &layer_loss) {
            l->kind = &cube_loss;
        } else {
            cut_block(c, z, l, width);
            l->kind = &cube_block;
        }
    }
}
