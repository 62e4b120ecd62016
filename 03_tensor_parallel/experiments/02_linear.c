// 02_linear.c: trains one linear layer, Y = dropout(X W + b), cut by columns, cut by rows, and
// unsplit. The trainings must agree. The table compares the bytes of both cuts. The default of 4
// ranks divides neither the 10 columns nor the 11 rows of W, so ranks have parts of unequal size.
#include "03_tensor_parallel/experiments/experiments.h"
#include "common/tensor/random.h"

enum { M = 6, K = 11, N = 10 };
enum { W, BIAS };

// ---------------------------------------------------------------- both cuts, and the unsplit layer

static void column_forward(Trial *t, Tensor y, Tensor x) {
    column_parallel_forward(y, x, &t->params[W], &t->params[BIAS]);
}
static void column_backward(Trial *t, Tensor dx, Tensor x, Tensor dy) {
    column_parallel_backward(t->tp, dx, x, dy, &t->params[W], &t->params[BIAS]);
}
static void row_forward(Trial *t, Tensor y, Tensor x) {
    row_parallel_forward(t->tp, y, x, &t->params[W], &t->params[BIAS]);
}
static void row_backward(Trial *t, Tensor dx, Tensor x, Tensor dy) {
    row_parallel_backward(dx, x, dy, &t->params[W], &t->params[BIAS]);
}
static void unsplit_forward(Trial *t, Tensor y, Tensor x) {
    op_matmul(y, x, t->params[W].w); // [M, N] = [M, K] x [K, N]
    op_add_bias(y, y, t->params[BIAS].w);
}
static void unsplit_backward(Trial *t, Tensor dx, Tensor x, Tensor dy) {
    op_matmul_tn(t->params[W].g, x, dy); // [K, N] = [M, K]^T x [M, N]
    op_sum_rows(t->params[BIAS].g, dy);
    op_matmul_nt(dx, dy, t->params[W].w); // [M, K] = [M, N] x [K, N]^T
}

static Trial layer(Run *run, Comm *tp) {
    Trial t = trial_new(run, tp, M, K, N);
    t.params[W] = param_describe("W", K, N, 1);
    t.params[BIAS] = param_describe("b", 0, N, 1);
    t.deviation = 0.3;
    t.rate = 0.05;
    t.dropout = 0.2;
    t.forward = unsplit_forward;
    t.backward = unsplit_backward;
    return t;
}
static void train_columns(Run *run, Comm *tp, TrialResult *r) {
    Trial t = layer(run, tp);
    if (tp) {
        t.y_cols = shard_range(N, tp->size, tp->rank);
        column_parallel_cut(&t.params[W], t.y_cols);
        column_parallel_cut(&t.params[BIAS], t.y_cols);
        t.forward = column_forward;
        t.backward = column_backward;
    }
    trial_train(&t, r);
}
static void train_rows(Run *run, Comm *tp, TrialResult *r) {
    Trial t = layer(run, tp);
    if (tp) {
        t.x_cols = shard_range(K, tp->size, tp->rank);
        row_parallel_cut(&t.params[W], t.x_cols);
        t.forward = row_forward;
        t.backward = row_backward;
    }
    trial_train(&t, r);
}

// ---------------------------------------------------------------- costs

// Checks the costs of a cut. By columns, W and b are cut, K N/t + N/t elements, and X is whole. The
// all-reduce adds dX [M, K] in backward. By rows, W is cut and b is whole, K N/t + N elements, and
// X is cut. The all-reduce adds Y [M, N] in forward.
static void costs(Run *run, bool rows, const TrialResult *r) {
    const size_t n = run->world->size, e = element_size(option_storage(run));
    const size_t own = range_size(shard_range(rows ? K : N, n, run->world->rank));
    const size_t weights = rows ? own * N + N : (K + 1) * own, added = rows ? M * N : M * K;
    const TrialCosts c = { .parameters = weights,
                           .kept = rows ? M * own : M * K,
                           .calls = 1,
                           .sent = ring_bytes(ALL_REDUCE_PASSES, n, added, e) };
    trial_costs(run, rows ? "rows.%s" : "columns.%s", rows ? "rows: %s" : "columns: %s", &c, r);
    if (rows) picture_show(run, "W by rows, one step", PICTURE_NO_FILES);
    else picture_show(run, "W by columns, one step", PICTURE_CHART);
}

// Checks column_parallel_gather(). Each rank draws the same Y, and gathers Y from the columns of
// all ranks.
static void gathered(Run *run) {
    Comm *tp = run->world;
    const Element e = option_storage(run);
    const size_t padded = tp->size * M * ceil_div(N, tp->size); // narrow parts are padded
    const Range own = shard_range(N, tp->size, tp->rank);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_shaped(&scratch, tensor_shape(M, N, e));
    Tensor whole = tensor_like(&scratch, y);
    tensor_randomize(y, run->seed, 1);
    comm_ledger_reset(tp);
    column_parallel_gather(tp, whole, tensor_col_range(y, own.lo, own.hi));
    check_cost(run, "columns.gather", "columns: sent to gather Y", "bytes",
               formula(ring_bytes(ONE_PASS, tp->size, padded, element_size(e))), NOT_PREDICTED,
               (double)comm_bytes_sent(tp));
    check_true(run, "gathered output = all columns", "Y", tensor_equal(whole, y));
    arena_free(&scratch);
}

static void ending(Run *run) {
    const size_t whole = (K + 1) * N * element_size(option_storage(run));
    if (!answer_alone(run))
        say_answer(run,
                   "With a column cut a rank holds %s of %s, and the ranks communicate in "
                   "backward: each sends %s. With a row cut a rank holds %s, and the ranks "
                   "communicate in forward: each sends %s.",
                   cost_text(run, "columns.parameters"), value_text(run, (double)whole, "bytes"),
                   cost_text(run, "columns.sent"), cost_text(run, "rows.parameters"),
                   cost_text(run, "rows.sent"));
    say_cost(run,
             "one all-reduce per step, exposed. A column cut keeps all of X (%s), a row cut "
             "keeps %s of it.",
             cost_text(run, "columns.kept"), cost_text(run, "rows.kept"));
    say_use_when(run, "the weights of one layer are too large, or too slow to multiply, for one "
                      "device. Put a row cut after a column cut (03.03).");
}

static void linear_layer(Run *run) {
    const size_t n = run->world->size;
    REQUIRE(n <= N, "%zu ranks: W has %d columns; choose %d ranks or fewer", n, N, N);
    say(run,
        "Y = X W + b: X is M x K = %d x %d, W is K x N = %d x %d. Each of t = %zu ranks holds 1/t "
        "of W.",
        M, K, K, N, n);
    TrialResult columns = trial_compare(run, "column-parallel = unsplit", train_columns);
    costs(run, false, &columns);
    TrialResult by_rows = trial_compare(run, "row-parallel = unsplit", train_rows);
    costs(run, true, &by_rows);
    gathered(run);

    static const char *const heading[] = { "W by columns", "W by rows", NULL };
    static const Result rows[] = {
        { "W and b, per rank",
          "columns: (K+1) N/t; rows: K N/t + N",
          { "columns.parameters", "rows.parameters" } },
        { "X, kept for backward", "columns: M K; rows: M K/t", { "columns.kept", "rows.kept" } },
        { "all-reduces per step",
          "columns: of dX (M K); rows: of Y (M N)",
          { "columns.calls", "rows.calls" } },
        { "sent per rank and step",
          "2 (t-1) ceil(elements of dX or Y / t)",
          { "columns.sent", "rows.sent" } },
        { "extra, if all ranks need Y",
          "columns: (t-1) M ceil(N/t); rows: none",
          { "columns.gather", "=0 B" } },
        { 0 }
    };
    results(run, heading, rows);
    say(run, "  formulas count elements of %zu bytes; a..b: the smallest and the largest rank",
        element_size(option_storage(run)));
    ending(run);
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(linear_layer, options);
