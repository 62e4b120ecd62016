// grid_layers.c: the layers of GPT in q x q blocks, made of 09_summa.c's products. Compare the block here with the
// unsplit one of common/model/layer.c and with the one of 06_transformer.c.
//
// An activation [B*T, C] is cut between sequences along the grid's columns, and between features along its rows: block
// (i, j) has B/q sequences and C/q features. So heads and their softmax are local, a norm's row is spread over the
// ranks of one row of the grid, and gradients of weights are sums over a column of it.
#include "03_tensor_parallel/tensor_parallel.h"

static const CommGrid *grid_of(const Layer *l) { return l->technique; }

// ---------------------------------------------------------------- how everything is cut

static SummaCut by_feature(const ModelConfig *c) { return (SummaCut){ c->width, 1 }; }
static SummaCut by_head(const ModelConfig *c) { return (SummaCut){ c->heads, c->width / c->heads }; }
static SummaCut by_hidden(const ModelConfig *c) { return (SummaCut){ 4 * c->width, 1 }; }
static SummaCut by_entry(const ModelConfig *c) { return (SummaCut){ c->vocab, 1 }; }
static SummaCut by_position(const ModelConfig *c) { return (SummaCut){ c->context, 1 }; }

Batch summa_batch(const CommGrid *g, const Batch *b) {
    Range mine = shard_range(b->B, g->rows * g->depth, g->row + g->rows * g->layer);   // depth: 1 but in 10_tesseract
    Batch part = *b;
    part.B = range_size(mine);
    part.tokens += mine.lo * b->T;
    part.targets += mine.lo * b->T;
    part.position += mine.lo * b->T;
    part.first_sequence += mine.lo;                        // dropout's coordinates are global
    return part;
}

static size_t my_features(const Layer *l) {
    return range_size(summa_range(by_feature(l->config), grid_of(l)->cols, grid_of(l)->col));
}
static size_t my_tokens(const Layer *l, const Batch *b) { return summa_batch(grid_of(l), b).B * b->T; }
static Shape features_shape(const Layer *l, const Batch *b) { return (Shape){ my_tokens(l, b), my_features(l) }; }
static Shape entries_shape(const Layer *l, const Batch *b) { return (Shape){ my_tokens(l, b), range_size(l->vocab) }; }
static Shape losses_shape(const Layer *l, const Batch *b) { return (Shape){ my_tokens(l, b), 1 }; }

static Dropout my_dropout(const Layer *l, const Batch *mine, int site) {
    Dropout d = layer_dropout(l, mine, site);
    d.col0 = summa_range(by_feature(l->config), grid_of(l)->cols, grid_of(l)->col).lo;
    return d;
}

// ---------------------------------------------------------------- norm: p[0] its gain, p[1] its bias, on row 0

// Both vectors, as the rows of v [2, C/q].
static void vectors_down(const CommGrid *g, Tensor v, const Param *p) {
    for (size_t i = 0; g->row == 0 && i < 2; i++) tensor_copy(tensor_row_range(v, i, i + 1), p[i].w);
    comm_broadcast(g->in_col, v, 0);                       // 2 C/q elements, from row 0 to all of my column
}

static void norm_forward(const Layer *l, Tensor y, Tensor stats, Tensor x, const Param *p) {
    const CommGrid *g = grid_of(l);
    Arena panels = arena(MEM_COMMUNICATION);
    Tensor v = tensor_new(&panels, 2, x.cols);
    vectors_down(g, v, p);
    op_layer_norm_sums(stats, x);                          // [M/q, 2]: of x and of x^2, over my C/q features
    comm_all_reduce(g->in_row, stats);                     // 2 M/q elements
    op_layer_norm_apply(y, stats, stats, x, tensor_row_range(v, 0, 1), tensor_row_range(v, 1, 2), l->config->width);
    arena_free(&panels);
}

static void norm_backward(const Layer *l, Tensor dx, Tensor x, Tensor stats, Tensor dy, Param *p) {
    const CommGrid *g = grid_of(l);
    Arena scratch = arena(MEM_WORKSPACE), panels = arena(MEM_COMMUNICATION);
    Tensor sums = tensor_new(&scratch, x.rows, 2), dv = tensor_new(&scratch, 2, x.cols);
    Tensor gain = summa_panel(&panels, g->row == 0, p[0].w, 1, x.cols);
    op_layer_norm_grads(tensor_row_range(dv, 0, 1), tensor_row_range(dv, 1, 2), x, stats, dy);
    comm_reduce(g->in_col, dv, 0);                         // 2 C/q elements: sums over all tokens, to row 0
    for (size_t i = 0; g->row == 0 && i < 2; i++) param_add_gradient(&p[i], tensor_row_range(dv, i, i + 1));
    comm_broadcast(g->in_col, gain, 0);                    // C/q elements
    op_layer_norm_backward_sums(sums, x, stats, gain, dy);
    comm_all_reduce(g->in_row, sums);                      // 2 M/q elements
    op_layer_norm_backward_apply(dx, sums, x, stats, gain, dy, l->config->width);
    arena_free(&panels);
    arena_free(&scratch);
}

// ---------------------------------------------------------------- block: x + attention(norm(x)), then + mlp(norm(.))

static void block_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    const CommGrid *g = grid_of(l);
    const ModelConfig *c = l->config;
    const Param *p = l->units[0]->params;
    const Batch mine = summa_batch(g, b);
    size_t M = x.rows, C = x.cols, A = range_size(l->heads) * (c->width / c->heads), F = p[FC_W].w.cols;

    saved_tensor(s, S_LN1, M, C); saved_tensor(s, S_STATS1, M, 2);                     // [M/q, C/q], [M/q, 2]
    norm_forward(l, s->t[S_LN1], s->t[S_STATS1], x, &p[LN1_GAIN]);
    saved_tensor(s, S_QKV, M, 3 * A); saved_tensor(s, S_MIX, M, A);                    // [M/q, 3C/q], [M/q, C/q]
    summa_linear_forward(g, by_feature(c), s->t[S_QKV], s->t[S_LN1], &p[QKV_W]);
    AttentionHeads heads = layer_heads(l, &mine);
    attention_forward(&heads, s);                        // my heads of my sequences: sends nothing
    saved_tensor(s, S_MIDDLE, M, C);
    Tensor middle = s->t[S_MIDDLE];
    summa_linear_forward(g, by_head(c), middle, s->t[S_MIX], &p[PROJ_W]);
    op_dropout(middle, middle, my_dropout(l, &mine, SITE_MIDDLE));
    op_add(middle, x, middle);

    saved_tensor(s, S_LN2, M, C); saved_tensor(s, S_STATS2, M, 2);
    norm_forward(l, s->t[S_LN2], s->t[S_STATS2], middle, &p[LN2_GAIN]);
    saved_tensor(s, S_FC, M, F); saved_tensor(s, S_ACT, M, F);                         // [M/q, 4C/q] each
    summa_linear_forward(g, by_feature(c), s->t[S_FC], s->t[S_LN2], &p[FC_W]);
    op_gelu(s->t[S_ACT], s->t[S_FC]);
    summa_linear_forward(g, by_hidden(c), y, s->t[S_ACT], &p[OUT_W]);
    op_dropout(y, y, my_dropout(l, &mine, SITE_OUT));
    op_add(y, middle, y);
}

static void block_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    const CommGrid *g = grid_of(l);
    const ModelConfig *c = l->config;
    Param *p = l->units[0]->params;
    const Batch mine = summa_batch(g, b);
    size_t M = x.rows, C = x.cols;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_new(&scratch, M, C), dnorm = tensor_new(&scratch, M, C), dmiddle = tensor_new(&scratch, M, C);
    Tensor dfc = tensor_new(&scratch, M, s->t[S_FC].cols);
    Tensor dmix = tensor_new(&scratch, M, s->t[S_MIX].cols), dqkv = tensor_new(&scratch, M, s->t[S_QKV].cols);

    op_dropout(d, dy, my_dropout(l, &mine, SITE_OUT));
    summa_linear_backward(g, by_hidden(c), dfc, s->t[S_ACT], d, &p[OUT_W]);
    op_gelu_backward(dfc, s->t[S_FC], dfc);
    summa_linear_backward(g, by_feature(c), dnorm, s->t[S_LN2], dfc, &p[FC_W]);
    norm_backward(l, dmiddle, s->t[S_MIDDLE], s->t[S_STATS2], dnorm, &p[LN2_GAIN]);
    op_add(dmiddle, dy, dmiddle);                          // the residual path

    op_dropout(d, dmiddle, my_dropout(l, &mine, SITE_MIDDLE));
    summa_linear_backward(g, by_head(c), dmix, s->t[S_MIX], d, &p[PROJ_W]);
    AttentionHeads heads = layer_heads(l, &mine);
    attention_backward(&heads, dqkv, dmix, s);           // sends nothing
    summa_linear_backward(g, by_feature(c), dnorm, s->t[S_LN1], dqkv, &p[QKV_W]);
    norm_backward(l, dx, x, s->t[S_STATS1], dnorm, &p[LN1_GAIN]);
    op_add(dx, dmiddle, dx);
    arena_free(&scratch);
}

static void rebuild(Layer *l, const Batch *b, Saved *s) {  // for selective recomputation, chapter 07
    const Batch mine = summa_batch(grid_of(l), b);
    AttentionHeads heads = layer_heads(l, &mine);
    attention_rebuild(&heads, s);
}

const LayerKind summa_block = { .name = "SUMMA block", .output = features_shape, .forward = block_forward,
                                .backward = block_backward, .shed = block_shed, .rebuild = rebuild };

// ---------------------------------------------------------------- embedding: a product of one-hot rows with a table

// y [M/q, C/q] <- rows ids of the whole table, whose block [V/q, C/q] is mine: summa_product without X to send.
static void lookup(const CommGrid *g, Tensor y, Tensor table, const int *ids, SummaCut rows) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor part = tensor_new(&scratch, y.rows, y.cols);
    for (size_t l = 0; l < g->rows; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        Range r = summa_range(rows, g->rows, l);
        Tensor table_l = summa_panel(&panels, g->row == l, table, range_size(r), table.cols);
        comm_broadcast(g->in_col, table_l, l);             // V/q * C/q elements, from row l to all of my column
        op_embed_tokens(l ? part : y, table_l, ids, r.lo); // zero rows where the entry is in another block
        if (l) op_add(y, y, part);
        arena_free(&panels);
    }
    arena_free(&scratch);
}
static void lookup_gradient(const CommGrid *g, Param *table, const int *ids, Tensor dy, SummaCut rows) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_new(&scratch, table->w.rows, table->w.cols);
    for (size_t l = 0; l < g->rows; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        Range r = summa_range(rows, g->rows, l);
        Tensor d_l = summa_panel(&panels, g->row == l, d, range_size(r), dy.cols);
        op_embed_tokens_grad(d_l, ids, dy, r.lo);          // a partial sum: of my tokens
        comm_reduce(g->in_col, d_l, l);                    // V/q * C/q elements, from all of my column to row l
        arena_free(&panels);
    }
    param_add_gradient(table, d);
    arena_free(&scratch);
}

static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x; (void)s;
    const CommGrid *g = grid_of(l);
    const Batch mine = summa_batch(g, b);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor positions = tensor_new(&scratch, y.rows, y.cols);
    lookup(g, y, l->units[0]->params[0].w, mine.tokens, by_entry(l->config));
    lookup(g, positions, l->units[1]->params[0].w, mine.position, by_position(l->config));
    op_add(y, y, positions);
    op_dropout(y, y, my_dropout(l, &mine, SITE_EMBEDDING));
    arena_free(&scratch);
}
static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x; (void)dx; (void)s;
    const CommGrid *g = grid_of(l);
    const Batch mine = summa_batch(g, b);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_new(&scratch, dy.rows, dy.cols);
    op_dropout(d, dy, my_dropout(l, &mine, SITE_EMBEDDING));
    lookup_gradient(g, &l->units[0]->params[0], mine.tokens, d, by_entry(l->config));
    lookup_gradient(g, &l->units[1]->params[0], mine.position, d, by_position(l->config));
    arena_free(&scratch);
}
const LayerKind summa_embedding = { .name = "SUMMA embedding", .output = features_shape, .forward = embedding_forward,
                                    .backward = embedding_backward };

// ---------------------------------------------------------------- head and loss
// logits = norm(x) wte^T with wte [V, C] in the same blocks as in the embedding: the form that is dX in a linear layer.

static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)b;
    Tensor wte = l->units[1]->params[0].w;
    saved_tensor(s, S_LN, x.rows, x.cols); saved_tensor(s, S_STATS, x.rows, 2);
    norm_forward(l, s->t[S_LN], s->t[S_STATS], x, l->units[0]->params);
    summa_product_nt(grid_of(l), y, s->t[S_LN], wte, by_entry(l->config));             // [M/q, V/q]
}
static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)b;
    const CommGrid *g = grid_of(l);
    Param *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dnorm = tensor_new(&scratch, x.rows, x.cols), dw = tensor_new(&scratch, wte->w.rows, wte->w.cols);
    summa_product_tn(g, dw, dy, s->t[S_LN], by_entry(l->config));                      // dwte = dlogits^T norm(x)
    param_add_gradient(wte, dw);
    summa_product(g, dnorm, dy, wte->w, by_entry(l->config));
    norm_backward(l, dx, x, s->t[S_STATS], dnorm, l->units[0]->params);
    arena_free(&scratch);
}
const LayerKind summa_head = { .name = "SUMMA head", .output = entries_shape, .input = features_shape,
                               .forward = head_forward, .backward = head_backward };

// The ranks of a row have all logits of their tokens: lesson 05's loss, over these ranks.
static void loss_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    saved_tensor(s, S_SUM, x.rows, 1);
    vocab_parallel_loss(grid_of(l)->in_row, y, s->t[S_SUM], x, summa_batch(grid_of(l), b).targets, l->vocab.lo);
}
static void loss_of_row_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    const Batch mine = summa_batch(grid_of(l), b);
    loss_backward(l, &mine, x, dy, dx, s);                 // sends nothing
}
const LayerKind summa_loss = { .name = "SUMMA loss", .output = losses_shape, .input = entries_shape, .in_place = true,
                               .forward = loss_forward, .backward = loss_of_row_backward };

// ---------------------------------------------------------------- the cut of a model's description

static void cut_block(Layer *l, const CommGrid *g) {
    const ModelConfig *c = l->config;
    const SummaCut features = by_feature(c), heads = by_head(c), hidden = by_hidden(c);
    Param *p = l->units[0]->params;
    l->heads = shard_range(c->heads, g->cols, g->col);
    for (int i = LN1_GAIN; i < BLOCK_PARAMS; i++) summa_cut_vector(&p[i], g, features);    // but those below
    summa_cut_matrix(&p[QKV_W], g, features, heads); summa_cut_vector(&p[QKV_B], g, heads);
    summa_cut_matrix(&p[PROJ_W], g, heads, features);
    summa_cut_matrix(&p[FC_W], g, features, hidden); summa_cut_vector(&p[FC_B], g, hidden);
    summa_cut_matrix(&p[OUT_W], g, hidden, features);
}
static void cut_table(Unit *u, const CommGrid *g, SummaCut rows, const ModelConfig *c) {
    summa_cut_matrix(&u->params[0], g, rows, by_feature(c));
}

void summa(Model *m, const CommGrid *g) {
    const ModelConfig *c = &m->config;
    REQUIRE(g->cols <= c->heads, "%zu columns of ranks need as many heads; the model has %zu: choose more --heads, or "
            "fewer ranks", g->cols, c->heads);
    REQUIRE(g->cols <= c->vocab, "%zu columns of ranks need as many vocabulary entries; the model has %zu: choose "
            "fewer ranks", g->cols, c->vocab);
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (l->inner || m->w.data)
            fault("summa() of layer %zu (%s%s): it cuts plain layers, before recompute() and before weights are "
                  "allocated", l->number, l->kind->name, m->w.data ? ", with weights" : "");
        l->technique = (void *)g;
        l->vocab = shard_range(c->vocab, g->cols, g->col);                             // of the logits: columns
        if (l->kind == &layer_embedding) {
            cut_table(l->units[0], g, by_entry(c), c);
            cut_table(l->units[1], g, by_position(c), c);
            l->kind = &summa_embedding;
        } else if (l->kind == &layer_head) {
            for (size_t k = 0; k < 2; k++) summa_cut_vector(&l->units[0]->params[k], g, by_feature(c));
            cut_table(l->units[1], g, by_entry(c), c);
            l->kind = &summa_head;
        } else if (l->kind == &layer_loss) {
            l->kind = &summa_loss;
        } else {
            cut_block(l, g);
            l->kind = &summa_block;
        }
    }
}
