// 03_mlp.c: trains the MLP, Y = dropout(GELU(X A + a) B + b), twice: with A cut by columns and B by
// rows, and unsplit. The two trainings must agree. The table also has the predicted bytes of a cut
// of A by rows. 4 ranks do not divide the F = 38 hidden columns.
#include "03_tensor_parallel/experiments/experiments.h"

enum { M = 10, C = 10, F = 38 }; // rows of X (tokens), width, hidden columns
// Matrices into the hidden columns, side by side in A: 1 with GELU, 2 with SwiGLU (gate | up).
enum { GATES = 1 };

// ---------------------------------------------------------------- split and unsplit

static void split_forward(Trial *t, Tensor y, Tensor x) {
    tensor_parallel_mlp_forward(t->tp, t->params, y, x, &t->saved);
}
static void split_backward(Trial *t, Tensor dx, Tensor x, Tensor dy) {
    tensor_parallel_mlp_backward(t->tp, t->params, dx, x, dy, &t->saved);
}
static void unsplit_forward(Trial *t, Tensor y, Tensor x) {
    Saved *s = &t->saved;
    const Param *p = t->params;
    saved_tensor(s, S_FC, M, GATES * F);
    saved_tensor(s, S_ACT, M, F);
    op_matmul(s->t[S_FC], x, p[MLP_A].w);
    op_add_bias(s->t[S_FC], s->t[S_FC], p[MLP_A_BIAS].w);
    op_activation(s->t[S_ACT], s->t[S_FC]);
    op_matmul(y, s->t[S_ACT], p[MLP_B].w);
    op_add_bias(y, y, p[MLP_B_BIAS].w);
}
static void unsplit_backward(Trial *t, Tensor dx, Tensor x, Tensor dy) {
    Saved *s = &t->saved;
    Param *p = t->params;
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dh = tensor_like(&scratch, s->t[S_FC]);
    // dact has the memory of dh: with GELU of all columns, with SwiGLU of the gate's columns.
    Tensor dact = tensor_col_range(dh, 0, F);
    linear_gradients(&p[MLP_B], &p[MLP_B_BIAS], s->t[S_ACT], dy);
    op_matmul_nt(dact, dy, p[MLP_B].w);
    op_activation_backward(dh, s->t[S_FC], dact);
    linear_gradients(&p[MLP_A], &p[MLP_A_BIAS], x, dh);
    op_matmul_nt(dx, dh, p[MLP_A].w);
    arena_free(&scratch);
}

static void train(Run *run, Comm *tp, TrialResult *r) {
    Trial t = trial_new(run, tp, M, C, C);
    t.params[MLP_A] = param_describe("A", C, GATES * F, GATES);
    t.params[MLP_A_BIAS] = param_describe("a", 0, GATES * F, GATES);
    t.params[MLP_B] = param_describe("B", F, C, 1);
    t.params[MLP_B_BIAS] = param_describe("b", 0, C, 1);
    t.deviation = 0.3;
    t.rate = 0.1;
    t.dropout = 0.1;
    t.forward = tp ? split_forward : unsplit_forward;
    t.backward = tp ? split_backward : unsplit_backward;
    if (tp) tensor_parallel_mlp_cut(t.params, shard_range(F, tp->size, tp->rank));
    trial_train(&t, r);
}

// ---------------------------------------------------------------- costs

// Checks the costs. All parameters but b are cut. A rank keeps X, and for its own hidden columns
// the input and the output of GELU. The two all-reduces add Y and dX, both [M, C]. Rank 0 has the
// most hidden columns, so the other ranks wait for rank 0.
static void costs(Run *run, const TrialResult *r) {
    const size_t n = run->world->size;
    const size_t f = range_size(shard_range(F, n, run->world->rank));
    const size_t e = element_size(option_storage(run));
    const size_t parameters = (C + 1) * GATES * f + f * C + C;
    const double communication = 2 * ring_time(ALL_REDUCE_PASSES, n, M * C, e);
    const TrialCosts predicted = { .parameters = parameters,
                                   .kept = M * (C + (GATES + 1) * f),
                                   .calls = 2,
                                   .sent = 2 * ring_bytes(ALL_REDUCE_PASSES, n, M * C, e) };
    trial_costs(run, "%s", "%s", &predicted, r);

    // Forward has the product X A, where A holds GATES matrices, and a product with B. Backward has
    // two products for each product of forward.
    const size_t most = range_size(shard_range(F, n, 0));
    const double forward = work_product(M, GATES * most, C).time + work_product(M, C, most).time;
    trial_times(run, page_text(run, "The MLP on %zu rank%s, last step", n, n == 1 ? "" : "s"),
                3 * forward, communication);
}

// ---------------------------------------------------------------- the page

static double gelu_of(double u) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor t = tensor_new(&scratch, 1, 1);
    tensor_fill(t, (real)u);
    op_gelu(t, t);
    const double value = tensor_sum(t);
    arena_free(&scratch);
    return value;
}

// Prints the table, with a column for A cut by rows. With this cut each rank's X A is a partial
// sum. GELU(u + v) is not GELU(u) + GELU(v), so the ranks would have to add [M, F] before GELU.
static void table(Run *run, const TrialResult *r) {
    static const char *const columns[] = { "columns first", "rows first", NULL };
    const size_t n = run->world->size, e = element_size(option_storage(run));
    const char *forward = value_cell(run, (double)r->sent / 2, "bytes"); // the all-reduce of Y
    const double hidden = ring_bytes(ALL_REDUCE_PASSES, n, M * GATES * F, e);
    const char *rows_first = value_cell(run, hidden, "bytes");
    const Result rows[] = {
        { "weights and biases, per rank", "2 C f/t + f/t + C elements", { "parameters", "=-" } },
        { "kept for backward", "M (C + 2 f/t) elements", { "kept", "=-" } },
        { "all-reduces per step", "forward of Y, backward of dX", { "calls", "=-" } },
        { "sent per rank, forward", "all-reduce of MC; rows first: Mf", { forward, rows_first } },
        { "sent per rank and step", "once forward, once backward", { "sent", "=-" } },
        { clock_config()->simulated ? "time of a step" : NULL,
          "12 M C f/t FLOPs + 2 all-reduces",
          { "step", "=-" } },
        { 0 }
    };
    say(run, "columns first: A by columns, B by rows, as in the picture. rows first: A by rows, "
             "predicted.");
    results(run, columns, rows);
    say(run,
        "  M = %d tokens, width C = %d, f = %d hidden columns; t = %zu ranks, %zu bytes per "
        "element\n  An all-reduce of k elements sends 2 (t-1) ceil(k/t).\n  Why not A by rows? Its "
        "parts must be added before GELU:\n  GELU(2) + GELU(-2) = %.2f, but GELU(2 - 2) = %.2f.",
        M, C, F, n, e, gelu_of(2) + gelu_of(-2), gelu_of(0));
    if (!answer_alone(run))
        say_answer(run,
                   "Cut A by columns and B by rows: one sum forward, one backward. A rank "
                   "sends %s forward, and would send %s if A were cut by rows.",
                   forward + 1, rows_first + 1);
}

static void mlp(Run *run) {
    const size_t n = run->world->size;
    REQUIRE(n <= C, "%zu ranks: A has %d rows; choose %d ranks or fewer", n, C, C);
    say(run, "Y = GELU(X A + a) B + b. Each rank holds 1/t of the f hidden columns: columns of A, "
             "rows of B.");
    const TrialResult r = trial_compare(run, "tensor-parallel = unsplit", train);
    costs(run, &r);
    table(run, &r);
    trial_say_cost(run, "");
    say_use_when(run, "a layer is two products with an element-wise function between them, as in a "
                      "Transformer's MLP. Llama's first product is gate and up side by side.");
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(mlp, options);
