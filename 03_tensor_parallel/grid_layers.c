// grid_layers.c: makes grids of ranks, cuts matrices and batches for a grid, and computes norms on
// a grid. grid_block.c has the transformer block, and grid_model.c has the other layers of a GPT.
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

Batch summa_batch(const CommGrid *g, const Batch *b) {
    // SUMMA has depth 1 and layer 0. Grid k of 10_tesseract.c is layer k, and has parts q k to
    // q k + q - 1.
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
    comm_reduce(g->in_col, dv, 0); // 2 C/q elements to row 0: sums over the grid's tokens
    for (size_t i = 0; g->row == 0 && i < 2; i++)
        param_add_gradient(&p[i], tensor_row_range(dv, i, i + 1));
    comm_broadcast(g->in_col, gain, 0); // C/q elements
    op_layer_norm_backward_sums(sums, x, stats, gain, dy);
    comm_all_reduce(g->in_row, sums); // 2 M/q elements
    op_layer_norm_backward_apply(dx, sums, x, stats, gain, dy, l->config->width);
    arena_free(&panels);
    arena_free(&scratch);
}
