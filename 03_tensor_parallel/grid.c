// grid.c: a grid of ranks, for matrices that are cut in two directions (09_summa.c, 10_tesseract.c,
// 11_cube.c). A rank has a place in a row, a column and a layer.
#include "03_tensor_parallel/tensor_parallel.h"

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
