// ranks: 4
// level: core
// question: How can two matrix products in a row be split so that the ranks communicate only once each way?
//
// The MLP of a Transformer: Y = dropout(GELU(X A + a) B + b), X [M, C], A [C, F], B [F, C]. A is cut by columns and B
// by rows (Shoeybi et al. 2019): the hidden columns that rank i makes are exactly the rows of B that it holds, so
// nothing is sent between the two products. Every rank has X and Y whole. F = 38 does not divide by 4. Then the other
// order is tried, and its costs show why it is not taken. Left out: norms, the residual path (lesson 06).
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "03_tensor_parallel/experiments/trial.h"
#include "common/tensor/random.h"
#include "common/comm/record.h"

// ================================ the technique ================================

void tensor_parallel_mlp_cut(Param *p, Range hidden) {
    column_parallel_cut(&p[MLP_A], hidden);                // [C, F/tp]
    column_parallel_cut(&p[MLP_A_BIAS], hidden);           // [F/tp]
    row_parallel_cut(&p[MLP_B], hidden);                   // [F/tp, C]; MLP_B_BIAS [C] stays whole: added after the sum
}

// Lesson 02's two layers, with GELU between them.
void tensor_parallel_mlp_forward(Comm *tp, Param *p, Tensor y, Tensor x, Saved *s) {
    size_t M = x.rows, F = p[MLP_A].w.cols;                // F: here of this rank, F/tp
    saved_tensor(s, S_FC, M, F); saved_tensor(s, S_ACT, M, F);             // [M, F/tp] each
    column_parallel_forward(s->t[S_FC], x, &p[MLP_A], &p[MLP_A_BIAS]);     // sends nothing
    op_gelu(s->t[S_ACT], s->t[S_FC]);                      // element by element, so columns stay columns
    row_parallel_forward(tp, y, s->t[S_ACT], &p[MLP_B], &p[MLP_B_BIAS]);   // all-reduce of y: M*C elements
}

void tensor_parallel_mlp_backward(Comm *tp, Param *p, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dh = tensor_new(&scratch, s->t[S_FC].rows, s->t[S_FC].cols);    // [M, F/tp]
    row_parallel_backward(dh, s->t[S_ACT], dy, &p[MLP_B], &p[MLP_B_BIAS]);     // sends nothing
    op_gelu_backward(dh, s->t[S_FC], dh);
    column_parallel_backward(tp, dx, x, dh, &p[MLP_A], &p[MLP_A_BIAS]);    // all-reduce of dx: M*C elements
    arena_free(&scratch);
}

// ================================ the experiment ================================

enum { M = 10, C = 10, F = 38 };                           // rows of X (tokens), width, hidden columns
enum { KEY_X = 101, KEY_TARGET, KEY_MASK, KEY_WEIGHTS };

static uint64_t key(uint64_t seed, TrialData what, size_t i) {
    static const uint64_t of[] = { KEY_X, KEY_TARGET, KEY_WEIGHTS };
    return random_key(random_key(seed, of[what]), i);
}
static void drop(const Trial *t, Tensor y) {               // Y is whole on every rank: so is the mask
    op_dropout(y, y, (Dropout){ .key = random_key(random_key(t->run->seed, KEY_MASK), t->step), .p = 0.1 });
}

static void split_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    record_enter(EVENT_FORWARD, NO_NUMBER);                // for the picture
    tensor_parallel_mlp_forward(t->tp, t->params, y, x, s);
    drop(t, y);
    record_leave();
}
static void split_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    drop(t, dy);
    tensor_parallel_mlp_backward(t->tp, t->params, dx, x, dy, s);
    record_leave();
}

static void unsplit_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    const Param *p = t->params;
    saved_tensor(s, S_FC, M, F); saved_tensor(s, S_ACT, M, F);
    op_matmul(s->t[S_FC], x, p[MLP_A].w);
    op_add_bias(s->t[S_FC], s->t[S_FC], p[MLP_A_BIAS].w);
    op_gelu(s->t[S_ACT], s->t[S_FC]);
    op_matmul(y, s->t[S_ACT], p[MLP_B].w);
    op_add_bias(y, y, p[MLP_B_BIAS].w);
    drop(t, y);
}
static void unsplit_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    Param *p = t->params;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dh = tensor_new(&scratch, M, F);
    drop(t, dy);
    linear_gradients(&p[MLP_B], &p[MLP_B_BIAS], s->t[S_ACT], dy);
    op_matmul_nt(dh, dy, p[MLP_B].w);
    op_gelu_backward(dh, s->t[S_FC], dh);
    linear_gradients(&p[MLP_A], &p[MLP_A_BIAS], x, dh);
    op_matmul_nt(dx, dh, p[MLP_A].w);
    arena_free(&scratch);
}

static Trial layers(Run *run, Comm *tp) {
    Trial t = { .run = run, .tp = tp, .M = M, .K = C, .N = C, .x_cols = {0, C}, .y_cols = {0, C},
                .params = { param_describe("A", C, F, 1), param_describe("a", 0, F, 1),
                            param_describe("B", F, C, 1), param_describe("b", 0, C, 1) },
                .deviation = 0.3, .rate = 0.1, .before = "updated ", .after = ", step 3", .recorded = true,
                .key = key, .forward = tp ? split_forward : unsplit_forward,
                .backward = tp ? split_backward : unsplit_backward };
    if (tp) tensor_parallel_mlp_cut(t.params, shard_range(F, tp->size, tp->rank));
    return t;
}
static void train(Run *run, Comm *tp, TrialResult *r) {
    Trial t = layers(run, tp);
    trial_train(&t, r);
}

// ---------------------------------------------------------------- the other order: A cut by rows
// Then X A is a sum over ranks, and GELU(u + v) is not GELU(u) + GELU(v): the ranks must add the [M, F] BEFORE the
// GELU, four times the elements of [M, C] where F = 4 C.

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
    Comm *tp = run->world;
    Range mine = shard_range(C, tp->size, tp->rank);
    Trial trial = layers(run, NULL);
    Arena buffers = arena(MEM_WORKSPACE);
    Tensor x = trial_drawn(&trial, &buffers, TRIAL_X, 0), a = trial_drawn(&trial, &buffers, TRIAL_WEIGHTS, MLP_A);
    Tensor h = tensor_new(&buffers, M, F), act = tensor_new(&buffers, M, F);
    Snapshot *added_late = snapshot_new(run), *added_first = snapshot_new(run), *want = snapshot_new(run);

    Tensor my_x = tensor_col_range(x, mine.lo, mine.hi), my_rows = tensor_row_range(a, mine.lo, mine.hi);
    op_matmul(h, my_x, my_rows);                           // [M, F] = [M, C/tp] x [C/tp, F]: a partial sum
    op_gelu(act, h);
    comm_all_reduce(tp, act);                              // too late
    snapshot_put(added_late, "GELU(X A)", M, F, act, 0, 0);

    comm_ledger_reset(tp);
    comm_all_reduce(tp, h);                                // M*F elements, in forward alone
    mlp_rows_first_costs(run, M, F, (double)comm_bytes_sent(tp));
    op_gelu(act, h);
    snapshot_put(added_first, "GELU(X A)", M, F, act, 0, 0);

    if (tp->rank == 0) {
        op_matmul(h, x, a);
        op_gelu(act, h);
        snapshot_put(want, "GELU(X A)", M, F, act, 0, 0);
    }
    check_close(run, "A by rows, added before GELU = unsplit", added_first, want, LIMIT_ROUNDING);
    if (tp->size > 1) check_differs(run, "A by rows, added after GELU is wrong", added_late, want, 0.1);
    snapshot_free(added_late); snapshot_free(added_first); snapshot_free(want);
    arena_free(&buffers);
}

static void mlp(Run *run) {
    REQUIRE(run->world->size <= C, "%zu ranks cannot share %d rows of A: start at most %d", run->world->size, C, C);
    TrialResult r = trial_compare(run, "tensor-parallel = unsplit", train);
    mlp_costs(run, M, C, F, &r);
    rows_first(run);
    mlp_results(run, &r);
    say(run, "  M = %d tokens, width C = %d, F = %d hidden columns; t = %zu ranks, %zu bytes per element", M, C, F,
        run->world->size, sizeof(real));
    say(run, "  A by rows: GELU(2) + GELU(-2) = %.2f, but GELU(2 - 2) = %.2f, so add before GELU",
        gelu_of(2) + gelu_of(-2), gelu_of(0));
}

static const Option options[] = { {0} };
EXPERIMENT(mlp, options);
