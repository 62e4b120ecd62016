// ranks: 4
// level: core
// question: How can two matrix products in a row be split so that the ranks talk only once each way?
//
// The MLP of a Transformer: Y = dropout(GELU(X A + a) B + b), X [M, C], A [C, F], B [F, C]. A is cut by columns and B
// by rows (Shoeybi et al. 2019): the hidden columns that rank i makes are exactly the rows of B that it holds, so
// nothing is said between the two products. Every rank has X and Y whole. F = 38 does not divide by 4. Then the other
// order is tried, and numbers show why it is not taken. Left out: norms, the residual path (lesson 06).
#include "common/model/formulas.h"
#include "common/tensor/ops.h"
#include "common/lesson/picture.h"
#include "common/tensor/random.h"
#include "common/measure/record.h"
#include <stdio.h>

enum { M = 10, C = 10, F = 38, STEPS = 3 };                // rows of X (tokens), width, hidden columns
enum { W1, B1, W2, B2, PARAMS };
static const char *const param_name[PARAMS] = { "A", "a", "B", "b" };
enum { KEY_X = 101, KEY_TARGET, KEY_MASK, KEY_WEIGHTS };
static const double drop = 0.1, rate = 0.1;

typedef struct {
    Range hidden;                                          // my columns of A and a, my rows of B
    Tensor w[PARAMS], g[PARAMS];
    Tensor h, act;                                         // [M, F/tp]: before and after GELU, kept for backward
    Arena parameters, gradients, kept;
} Mlp;

// ---------------------------------------------------------------- who holds what

typedef struct { Range rows, cols; } Place;                // of my part in the whole tensor
static Place place(int p, Range hidden) {
    const Range one = {0, 1}, width = {0, C};
    switch (p) {
    case W1: return (Place){width, hidden};
    case B1: return (Place){one, hidden};
    case W2: return (Place){hidden, width};
    default: return (Place){one, width};                   // b is added after the sum: whole on every rank
    }
}

static Mlp mlp_new(uint64_t seed, Range hidden) {
    Mlp m = { .hidden = hidden, .parameters = arena(MEM_PARAMETERS), .gradients = arena(MEM_GRADIENTS),
              .kept = arena(MEM_ACTIVATIONS) };
    for (int p = 0; p < PARAMS; p++) {
        Place at = place(p, hidden), all = place(p, (Range){0, F});
        m.w[p] = tensor_new(&m.parameters, range_size(at.rows), range_size(at.cols));
        m.g[p] = tensor_new(&m.gradients, range_size(at.rows), range_size(at.cols));
        ledger_pause();                                    // drawn whole, then cut
        Arena scratch = arena(MEM_REFERENCE);
        Tensor whole = tensor_new(&scratch, all.rows.hi, all.cols.hi);
        tensor_randomize(whole, random_key(random_key(seed, KEY_WEIGHTS), (uint64_t)p), 0.3);
        tensor_copy(m.w[p], tensor_col_range(tensor_row_range(whole, at.rows.lo, at.rows.hi), at.cols.lo, at.cols.hi));
        arena_free(&scratch);
        ledger_resume();
    }
    m.h = tensor_new(&m.kept, M, range_size(hidden));
    m.act = tensor_new(&m.kept, M, range_size(hidden));
    return m;
}
static void mlp_free(Mlp *m) { arena_free(&m->parameters); arena_free(&m->gradients); arena_free(&m->kept); }

static Dropout mask(Run *run, size_t step) {               // of Y, which every rank has whole: the same on all
    return (Dropout){ .key = random_key(random_key(run->seed, KEY_MASK), step), .p = drop };
}

// ---------------------------------------------------------------- the layer; tp NULL: unsplit, all hidden columns

static void forward(Comm *tp, Mlp *m, Tensor y, Tensor x, Dropout d) {
    record_enter(EVENT_FORWARD, NO_NUMBER);                // for the picture
    op_matmul(m->h, x, m->w[W1]);                          // [M, F/tp] = [M, C] x [C, F/tp]: my columns of A
    op_add_bias(m->h, m->h, m->w[B1]);
    op_gelu(m->act, m->h);                                 // element by element, so columns stay columns
    op_matmul(y, m->act, m->w[W2]);                        // [M, C] = [M, F/tp] x [F/tp, C]: a partial sum
    if (tp) comm_all_reduce(tp, y);                        // the only words of the forward pass: M*C reals
    op_add_bias(y, y, m->w[B2]);                           // once, after the sum
    op_dropout(y, y, d);
    record_leave();
}

static void backward(Comm *tp, Mlp *m, Tensor dx, Tensor x, Tensor dy, Dropout d) {
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dh = tensor_new(&scratch, M, range_size(m->hidden));
    op_dropout(dy, dy, d);
    op_matmul_tn(m->g[W2], m->act, dy);                    // [F/tp, C]: my rows of dB, finished
    op_sum_rows(m->g[B2], dy);                             // equal on every rank
    op_matmul_nt(dh, dy, m->w[W2]);                        // [M, F/tp] = [M, C] x [F/tp, C]^T: my hidden columns
    op_gelu_backward(dh, m->h, dh);
    op_matmul_tn(m->g[W1], x, dh);                         // [C, F/tp]: my columns of dA, finished
    op_sum_rows(m->g[B1], dh);
    op_matmul_nt(dx, dh, m->w[W1]);                        // [M, C] = [M, F/tp] x [C, F/tp]^T: what my columns say
    if (tp) comm_all_reduce(tp, dx);                       // the only words of the backward pass: M*C reals
    arena_free(&scratch);
    record_leave();
}

// ---------------------------------------------------------------- three steps

static Tensor drawn(Run *run, Arena *a, uint64_t what, size_t step) {
    Tensor t = tensor_new(a, M, C);
    tensor_randomize(t, random_key(random_key(run->seed, what), step), 1);
    return t;
}
static void put(Snapshot *s, const Mlp *m, const Tensor *t, const char *kind, size_t step) {
    for (int p = 0; p < PARAMS; p++) {
        Place at = place(p, m->hidden), all = place(p, (Range){0, F});
        char name[40];
        snprintf(name, sizeof name, "%s%s, step %zu", kind, param_name[p], step + 1);
        snapshot_put(s, name, all.rows.hi, all.cols.hi, t[p], at.rows.lo, at.cols.lo);
    }
}

typedef struct { size_t parameters, gradients, optimizer, activations; } Held;     // bytes on this rank
static Held held_now(void) {                               // activations: the most since the step began
    return (Held){ memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
                   memory_peak(MEM_ACTIVATIONS) };
}

// tp NULL: the unsplit twin. The last step of the other one is recorded. Returns what this rank held in it.
static Held train(Run *run, Comm *tp, Snapshot *seen, Snapshot *weights, double loss[STEPS]) {
    Mlp m = mlp_new(run->seed, tp ? shard_range(F, tp->size, tp->rank) : (Range){0, F});
    Held held = {0};
    for (size_t step = 0; step < STEPS; step++) {
        bool recorded = tp && step + 1 == STEPS;
        memory_reset_peaks();
        Arena buffers = arena(MEM_WORKSPACE), kept = arena(MEM_ACTIVATIONS);
        Tensor x = drawn(run, &kept, KEY_X, step), target = drawn(run, &buffers, KEY_TARGET, step);
        Tensor y = tensor_new(&buffers, M, C), dy = tensor_new(&buffers, M, C), dx = tensor_new(&buffers, M, C);
        if (recorded) picture_begin(run, MEM_ACTIVATIONS);
        forward(tp, &m, y, x, mask(run, step));
        op_scale(dy, target, -1);
        op_add(dy, y, dy);
        loss[step] = tensor_sum_of_squares(dy) / (2 * M);  // Y is whole: every rank knows the loss
        op_scale(dy, dy, (real)(1.0 / M));
        backward(tp, &m, dx, x, dy, mask(run, step));
        if (recorded) picture_end(run);

        char name[2][40];
        snprintf(name[0], sizeof name[0], "Y, step %zu", step + 1);
        snprintf(name[1], sizeof name[1], "grad X, step %zu", step + 1);
        snapshot_put(seen, name[0], M, C, y, 0, 0);
        snapshot_put(seen, name[1], M, C, dx, 0, 0);
        put(seen, &m, m.g, "grad ", step);
        for (int p = 0; p < PARAMS; p++) op_sgd(m.w[p], m.g[p], 1, (real)rate, 0);
        held = held_now();
        arena_free(&buffers);
        arena_free(&kept);
    }
    put(weights, &m, m.w, "updated ", STEPS - 1);
    mlp_free(&m);
    return held;
}

// ---------------------------------------------------------------- the other order: A cut by rows
// Then X A is a sum over ranks, and GELU(u + v) is not GELU(u) + GELU(v): the ranks must add the [M, F] BEFORE the
// GELU, four times the words of [M, C] where F = 4 C.

static double gelu_of(double u) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor t = tensor_new(&scratch, 1, 1);
    tensor_fill(t, (real)u);
    op_gelu(t, t);
    double value = tensor_sum(t);
    arena_free(&scratch);
    return value;
}

static void rows_first(Run *run) {
    say(run, "GELU(2) + GELU(-2) = %.4f, but GELU(2 + -2) = %.4f", gelu_of(2) + gelu_of(-2), gelu_of(0));
    Comm *tp = run->world;
    Range mine = shard_range(C, tp->size, tp->rank);
    Mlp m = mlp_new(run->seed, (Range){0, F});             // the whole A, of which this rank uses its rows
    Arena buffers = arena(MEM_WORKSPACE);
    Tensor x = drawn(run, &buffers, KEY_X, 0), sum_of_gelus = tensor_new(&buffers, M, F);
    Snapshot *added_late = snapshot_new(run), *added_first = snapshot_new(run), *want = snapshot_new(run);

    Tensor my_x = tensor_col_range(x, mine.lo, mine.hi), my_rows = tensor_row_range(m.w[W1], mine.lo, mine.hi);
    op_matmul(m.h, my_x, my_rows);                         // [M, F] = [M, C/tp] x [C/tp, F]: a partial sum
    op_gelu(sum_of_gelus, m.h);
    comm_all_reduce(tp, sum_of_gelus);                     // too late
    snapshot_put(added_late, "GELU(X A)", M, F, sum_of_gelus, 0, 0);

    comm_ledger_reset(tp);
    comm_all_reduce(tp, m.h);
    cost(run, "A by rows instead: sent before GELU", "bytes",
         ring_bytes(ALL_REDUCE_PASSES, tp->size, M * F, sizeof(real)), (double)comm_bytes_sent(tp));
    op_gelu(m.act, m.h);
    snapshot_put(added_first, "GELU(X A)", M, F, m.act, 0, 0);

    if (tp->rank == 0) {
        op_matmul(m.h, x, m.w[W1]);
        op_gelu(m.act, m.h);
        snapshot_put(want, "GELU(X A)", M, F, m.act, 0, 0);
    }
    check_close(run, "A by rows, added before GELU = unsplit", added_first, want, LIMIT_ROUNDING);
    if (tp->size > 1) check_differs(run, "A by rows, added after GELU is wrong", added_late, want, 0.1);
    snapshot_free(added_late); snapshot_free(added_first); snapshot_free(want);
    mlp_free(&m);
    arena_free(&buffers);
}

// ---------------------------------------------------------------- comparison and predictions

// All is cut but b; kept are X and, of my hidden columns, what goes in and out of GELU. Two all-reduces of [M, C]: Y
// and dX. Nothing is computed meanwhile, and rank 0, which has most hidden columns, sets the pace.
static void predict(Run *run, const Held *held, double calls, double bytes) {
    const size_t n = run->world->size, f = range_size(shard_range(F, n, run->world->rank)), e = sizeof(real);
    const size_t parameters = (C * f + f + f * C + C) * e;
    cost(run, "A, a, B, b", "bytes", (double)parameters, (double)held->parameters);
    cost(run, "gradients", "bytes", (double)parameters, (double)held->gradients);
    cost(run, "SGD's state", "bytes", 0, (double)held->optimizer);
    cost(run, "kept for backward", "bytes", (double)(M * (C + 2 * f) * e), (double)held->activations);
    cost(run, "all-reduces a step", "calls", 2, calls);
    cost(run, "sent a step", "bytes", 2 * ring_bytes(ALL_REDUCE_PASSES, n, M * C, e), bytes);

    Timing t = picture_timing(run);
    Work mine = work_product(M, range_size(shard_range(F, n, 0)), C);      // two products forward, four backward
    double talk = 2 * ring_time(ALL_REDUCE_PASSES, n, M * C, e);
    cost(run, "matrix products of all ranks", "FLOPs", 6 * work_product(M, F, C).flops, t.flops);
    if (clock_config()->simulated) {
        cost(run, "step", "ps", 6 * mine.time + talk, (double)t.step);
        cost(run, "exposed communication of all ranks", "ps", (double)n * talk, (double)t.exposed);
    }
    picture_show(run, "the MLP over its ranks, last step", PICTURE_CHART);
    picture_summary(run, &t);
}

static void mlp(Run *run) {
    Comm *tp = run->world;
    REQUIRE(tp->size <= C, "%zu ranks cannot share %d rows of A: start at most %d", tp->size, C, C);
    double loss[STEPS], want_loss[STEPS] = {0};
    Snapshot *got = snapshot_new(run), *weights = snapshot_new(run);
    Snapshot *want = snapshot_new(run), *want_weights = snapshot_new(run);
    comm_ledger_reset(tp);
    Held held = train(run, tp, got, weights, loss);
    size_t calls = tp->ledger[COMM_ALL_REDUCE].calls, bytes = comm_bytes_sent(tp);
    ledger_pause();
    if (tp->rank == 0) train(run, NULL, want, want_weights, want_loss);
    ledger_resume();
    check_numbers(run, "tensor-parallel = unsplit", "loss, 3 steps", loss, want_loss, STEPS, LIMIT_ROUNDING);
    check_close(run, "tensor-parallel = unsplit", got, want, LIMIT_ROUNDING);
    check_close(run, "tensor-parallel = unsplit", weights, want_weights, LIMIT_ROUNDING);
    snapshot_free(got); snapshot_free(weights); snapshot_free(want); snapshot_free(want_weights);

    predict(run, &held, (double)calls / STEPS, (double)bytes / STEPS);
    rows_first(run);
}

static const Option options[] = { {0} };
LESSON(mlp, options);
