// grid_layers.c: makes grids of ranks, and computes GPT's layers on a grid. The file has the cut of
// the parameters, the norms, the embedding, the head and the loss. The transformer block is in
// grid_block.c.
//
// Block (i, j) of an activation [B*T, C] has the B/q sequences of row i and the C/q features of
// column j. The columns of q, k and v are cut between heads, so a rank has whole heads of whole
// sequences. A token's features are spread over a row of the grid, so a norm adds along the row.
// Gradients of weights are sums over a column.
#include "03_tensor_parallel/grid_layers.h"
#include "common/model/block.h"

const CommGrid *summa_grid(const Layer *l) { return l->technique; }

// ---------------------------------------------------------------- the grid

CommGrid comm_grid(Comm *c, size_t rows, size_t cols, size_t depth) {
    REQUIRE(rows * cols * depth == c->size,
            "a grid of %zu x %zu x %zu ranks needs %zu, but %s has %zu: start as many, or choose "
            "another grid",
            rows, cols, depth, rows * cols * depth, c->name, c->size);
    CommGrid g = { .rows = rows,
                   .cols = cols,
                   .depth = depth,
                   .row = c->rank / cols % rows,
                   .col = c->rank % cols,
                   .layer = c->rank / (cols * rows) };
    g.in_row = comm_split(c, g.row + rows * g.layer, g.col, "row");
    g.in_col = comm_split(c, g.col + cols * g.layer, g.row, "column");
    g.in_depth = comm_split(c, g.col + cols * g.row, g.layer, "depth");
    return g;
}

void comm_grid_free(CommGrid *g) {
    comm_free(g->in_row);
    comm_free(g->in_col);
    comm_free(g->in_depth);
}

// ---------------------------------------------------------------- the parts of each rank

size_t summa_side(size_t ranks) {
    size_t q = 1;
    while ((q + 1) * (q + 1) <= ranks) q++;
    REQUIRE(q * q == ranks,
            "%zu ranks are no square: a grid of q x q ranks needs 1, 4, 9, 16, ...: "
            "start %zu or %zu",
            ranks, q * q, (q + 1) * (q + 1));
    return q;
}

// Cuts a matrix. cols cuts each of the p->blocks blocks of columns. The weights of q | k | v have 3
// blocks, other matrices have 1.
void summa_cut_matrix(Param *p, const CommGrid *g, SummaCut rows, SummaCut cols) {
    p->own_rows = summa_range(rows, g->rows, g->row);
    p->own_cols = summa_range(cols, g->cols, g->col);
}
void summa_cut_vector(Param *p, const CommGrid *g, SummaCut cols) {
    p->own_rows = (Range){ 0, g->row == 0 }; // other rows hold no element
    p->own_cols = summa_range(cols, g->cols, g->col);
}

SummaCut summa_by_feature(const ModelConfig *c) { return (SummaCut){ c->width, 1 }; }
SummaCut summa_by_head(const ModelConfig *c) { return (SummaCut){ c->heads, c->width / c->heads }; }
SummaCut summa_by_hidden(const ModelConfig *c) { return (SummaCut){ block_hidden(c), 1 }; }
static SummaCut by_entry(const ModelConfig *c) { return (SummaCut){ c->vocab, 1 }; }
static SummaCut by_position(const ModelConfig *c) { return (SummaCut){ c->context, 1 }; }

Batch summa_batch(const CommGrid *g, const Batch *b) {
    // SUMMA has depth 1 and layer 0. In 10_tesseract.c layer k has parts q k to q k + q - 1.
    Range own = shard_range(b->B, g->rows * g->depth, g->row + g->rows * g->layer);
    Batch part = *b;
    part.B = range_size(own);
    part.tokens += own.lo * b->T;
    part.targets += own.lo * b->T;
    part.position += own.lo * b->T;
    part.first_sequence += own.lo; // dropout's coordinates are global
    return part;
}

static size_t own_features(const Layer *l) {
    return range_size(
        summa_range(summa_by_feature(l->config), summa_grid(l)->cols, summa_grid(l)->col));
}
static size_t own_tokens(const Layer *l, const Batch *b) {
    return summa_batch(summa_grid(l), b).B * b->T;
}
Shape summa_features(const Layer *l, const Batch *b) {
    return stored_shape(l, own_tokens(l, b), own_features(l));
}
static Shape entries_shape(const Layer *l, const Batch *b) {
    return tensor_shape(own_tokens(l, b), range_size(l->vocab), REALS);
}
static Shape losses_shape(const Layer *l, const Batch *b) {
    return tensor_shape(own_tokens(l, b), 1, REALS);
}

Dropout summa_dropout(const Layer *l, const Batch *own, int site) {
    Dropout d = layer_dropout(l, own, site);
    d.col0 = summa_range(summa_by_feature(l->config), summa_grid(l)->cols, summa_grid(l)->col).lo;
    return d;
}

// ---------------------------------------------------- norm: p[0] its gain, p[1] its bias, on row 0

// Sends gain and bias down the column, as the rows of v [2, C/q].
static void vectors_down(const CommGrid *g, Tensor v, const Param *p) {
    for (size_t i = 0; g->row == 0 && i < 2; i++)
        tensor_copy(tensor_row_range(v, i, i + 1), p[i].w);
    comm_broadcast(g->in_col, v, 0); // 2 C/q elements from row 0 to the column
}

void summa_norm_forward(const Layer *l, Tensor y, Tensor stats, Tensor x, const Param *p) {
    const CommGrid *g = summa_grid(l);
    Arena panels = arena(MEM_COMMUNICATION);
    Tensor v = tensor_shaped(&panels, tensor_shape(2, x.cols, p[0].w.element));
    vectors_down(g, v, p);
    op_layer_norm_sums(stats, x);      // [M/q, 2]: sums of x and x^2 over C/q features
    comm_all_reduce(g->in_row, stats); // 2 M/q elements
    op_layer_norm_apply(y, stats, stats, x, tensor_row_range(v, 0, 1), tensor_row_range(v, 1, 2),
                        l->config->width);
    arena_free(&panels);
}

void summa_norm_backward(const Layer *l, Tensor dx, Tensor x, Tensor stats, Tensor dy, Param *p) {
    const CommGrid *g = summa_grid(l);
    Arena scratch = arena(MEM_WORKSPACE), panels = arena(MEM_COMMUNICATION);
    Tensor sums = tensor_new(&scratch, x.rows, 2);
    Tensor dv = tensor_shaped(&scratch, tensor_shape(2, x.cols, p[0].g.element));
    Tensor gain = summa_panel(&panels, g->row == 0, p[0].w, 1, x.cols);
    op_layer_norm_grads(tensor_row_range(dv, 0, 1), tensor_row_range(dv, 1, 2), x, stats, dy);
    comm_reduce(g->in_col, dv, 0); // 2 C/q elements: sums over all tokens to row 0
    for (size_t i = 0; g->row == 0 && i < 2; i++)
        param_add_gradient(&p[i], tensor_row_range(dv, i, i + 1));
    comm_broadcast(g->in_col, gain, 0); // C/q elements
    op_layer_norm_backward_sums(sums, x, stats, gain, dy);
    comm_all_reduce(g->in_row, sums); // 2 M/q elements
    op_layer_norm_backward_apply(dx, sums, x, stats, gain, dy, l->config->width);
    arena_free(&panels);
    arena_free(&scratch);
}

// ----------------------------------------------- embedding: a product of one-hot rows with a table

// Sets row i of y [M/q, C/q] to this rank's columns of row ids[i] of the whole table. `table` is
// this rank's block [V/q, C/q]. The one-hot rows need not be sent, because all ranks of a row have
// the same ids.
static void lookup(const CommGrid *g, Tensor y, Tensor table, const int *ids, SummaCut rows) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor part = tensor_like(&scratch, y);
    for (size_t l = 0; l < g->rows; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        Range r = summa_range(rows, g->rows, l);
        Tensor table_l = summa_panel(&panels, g->row == l, table, range_size(r), table.cols);
        comm_broadcast(g->in_col, table_l, l); // V/q * C/q elements from row l to the column
        op_embed_tokens(l ? part : y, table_l, ids, r.lo); // zeros for entries of other blocks
        if (l) op_add(y, y, part);                         // exact, because y or part is 0
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
        summa_cut_vector(&p[i], g, features); // right only for the vectors that are not cut below
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
