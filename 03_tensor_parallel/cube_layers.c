// cube_layers.c: makes the cube of ranks, and computes layouts and norms on a cube. cube_block.c
// has the transformer block, and cube_model.c has the other layers of a GPT. The residual stream
// has the layout of cube_layout(): rows are cut over layer, then row, and columns over col. The
// logits have the swapped layout.
#include "03_tensor_parallel/cube_layers.h"

size_t cube_side(size_t ranks) {
    size_t q = 1;
    while (q * q * q < ranks) q++;
    REQUIRE(q * q * q == ranks,
            "3D tensor parallelism needs q x q x q ranks, and %zu are no such cube: choose %zu or "
            "%zu",
            ranks, (q - 1) * (q - 1) * (q - 1), q * q * q);
    return q;
}
Cube cube_new(Comm *ranks) {
    const size_t q = cube_side(ranks->size);
    Cube c = { .grid = comm_grid(ranks, q, q, q) };
    c.same_col = comm_split(ranks, c.grid.col, ranks->rank, "same columns");
    c.same_row = comm_split(ranks, c.grid.row, ranks->rank, "same columns, swapped");
    return c;
}
void cube_free(Cube *c) {
    comm_free(c->same_col);
    comm_free(c->same_row);
    comm_grid_free(&c->grid);
}

const Cube *cube_of(const Layer *l) { return l->technique; }
CubeLayout cube_stream(const Layer *l, const Batch *b) { return cube_layout(cube_of(l), b); }
static Range own_columns(CubeLayout at, size_t n) {
    return shard_range(n, at.cols->size, at.cols->rank);
}

Batch cube_rows(const Batch *b, CubeLayout at) {
    Range own = cube_sequences(at, b->B);
    Batch r = *b;
    r.B = range_size(own);
    r.tokens += own.lo * b->T;
    r.targets += own.lo * b->T;
    r.position += own.lo * b->T;
    r.first_sequence += own.lo;
    return r;
}
Dropout cube_dropout(const Layer *l, const Batch *b, CubeLayout at, int site) {
    Batch own = cube_rows(b, at);
    Dropout d = layer_dropout(l, &own, site);
    d.col0 = own_columns(at, l->config->width).lo;
    return d;
}

// -------------------------------------------- norm: a token's features are split over at.cols

void cube_norm_forward(CubeLayout at, size_t C, Tensor y, Tensor stats, Tensor x, const Param *gain,
                       const Param *bias) {
    op_layer_norm_sums(stats, x);
    comm_all_reduce(at.cols, stats); // per row 2 elements: sums of x and x^2
    op_layer_norm_apply(y, stats, stats, x, gain->w, bias->w, C);
}
void cube_norm_backward(CubeLayout at, size_t C, Tensor dx, Tensor x, Tensor stats, Param *gain,
                        Param *bias, Tensor dy) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor sums = tensor_new(&scratch, x.rows, 2);
    norm_gradients(gain, bias, x, stats, dy); // partial sums: over this rank's rows
    op_layer_norm_backward_sums(sums, x, stats, gain->w, dy);
    comm_all_reduce(at.cols, sums); // per row 2 elements
    op_layer_norm_backward_apply(dx, sums, x, stats, gain->w, dy, C);
    arena_free(&scratch);
}

// ---------------------------------------------------------------- items that a linear layer saves

Tensor cube_new_x(const Layer *l, Saved *s, Arena *scratch, size_t rows, size_t cols) {
    return tensor_shaped(cube_of(l)->gather_again ? &s->arena : scratch,
                         stored_shape(l, rows, cols));
}
Tensor cube_own_rows(CubeLayout at, Tensor X) {
    Range own = shard_range(at.B, at.rows->size, at.rows->rank);
    return tensor_row_range(X, own.lo * at.T, own.hi * at.T);
}
Shape cube_stream_shape(const Layer *l, const Batch *b) { // [M/q^2, C/q]
    CubeLayout at = cube_stream(l, b);
    return stored_shape(l, range_size(cube_sequences(at, b->B)) * b->T,
                        range_size(own_columns(at, l->config->width)));
}
