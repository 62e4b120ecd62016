// cube_linears.c: the smallest case of lesson 11: two linear layers in a row, Y = X V and Z = Y W, compared with the
// unsplit products.
#include "03_tensor_parallel/experiments/costs.h"
#include "judge/draw/picture.h"
#include "common/comm/record.h"
#include "common/tensor/random.h"
#include <stdio.h>

enum { KEY_X = 101, KEY_V, KEY_W, KEY_DZ };
static Tensor drawn(Run *run, Arena *a, uint64_t key, size_t rows, size_t cols) {
    Tensor t = tensor_new(a, rows, cols);
    tensor_randomize(t, random_key(run->seed, key), 1);
    return t;
}

// What this rank has of a whole tensor: rows and columns.
typedef struct { Range rows, cols; } Window;
static Window activation(CubeLayout at, size_t B, size_t cols) {
    Range r = cube_sequences(at, B);
    return (Window){ { r.lo * at.T, r.hi * at.T }, shard_range(cols, at.cols->size, at.cols->rank) };
}
static Window weights(CubeLayout at, size_t rows, size_t cols) {   // of a linear layer whose x stands at this layout
    Range gathered = shard_range(rows, at.cols->size, at.cols->rank);
    Range mine = shard_range(range_size(gathered), at.layers->size, at.layers->rank);
    return (Window){ { gathered.lo + mine.lo, gathered.lo + mine.hi },
                     shard_range(cols, at.rows->size, at.rows->rank) };
}
static Tensor part(Arena *a, Tensor whole, Window w) {
    Tensor t = tensor_new(a, range_size(w.rows), range_size(w.cols));
    tensor_copy(t, tensor_col_range(tensor_row_range(whole, w.rows.lo, w.rows.hi), w.cols.lo, w.cols.hi));
    return t;
}
static Param param(Arena *a, const char *name, Tensor whole, Window w) {
    Param p = param_describe(name, whole.rows, whole.cols, 1);
    p.my_rows = w.rows;
    p.my_cols = w.cols;
    p.w = part(a, whole, w);
    p.g = tensor_new(a, p.w.rows, p.w.cols);
    p.gradient_empty = true;
    return p;
}
static void put(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor t, Window w) {
    snapshot_put(s, name, rows, cols, t, w.rows.lo, w.cols.lo);
}

void cube_ledgers_reset(const Cube *c) {
    Comm *all[] = { c->grid.in_row, c->grid.in_col, c->grid.in_depth, c->same_col, c->same_row };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) comm_ledger_reset(all[i]);
}
void cube_sent(const Cube *c, double bytes[CUBE_AXES]) {
    Comm *axis[CUBE_AXES] = { c->grid.in_row, c->grid.in_col, c->grid.in_depth };
    for (size_t i = 0; i < CUBE_AXES; i++) bytes[i] = (double)comm_bytes_sent(axis[i]);
}

static void unsplit(Snapshot *want, Tensor X, Tensor V, Tensor W, Tensor dZ) {
    Arena scratch = arena(MEM_REFERENCE);
    Tensor Y = tensor_new(&scratch, X.rows, V.cols), Z = tensor_new(&scratch, X.rows, W.cols);
    Tensor dY = tensor_new(&scratch, Y.rows, Y.cols), dX = tensor_new(&scratch, X.rows, X.cols);
    Tensor dV = tensor_new(&scratch, V.rows, V.cols), dW = tensor_new(&scratch, W.rows, W.cols);
    op_matmul(Y, X, V);
    op_matmul(Z, Y, W);
    op_matmul_nt(dY, dZ, W);
    op_matmul_tn(dW, Y, dZ);
    op_matmul_nt(dX, dY, V);
    op_matmul_tn(dV, X, dY);
    const struct { const char *name; Tensor t; } all[] = { { "Y", Y }, { "Z", Z }, { "dY", dY }, { "dX", dX },
                                                           { "dV", dV }, { "dW", dW } };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        snapshot_put(want, all[i].name, all[i].t.rows, all[i].t.cols, all[i].t, 0, 0);
    arena_free(&scratch);
}

void cube_linears(Run *run, const Cube *c, CubeSizes z, bool shown) {
    const size_t M = z.B * z.T;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor X = drawn(run, &scratch, KEY_X, M, z.K), V = drawn(run, &scratch, KEY_V, z.K, z.N);
    Tensor W = drawn(run, &scratch, KEY_W, z.N, z.K), dZ = drawn(run, &scratch, KEY_DZ, M, z.K);
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);

    CubeLayout at = cube_layout(c, &(Batch){ .B = z.B, .T = z.T }), swapped = cube_swapped(at);
    const Window of_x = activation(at, z.B, z.K), of_y = activation(swapped, z.B, z.N);
    const Window of_v = weights(at, z.K, z.N), of_w = weights(swapped, z.N, z.K);
    Param v = param(&scratch, "V", V, of_v), w = param(&scratch, "W", W, of_w);
    Tensor x = part(&scratch, X, of_x), y = tensor_new(&scratch, range_size(of_y.rows), range_size(of_y.cols));
    Tensor out = tensor_new(&scratch, x.rows, x.cols), dout = part(&scratch, dZ, of_x);
    Tensor dy = tensor_new(&scratch, y.rows, y.cols), dx = tensor_new(&scratch, x.rows, x.cols);
    double first[2][CUBE_AXES], second[CUBE_AXES];

    picture_begin(run, MEM_WORKSPACE);
    cube_ledgers_reset(c);
    record_enter(EVENT_FORWARD, 0);
    CubeOperands one = cube_operands(at, &scratch, x, v.w);
    cube_forward(at, y, one);                                      // Y is swapped
    record_leave();
    cube_sent(c, first[0]);
    cube_ledgers_reset(c);
    record_enter(EVENT_FORWARD, 1);
    CubeOperands two = cube_operands(swapped, &scratch, y, w.w);
    cube_forward(swapped, out, two);                               // Z stands where X does
    record_leave();
    record_enter(EVENT_BACKWARD, 1);
    cube_backward(swapped, dy, &w, dout, two);
    record_leave();
    cube_sent(c, second);
    cube_ledgers_reset(c);
    record_enter(EVENT_BACKWARD, 0);
    cube_backward(at, dx, &v, dy, one);
    record_leave();
    cube_sent(c, first[1]);
    picture_end(run);

    put(got, "Y", M, z.N, y, of_y);   put(got, "Z", M, z.K, out, of_x);
    put(got, "dY", M, z.N, dy, of_y); put(got, "dX", M, z.K, dx, of_x);
    put(got, "dV", z.K, z.N, v.g, of_v); put(got, "dW", z.N, z.K, w.g, of_w);
    ledger_pause();
    if (run->is_root) unsplit(want, X, V, W, dZ);
    ledger_resume();
    check_close(run, "two linear layers = unsplit", got, want, LIMIT_ROUNDING);
    snapshot_free(got); snapshot_free(want);
    if (shown) picture_show(run, "Y = X V, Z = Y W, forward and backward", PICTURE_ALIKE_ONCE);
    for (size_t i = 0; i < CUBE_AXES; i++) first[0][i] += first[1][i];
    cube_linear_costs(run, &c->grid, z, first[0], second);
    arena_free(&scratch);
}

// ---------------------------------------------------------------- who holds what

static void text_of(char text[32], Window w) {
    snprintf(text, 32, "%zu-%zu, %zu-%zu", w.rows.lo, w.rows.hi - 1, w.cols.lo, w.cols.hi - 1);
}
void cube_places(Run *run, size_t q, CubeSizes z) {
    say(run, "  X [%zu sequences, %zu columns], V [%zu, %zu], Y = X V [%zu, %zu], W [%zu, %zu], Z = Y W [%zu, %zu]",
        z.B, z.K, z.K, z.N, z.B, z.N, z.N, z.K, z.B, z.K);
    say(run, "    rank  layer row col    X          V           Y: swapped    W            Z: as X");
    for (size_t rank = 0; rank < q * q * q && rank < 8; rank++) {  // of 27 ranks the first ones
        Comm row = { .size = q, .rank = rank / q % q }, col = { .size = q, .rank = rank % q };
        Comm layer = { .size = q, .rank = rank / (q * q) };
        CubeLayout at = { .rows = &row, .cols = &col, .layers = &layer, .T = 1 }, swapped = cube_swapped(at);
        char x[32], v[32], y[32], w[32];
        text_of(x, activation(at, z.B, z.K));
        text_of(v, weights(at, z.K, z.N));
        text_of(y, activation(swapped, z.B, z.N));
        text_of(w, weights(swapped, z.N, z.K));
        say(run, "    %4zu  %5zu %3zu %3zu    %-9s  %-10s  %-10s    %-11s  %s", rank, layer.rank, row.rank, col.rank, x,
            v, y, w, x);
    }
}
