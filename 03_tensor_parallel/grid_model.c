// grid_model.c: computes the embedding, the head and the loss of a GPT on a grid. Cuts each matrix
// and vector of a model's description into one part per rank of the grid.
#include "03_tensor_parallel/grid_layers.h"
#include "common/model/block.h"

static SummaCut by_entry(const ModelConfig *c) { return (SummaCut){ c->vocab, 1 }; }
static SummaCut by_position(const ModelConfig *c) { return (SummaCut){ c->context, 1 }; }

static Shape entries_shape(const Layer *l, const Batch *b) {
    return tensor_shape(summa_batch(summa_grid(l), b).B * b->T, range_size(l->vocab), REALS);
}
static Shape losses_shape(const Layer *l, const Batch *b) {
    return tensor_shape(summa_batch(summa_grid(l), b).B * b->T, 1, REALS);
}

// ----------------------------------------------- embedding: a product of one-hot rows with a table

// Sets row i of y [M/q, C/q] to this rank's columns of row ids[i] of the whole table. `table` is
// this rank's block [V/q, C/q]. The one-hot rows need not be sent, because all ranks of a row of
// the grid have the same ids.
static void lookup(const CommGrid *g, Tensor y, Tensor table, const int *ids, SummaCut rows) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor part = tensor_like(&scratch, y);
    for (size_t l = 0; l < g->rows; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        Range r = summa_range(rows, g->rows, l);
        Tensor table_l = summa_panel(&panels, g->row == l, table, range_size(r), table.cols);
        comm_broadcast(g->in_col, table_l, l); // V/q * C/q elements from row l to the column
        op_embed_tokens(l ? part : y, table_l, ids, r.lo); // zeros for entries of other blocks
        if (l) op_add(y, y, part);                         // exact: in each row y or part is 0
        arena_free(&panels);
    }
    arena_free(&scratch);
}
static void lookup_gradient(const CommGrid *g, Param *table, const int *ids, Tensor dy,
                            SummaCut rows) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, table->g);
    for (size_t l = 0; l < g->rows; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        Range r = summa_range(rows, g->rows, l);
        Tensor d_l = summa_panel(&panels, g->row == l, d, range_size(r), dy.cols);
        op_embed_tokens_grad(d_l, ids, dy, r.lo); // a partial sum: over this row's tokens
        comm_reduce(g->in_col, d_l, l);           // V/q * C/q elements from the column to row l
        arena_free(&panels);
    }
    param_add_gradient(table, d);
    arena_free(&scratch);
}

static void embedding_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x;
    (void)s;
    const CommGrid *g = summa_grid(l);
    const Batch own = summa_batch(g, b);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor positions = tensor_like(&scratch, y);
    lookup(g, y, l->units[0]->params[0].w, own.tokens, by_entry(l->config));
    lookup(g, positions, l->units[1]->params[0].w, own.position, by_position(l->config));
    op_add(y, y, positions);
    op_dropout(y, y, summa_dropout(l, &own, SITE_EMBEDDING));
    arena_free(&scratch);
}
static void embedding_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)x;
    (void)dx;
    (void)s;
    const CommGrid *g = summa_grid(l);
    const Batch own = summa_batch(g, b);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d = tensor_like(&scratch, dy);
    op_dropout(d, dy, summa_dropout(l, &own, SITE_EMBEDDING));
    lookup_gradient(g, &l->units[0]->params[0], own.tokens, d, by_entry(l->config));
    lookup_gradient(g, &l->units[1]->params[0], own.position, d, by_position(l->config));
    arena_free(&scratch);
}
const LayerKind summa_embedding = { .name = "SUMMA embedding",
                                    .output = summa_features,
                                    .forward = embedding_forward,
                                    .backward = embedding_backward };

// ---------------------------------------------------------------- head and loss
// logits = norm(x) wte^T is computed like dX = dY W^T of a linear layer. wte [V, C] is cut in the
// same blocks as in the embedding.

static void head_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)b;
    Tensor wte = l->units[1]->params[0].w;
    saved_tensor(s, S_LN, x.rows, x.cols);
    saved_reals(s, S_STATS, x.rows, 2);
    summa_norm_forward(l, s->t[S_LN], s->t[S_STATS], x, l->units[0]->params);
    summa_product_nt(summa_grid(l), y, s->t[S_LN], wte, by_entry(l->config)); // [M/q, V/q]
}
static void head_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)b;
    const CommGrid *g = summa_grid(l);
    Param *wte = &l->units[1]->params[0];
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dnorm = tensor_like(&scratch, x), dw = tensor_like(&scratch, wte->g);
    summa_product_tn(g, dw, dy, s->t[S_LN], by_entry(l->config)); // dwte = dlogits^T norm(x)
    param_add_gradient(wte, dw);
    summa_product(g, dnorm, dy, wte->w, by_entry(l->config));
    summa_norm_backward(l, dx, x, s->t[S_STATS], dnorm, l->units[0]->params);
    arena_free(&scratch);
}
const LayerKind summa_head = { .name = "SUMMA head",
                               .output = entries_shape,
                               .input = summa_features,
                               .forward = head_forward,
                               .backward = head_backward };

// Runs lesson 05's loss over the q ranks of a row, because these ranks together have all logits of
// the row's tokens.
static void loss_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    saved_reals(s, S_SUM, x.rows, 1);
    vocab_parallel_loss(summa_grid(l)->in_row, y, s->t[S_SUM], x,
                        summa_batch(summa_grid(l), b).targets, l->vocab.lo);
}
static void loss_of_row_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx,
                                 Saved *s) {
    const Batch own = summa_batch(summa_grid(l), b);
    loss_backward(l, &own, x, dy, dx, s); // sends nothing
}
const LayerKind summa_loss = { .name = "SUMMA loss",
                               .output = losses_shape,
                               .input = entries_shape,
                               .in_place = true,
                               .forward = loss_forward,
                               .backward = loss_of_row_backward };

// ---------------------------------------------------------------- the cut of a model's description

static void cut_block(Layer *l, const CommGrid *g) {
    const ModelConfig *c = l->config;
    const SummaCut features = summa_by_feature(c), heads = summa_by_head(c),
                   hidden = summa_by_hidden(c);
    Param *p = l->units[0]->params;
    l->heads = shard_range(c->heads, g->cols, g->col);
    for (int i = LN1_GAIN; i < BLOCK_PARAMS; i++)
        summa_cut_vector(&p[i], g, features); // matrices and wider vectors are cut again below
    summa_cut_matrix(&p[QKV_W], g, features, heads);
    summa_cut_vector(&p[QKV_B], g, heads);
    summa_cut_matrix(&p[PROJ_W], g, heads, features);
    summa_cut_matrix(&p[FC_W], g, features, hidden);
    summa_cut_vector(&p[FC_B], g, hidden);
    summa_cut_matrix(&p[OUT_W], g, hidden, features);
}
static void cut_table(Unit *u, const CommGrid *g, SummaCut rows, const ModelConfig *c) {
    summa_cut_matrix(&u->params[0], g, rows, summa_by_feature(c));
}

void summa(Model *m, const CommGrid *g) {
    const ModelConfig *c = &m->config;
    REQUIRE(config_is_gpt2(c),
            "a grid cuts layer norms, learned positions and q | k | v of equal width, which only "
            "GPT-2 has: choose that family, or --tensor 1d");
    REQUIRE(g->cols <= c->heads,
            "%zu columns of ranks need as many heads; the model has %zu: choose more --heads, or "
            "fewer ranks",
            g->cols, c->heads);
    REQUIRE(g->cols <= c->vocab,
            "%zu columns of ranks need as many vocabulary entries; the model has %zu: choose "
            "fewer ranks",
            g->cols, c->vocab);
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (l->inner || m->w.data)
            fault("summa() of layer %zu (%s%s): it cuts plain layers, before recompute() and "
                  "before weights are allocated",
                  l->number, l->kind->name, m->w.data ? ", with weights" : "");
        l->technique = (void *)g;
        l->vocab = shard_range(c->vocab, g->cols, g->col); // the columns of the logits
        if (l->kind == &layer_embedding) {
            cut_table(l->units[0], g, by_entry(c), c);
            cut_table(l->units[1], g, by_position(c), c);
            l->kind = &summa_embedding;
        } else if (l->kind == &layer_head) {
            for (size_t k = 0; k < 2; k++)
                summa_cut_vector(&l->units[0]->params[k], g, summa_by_feature(c));
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
