// ranks: 4
// level: core
// question: How do ranks share one linear layer, and which way through it do they have to talk?
//
// Y = dropout(X W + b), X [B, K], W [K, N]; a step of SGD on half the squared distance of Y from a target, three times.
//     column-parallel   rank holds W[:, its columns] and b[its columns]; every rank has X whole; Y stays cut by columns
//     row-parallel      rank holds W[its rows, :] and all of b; X comes cut by columns; every rank gets Y whole
// Neither 10 columns nor 11 rows divide by 4: shard_range gives the first ranks one more. Left out: a second layer,
// which is what makes both cuts worth having (next lesson).
#include "common/model/formulas.h"
#include "common/lesson/lesson.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include <stdio.h>

enum { B = 6, K = 11, N = 10, STEPS = 3 };
enum { KEY_X = 101, KEY_W, KEY_B, KEY_TARGET, KEY_MASK };
static const real rate = (real)0.05, inverse_batch = (real)(1.0 / B);
static const double keep_out = 0.2;                        // the probability that dropout drops an element

typedef struct {
    Tensor w, b, dw, db;
    Range part;                                            // my columns, or my rows
    Arena parameters, gradients;
} Linear;

// ---------------------------------------------------------------- data and parts

static Tensor drawn(Arena *a, uint64_t seed, uint64_t what, size_t rows, size_t cols, double deviation) {
    Tensor t = tensor_new(a, rows, cols);
    tensor_randomize(t, random_key(seed, what), deviation);
    return t;
}

// Drawn whole, then cut: so the layer starts as the unsplit one whatever the number of ranks.
static Linear linear_new(uint64_t seed, Range rows, Range cols) {
    Linear l = { .parameters = arena(MEM_PARAMETERS), .gradients = arena(MEM_GRADIENTS) };
    size_t k = range_size(rows), n = range_size(cols);
    ledger_pause();                                        // the whole one is not counted, and freed at once
    Arena whole = arena(MEM_REFERENCE);
    Tensor w = drawn(&whole, seed, KEY_W, K, N, 0.3), b = drawn(&whole, seed, KEY_B, 1, N, 0.3);
    ledger_resume();
    l.w = tensor_new(&l.parameters, k, n); l.dw = tensor_new(&l.gradients, k, n);
    l.b = tensor_new(&l.parameters, 1, n); l.db = tensor_new(&l.gradients, 1, n);
    tensor_copy(l.w, tensor_col_range(tensor_row_range(w, rows.lo, rows.hi), cols.lo, cols.hi));
    tensor_copy(l.b, tensor_col_range(b, cols.lo, cols.hi));
    arena_free(&whole);
    return l;
}
static void linear_free(Linear *l) { arena_free(&l->parameters); arena_free(&l->gradients); }

// Rows are sequences here: the mask of an element follows from (step, row, column of the WHOLE layer), never from a
// rank.
static Dropout mask(Run *run, size_t step, size_t first_column) {
    return (Dropout){ .key = random_key(random_key(run->seed, KEY_MASK), step), .p = keep_out, .col0 = first_column };
}

static void update(Linear *l) {
    op_sgd(l->w, l->dw, 1, rate, 0);
    op_sgd(l->b, l->db, 1, rate, 0);
}

// ---------------------------------------------------------------- unsplit

static void unsplit_forward(Tensor y, Tensor x, const Linear *l, Dropout d) {
    op_matmul(y, x, l->w);                                 // [B, N] = [B, K] x [K, N]
    op_add_bias(y, y, l->b);
    op_dropout(y, y, d);
}
static void unsplit_backward(Tensor dx, Tensor x, Tensor dy, Linear *l, Dropout d) {
    op_dropout(dy, dy, d);
    op_matmul_tn(l->dw, x, dy);                            // [K, N] = [B, K]^T x [B, N]
    op_sum_rows(l->db, dy);
    op_matmul_nt(dx, dy, l->w);                            // [B, K] = [B, N] x [K, N]^T
}

// ---------------------------------------------------------------- column-parallel

static void column_forward(Tensor y, Tensor x, const Linear *l, Dropout d) {
    op_matmul(y, x, l->w);                                 // [B, N/tp] = [B, K] x [K, N/tp]   finished: nothing to say
    op_add_bias(y, y, l->b);                               // b is cut with the columns
    op_dropout(y, y, d);                                   // d.col0: my first column
}
static void column_backward(Comm *tp, Tensor dx, Tensor x, Tensor dy, Linear *l, Dropout d) {
    op_dropout(dy, dy, d);
    op_matmul_tn(l->dw, x, dy);                            // [K, N/tp]: finished
    op_sum_rows(l->db, dy);
    op_matmul_nt(dx, dy, l->w);                            // [B, K] = [B, N/tp] x [K, N/tp]^T: what my columns say
    comm_all_reduce(tp, dx);                               // all columns together: B*K reals      (Megatron's f)
}

// ---------------------------------------------------------------- row-parallel

static void row_forward(Comm *tp, Tensor y, Tensor my_x, const Linear *l, Dropout d) {
    op_matmul(y, my_x, l->w);                              // [B, N] = [B, K/tp] x [K/tp, N]   a partial sum
    comm_all_reduce(tp, y);                                // all rows together: B*N reals          (Megatron's g)
    op_add_bias(y, y, l->b);                               // once, after the sum
    op_dropout(y, y, d);                                   // Y is whole on every rank, so is the mask
}
static void row_backward(Tensor my_dx, Tensor my_x, Tensor dy, Linear *l, Dropout d) {
    op_dropout(dy, dy, d);
    op_matmul_tn(l->dw, my_x, dy);                         // [K/tp, N]: finished
    op_sum_rows(l->db, dy);                                // every rank sees all of dY: equal on all, not summed
    op_matmul_nt(my_dx, dy, l->w);                         // [B, K/tp]: finished, nothing to say
}

// ---------------------------------------------------------------- three steps of one of the three

typedef enum { UNSPLIT, COLUMNS, ROWS } How;
typedef struct { size_t parameters, gradients, optimizer, activations; } Held;     // bytes on this rank
static Held held_now(void) {                               // activations: the most since the step began
    return (Held){ memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
                   memory_peak(MEM_ACTIVATIONS) };
}

static void put(Snapshot *s, const char *name, size_t step, size_t rows, size_t cols, Tensor part,
                size_t row0, size_t col0) {
    char label[40];
    snprintf(label, sizeof label, "%s, step %zu", name, step + 1);
    snapshot_put(s, label, rows, cols, part, row0, col0);
}

// Fills `seen` with Y and all gradients of each step, `weights` with what three steps made of W and b, `loss` per
// step. Returns what this rank held in the last step.
static Held train(Run *run, How how, Snapshot *seen, Snapshot *weights, double loss[STEPS]) {
    Range rows = {0, K}, cols = {0, N};
    if (how == COLUMNS) cols = shard_range(N, run->world->size, run->world->rank);
    if (how == ROWS) rows = shard_range(K, run->world->size, run->world->rank);
    Linear l = linear_new(run->seed, rows, cols);
    Held held = {0};
    for (size_t step = 0; step < STEPS; step++) {
        memory_reset_peaks();
        Arena buffers = arena(MEM_WORKSPACE), kept = arena(MEM_ACTIVATIONS);
        Tensor whole = drawn(&buffers, run->seed, KEY_X + 1000 * step, B, K, 1);
        Tensor target = drawn(&buffers, run->seed, KEY_TARGET + 1000 * step, B, N, 1);
        Tensor x = tensor_new(&kept, B, range_size(rows)); // my columns of X where W is cut by rows, else all
        tensor_copy(x, tensor_col_range(whole, rows.lo, rows.hi));
        target = tensor_col_range(target, cols.lo, cols.hi);
        Tensor y = tensor_new(&buffers, B, range_size(cols)), dy = tensor_new(&buffers, B, range_size(cols));
        Tensor dx = tensor_new(&buffers, B, range_size(rows));
        Dropout d = mask(run, step, cols.lo);

        if (how == UNSPLIT) unsplit_forward(y, x, &l, d);
        if (how == COLUMNS) column_forward(y, x, &l, d);
        if (how == ROWS) row_forward(run->world, y, x, &l, d);
        op_scale(dy, target, -1);
        op_add(dy, y, dy);                                 // Y - target
        loss[step] = tensor_sum_of_squares(dy) / (2 * B);
        op_scale(dy, dy, inverse_batch);
        put(seen, "Y", step, B, N, y, 0, cols.lo);
        if (how == UNSPLIT) unsplit_backward(dx, x, dy, &l, d);
        if (how == COLUMNS) column_backward(run->world, dx, x, dy, &l, d);
        if (how == ROWS) row_backward(dx, x, dy, &l, d);

        put(seen, "grad X", step, B, K, dx, 0, rows.lo);
        put(seen, "grad W", step, K, N, l.dw, rows.lo, cols.lo);
        put(seen, "grad b", step, 1, N, l.db, 0, cols.lo);
        update(&l);
        held = held_now();
        arena_free(&buffers);
        arena_free(&kept);
    }
    snapshot_put(weights, "W", K, N, l.w, rows.lo, cols.lo);
    snapshot_put(weights, "b", 1, N, l.b, 0, cols.lo);
    linear_free(&l);
    return held;
}

// ---------------------------------------------------------------- comparison

// A cut's name, and what it predicts for one rank: elements of W and b, elements kept for backward, elements that one
// all-reduce is over.
typedef struct { const char *cut; size_t elements, kept, spoken; } Predicted;

static void costs(Run *run, const Predicted *p, const Held *held, double calls, double bytes) {
    const size_t e = sizeof(real);
    char what[48];
    snprintf(what, sizeof what, "%ss: W and b", p->cut);
    cost(run, what, "bytes", (double)(p->elements * e), (double)held->parameters);
    snprintf(what, sizeof what, "%ss: gradients", p->cut);
    cost(run, what, "bytes", (double)(p->elements * e), (double)held->gradients);
    snprintf(what, sizeof what, "%ss: SGD's state", p->cut);
    cost(run, what, "bytes", 0, (double)held->optimizer);
    snprintf(what, sizeof what, "%ss: X, kept for backward", p->cut);
    cost(run, what, "bytes", (double)(p->kept * e), (double)held->activations);
    // One all-reduce a step: of dX [B, K] on the way back, or of Y [B, N] on the way there. A ring sends every chunk
    // twice, n-1 hops each.
    snprintf(what, sizeof what, "%ss: all-reduces a step", p->cut);
    cost(run, what, "calls", 1, calls);
    snprintf(what, sizeof what, "%ss: sent a step", p->cut);
    cost(run, what, "bytes", ring_bytes(ALL_REDUCE_PASSES, run->world->size, p->spoken, e), bytes);
}

static void compare(Run *run, How how, const Predicted *p) {
    Comm *tp = run->world;
    char what[48];
    double loss[STEPS], want_loss[STEPS] = {0};
    Snapshot *got = snapshot_new(run), *weights = snapshot_new(run);
    Snapshot *want = snapshot_new(run), *want_weights = snapshot_new(run);
    comm_ledger_reset(tp);
    Held held = train(run, how, got, weights, loss);
    size_t calls = tp->ledger[COMM_ALL_REDUCE].calls, bytes = comm_bytes_sent(tp);
    ledger_pause();
    if (how == COLUMNS) comm_all_reduce_doubles(tp, loss, STEPS);      // a rank saw its own columns; not counted
    if (tp->rank == 0) train(run, UNSPLIT, want, want_weights, want_loss);
    ledger_resume();

    snprintf(what, sizeof what, "%s-parallel = unsplit", p->cut);
    check_numbers(run, what, "loss, 3 steps", loss, want_loss, STEPS, LIMIT_ROUNDING);
    check_close(run, what, got, want, LIMIT_ROUNDING);
    check_close(run, what, weights, want_weights, LIMIT_ROUNDING);
    snapshot_free(got); snapshot_free(weights); snapshot_free(want); snapshot_free(want_weights);
    costs(run, p, &held, (double)calls / STEPS, (double)bytes / STEPS);
}

static void linear_layer(Run *run) {
    REQUIRE(run->world->size <= N, "%zu ranks cannot share %d columns: start at most %d", run->world->size, N, N);
    size_t n = run->world->size, me = run->world->rank;
    size_t cols = range_size(shard_range(N, n, me)), rows = range_size(shard_range(K, n, me));
    say(run, "W [%d, %d]: rank 0 holds %zu columns, or %zu rows", K, N, cols, rows);
    // By columns: K*N/tp + N/tp, and all of X. By rows: K*N/tp + N, as the bias is whole, and my columns of X.
    compare(run, COLUMNS, &(Predicted){ "column", (K + 1) * cols, B * K, B * K });
    compare(run, ROWS, &(Predicted){ "row", rows * N + N, B * rows, B * N });
}

static const Option options[] = { {0} };
LESSON(linear_layer, options);
