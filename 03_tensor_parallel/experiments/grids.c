// grids.c: runs linear layers without the rest of a model, split and unsplit. On a grid, one layer
// computes Y = X W + b (09_summa.c). On a cube, two layers compute Y = X V and Z = Y W (11_cube.c).
// Every rank draws the whole tensors and takes its parts.
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/comm/record.h"
#include "common/tensor/random.h"

typedef struct {
    Range rows, cols;
} Window; // this rank's part of a whole tensor

static Tensor drawn(Run *run, Arena *a, uint64_t key, size_t rows, size_t cols) {
    Tensor t = tensor_shaped(a, tensor_shape(rows, cols, option_storage(run)));
    tensor_randomize(t, random_key(run->seed, key), 1);
    return t;
}
static Tensor room(Run *run, Arena *a, Window w) {
    return tensor_shaped(a,
                         tensor_shape(range_size(w.rows), range_size(w.cols), option_storage(run)));
}
static Tensor part(Run *run, Arena *a, Tensor whole, Window w) {
    Tensor t = room(run, a, w), rows = tensor_row_range(whole, w.rows.lo, w.rows.hi);
    tensor_copy(t, tensor_col_range(rows, w.cols.lo, w.cols.hi));
    return t;
}
static Param param(Run *run, Arena *a, const char *name, Tensor whole, Window w) {
    Param p = param_describe(name, whole.rows, whole.cols, 1);
    p.own_rows = w.rows;
    p.own_cols = w.cols;
    p.w = part(run, a, whole, w);
    p.g = tensor_new(a, p.w.rows, p.w.cols); // reals in any storage
    p.gradient_empty = true;
    return p;
}
static void put(Snapshot *s, const char *name, size_t rows, size_t cols, Tensor t, Window w) {
    if (t.rows) snapshot_put(s, name, rows, cols, t, w.rows.lo, w.cols.lo);
}
static void put_whole(Snapshot *s, const char *name, Tensor t) {
    snapshot_put(s, name, t.rows, t.cols, t, 0, 0);
}
static void compare(Run *run, const char *what, Snapshot *got, Snapshot *want) {
    check_close(run, what, got, want, rounding_limit(run));
    snapshot_free(got);
    snapshot_free(want);
}

// ---------------------------------------------------------------- one layer on a grid

static void unsplit_layer(Snapshot *want, Tensor X, Tensor W, Tensor b, Tensor dY) {
    Arena scratch = arena(MEM_REFERENCE);
    Tensor Y = tensor_like(&scratch, dY), dX = tensor_like(&scratch, X);
    Tensor dW = tensor_new(&scratch, W.rows, W.cols), db = tensor_new(&scratch, 1, b.cols);
    op_matmul(Y, X, W);
    op_add_bias(Y, Y, b);
    op_matmul_nt(dX, dY, W);
    op_matmul_tn(dW, X, dY);
    op_sum_rows(db, dY);
    put_whole(want, "Y", Y);
    put_whole(want, "grad X", dX);
    put_whole(want, "grad W", dW);
    put_whole(want, "grad b", db);
    arena_free(&scratch);
}

// Checks the costs of one layer's forward, if q divides all sizes. In q turns a rank receives q-1
// of its row's q blocks of X, and q-1 of its column's q blocks of W. After the turns every rank
// outside row 0 receives the bias. A turn needs room for a block of X and a block of W, but not for
// a block that the rank owns.
static void product_costs(Run *run, const CommGrid *g, LinearSizes z, size_t received,
                          size_t panels) {
    const size_t q = g->cols, M = z.B * z.T, e = element_size(option_storage(run));
    const size_t x = M * z.K / (q * q) * e, w = z.K * z.N / (q * q) * e;
    const size_t bias = g->row != 0 ? z.N / q * e : 0; // row 0 holds the bias
    size_t most = 0;
    for (size_t l = 0; l < q; l++) {
        const size_t room = (g->col != l ? x : 0) + (g->row != l ? w : 0);
        if (room > most) most = room;
    }
    check_costs(run, "layer.%s", "one layer: %s",
                (CostRow[]){ { "forward.received", "received in forward", "bytes",
                               BY_FORMULA((q - 1) * (x + w) + bias), received },
                             { "panels", "panels", "bytes", BY_FORMULA(most), panels },
                             { 0 } });
}

void grid_linear_compare(Run *run, const CommGrid *g, LinearSizes z) {
    enum { KEY_X = 1, KEY_W, KEY_B, KEY_DY };
    const size_t M = z.B * z.T, K = z.K, N = z.N, q = g->cols;
    const SummaCut inner = { K, 1 };
    const Range m = summa_range((SummaCut){ M, 1 }, q, g->row), n = shard_range(N, q, g->col);
    const Window x_window = { m, summa_range(inner, q, g->col) }, y_window = { m, n };
    const Window w_window = { summa_range(inner, q, g->row), n };
    const Window b_window = { { 0, g->row == 0 }, n };
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor X = drawn(run, &scratch, KEY_X, M, K), W = drawn(run, &scratch, KEY_W, K, N);
    Tensor b = drawn(run, &scratch, KEY_B, 1, N), dY = drawn(run, &scratch, KEY_DY, M, N);
    Tensor x = part(run, &scratch, X, x_window), dx = tensor_like(&scratch, x);
    Tensor dy = part(run, &scratch, dY, y_window), y = tensor_like(&scratch, dy);
    Param p[] = { param(run, &scratch, "W", W, w_window), param(run, &scratch, "b", b, b_window) };

    picture_begin(run, MEM_COMMUNICATION);
    memory_reset_peaks();
    comm_ledger_reset(g->in_row);
    comm_ledger_reset(g->in_col);
    record_enter(EVENT_FORWARD, NO_NUMBER);
    summa_linear_forward(g, inner, y, x, p);
    record_leave();
    const size_t panels = memory_peak(MEM_COMMUNICATION);
    const size_t received = comm_bytes_received(g->in_row) + comm_bytes_received(g->in_col);
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    summa_linear_backward(g, inner, dx, x, dy, p);
    record_leave();
    picture_end(run);

    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    put(got, "Y", M, N, y, y_window);
    put(got, "grad X", M, K, dx, x_window);
    put(got, "grad W", K, N, p[0].g, w_window);
    put(got, "grad b", 1, N, p[1].g, b_window);
    ledger_pause();
    if (run->is_root) unsplit_layer(want, X, W, b, dY);
    ledger_resume();
    compare(run, "one linear layer = unsplit", got, want);
    arena_free(&scratch);
    if (M % q == 0 && K % q == 0 && N % q == 0) product_costs(run, g, z, received, panels);
    if (clock_config()->simulated)
        picture_show(run, "One linear layer, blocks on a grid", PICTURE_CHART);
}

// ---------------------------------------------------------------- two layers on a cube

static Window activation(CubeLayout at, size_t sequences, size_t cols) {
    Range r = cube_sequences(at, sequences);
    return (Window){ { r.lo * at.T, r.hi * at.T },
                     shard_range(cols, at.cols->size, at.cols->rank) };
}
// Returns this rank's part of weights. `at` is the layout of the inputs that these weights
// multiply.
static Window weights(CubeLayout at, size_t rows, size_t cols) {
    Range gathered = shard_range(rows, at.cols->size, at.cols->rank);
    Range own = shard_range(range_size(gathered), at.layers->size, at.layers->rank);
    return (Window){ { gathered.lo + own.lo, gathered.lo + own.hi },
                     shard_range(cols, at.rows->size, at.rows->rank) };
}
static void unsplit_layers(Snapshot *want, Tensor X, Tensor V, Tensor W, Tensor dZ) {
    Arena scratch = arena(MEM_REFERENCE);
    const Element e = X.element;
    Tensor Y = tensor_shaped(&scratch, tensor_shape(X.rows, V.cols, e));
    Tensor Z = tensor_shaped(&scratch, tensor_shape(X.rows, W.cols, e));
    Tensor dY = tensor_like(&scratch, Y), dX = tensor_like(&scratch, X);
    Tensor dV = tensor_new(&scratch, V.rows, V.cols), dW = tensor_new(&scratch, W.rows, W.cols);
    op_matmul(Y, X, V);
    op_matmul(Z, Y, W);
    op_matmul_nt(dY, dZ, W);
    op_matmul_tn(dW, Y, dZ);
    op_matmul_nt(dX, dY, V);
    op_matmul_tn(dV, X, dY);
    put_whole(want, "Y", Y);
    put_whole(want, "Z", Z);
    put_whole(want, "dY", dY);
    put_whole(want, "dX", dX);
    put_whole(want, "dV", dV);
    put_whole(want, "dW", dW);
    arena_free(&scratch);
}

// Returns the bytes that each of q^3 ranks sends in forward and backward of both layers, if all
// parts are equal. Per layer a rank sends 2(q-1)/q^3 (|X| + |W| + |Y|) elements, where X, W and Y
// are whole matrices. Half of the |W| elements belong to the gradient of W, which is in reals.
static double bytes_of_both(Run *run, double q, LinearSizes z) {
    const size_t e = element_size(option_storage(run)), x_and_y = z.B * z.T * (z.K + z.N);
    const double bytes = (double)(2 * x_and_y * e + z.K * z.N * (e + sizeof(real)));
    return 2 * (q - 1) / (q * q * q) * bytes;
}

void cube_two_linears(Run *run, const Cube *c, LinearSizes z, bool shown) {
    enum { KEY_X = 101, KEY_V, KEY_W, KEY_DZ };
    const size_t M = z.B * z.T;
    Comm *const axis[] = { c->grid.in_row, c->grid.in_col, c->grid.in_depth };
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor X = drawn(run, &scratch, KEY_X, M, z.K), V = drawn(run, &scratch, KEY_V, z.K, z.N);
    Tensor W = drawn(run, &scratch, KEY_W, z.N, z.K), dZ = drawn(run, &scratch, KEY_DZ, M, z.K);
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);

    CubeLayout at = cube_layout(c, &(Batch){ .B = z.B, .T = z.T }), swapped = cube_swapped(at);
    const Window x_window = activation(at, z.B, z.K), y_window = activation(swapped, z.B, z.N);
    const Window v_window = weights(at, z.K, z.N), w_window = weights(swapped, z.N, z.K);
    Param v = param(run, &scratch, "V", V, v_window), w = param(run, &scratch, "W", W, w_window);
    Tensor x = part(run, &scratch, X, x_window), y = room(run, &scratch, y_window);
    Tensor out = tensor_like(&scratch, x), dout = part(run, &scratch, dZ, x_window);
    Tensor dy = tensor_like(&scratch, y), dx = tensor_like(&scratch, x);
    for (size_t i = 0; i < 3; i++) comm_ledger_reset(axis[i]);

    picture_begin(run, MEM_WORKSPACE);
    record_enter(EVENT_FORWARD, 0);
    CubeOperands x_and_v = cube_operands(at, &scratch, x, v.w);
    cube_forward(at, y, x_and_v); // Y has the swapped layout
    record_leave();
    record_enter(EVENT_FORWARD, 1);
    CubeOperands y_and_w = cube_operands(swapped, &scratch, y, w.w);
    cube_forward(swapped, out, y_and_w); // Z has the layout of X
    record_leave();
    record_enter(EVENT_BACKWARD, 1);
    cube_backward(swapped, dy, &w, dout, y_and_w);
    record_leave();
    record_enter(EVENT_BACKWARD, 0);
    cube_backward(at, dx, &v, dy, x_and_v);
    record_leave();
    picture_end(run);

    size_t sent = 0;
    for (size_t i = 0; i < 3; i++) sent += comm_bytes_sent(axis[i]);
    put(got, "Y", M, z.N, y, y_window);
    put(got, "Z", M, z.K, out, x_window);
    put(got, "dY", M, z.N, dy, y_window);
    put(got, "dX", M, z.K, dx, x_window);
    put(got, "dV", z.K, z.N, v.g, v_window);
    put(got, "dW", z.N, z.K, w.g, w_window);
    ledger_pause();
    if (run->is_root) unsplit_layers(want, X, V, W, dZ);
    ledger_resume();
    compare(run, "two linear layers = unsplit", got, want);
    arena_free(&scratch);
    if (!shown) return;
    picture_show(run, "Two linear layers: F0, F1, then B1, B0", PICTURE_ALIKE_ONCE);
    check_cost(run, "linears", "two linear layers: 4(q-1)/q^3 (|x| + |w| + |y|)", "bytes",
               formula(bytes_of_both(run, (double)c->grid.rows, z)), NOT_PREDICTED, (double)sent);
}
