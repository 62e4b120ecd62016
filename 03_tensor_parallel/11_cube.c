// ranks: 8
// level: extra
// question: If each of q x q x q ranks holds only its own part of X, W and Y, what must be communicated for Y = X W?
// vary: B 5..11, T 2..4, K 9..16, N 8..13, ranks 8
//
// 3D tensor parallelism (Bian et al. 2021, section 3). The products of Y = X W are a cube: element (m, k, n) is
// X[m,k] W[k,n]. It is cut in q x q x q smaller cubes, one for each rank (layer, row, col) of p = q^3. The face of X
// and the face of W that a rank's cube needs, and the sums of Y that it makes, are q times what the rank holds:
//
//     x [M/q^2, K/q]  --all-gather, my column-->        X [M/q, K/q]       column: the ranks that differ in `row`
//     w [K/q^2, N/q]  --all-gather, my depth-->         W [K/q, N/q]       depth:  those that differ in `layer`
//     X W [M/q, N/q]  --reduce-scatter, my row-->       y [M/q^2, N/q]     row:    those that differ in `col`
//
// The rows of x are cut in layer, then row, its columns in col; the rows of y in layer, then col, its columns in row.
// So row and col swap from one linear layer to the next (cube_swapped), and after two of them y stands where x stood:
// the residual path needs that. Matrices, their gradients and optimizer state, and activations are cut in q^3; biases
// and gains are the same on the q^2 ranks of a plane. (The paper stores these on a diagonal and broadcasts them.) Left
// out: overlap. GPT's other layers are in cube_layers.c.
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "judge/frame/training.h"
#include <string.h>

// ================================ the technique ================================

size_t cube_side(size_t ranks) {
    size_t q = 1;
    while (q * q * q < ranks) q++;
    REQUIRE(q * q * q == ranks, "3D tensor parallelism needs q x q x q ranks, and %zu are no such cube: choose %zu or "
            "%zu", ranks, (q - 1) * (q - 1) * (q - 1), q * q * q);
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

// ---------------------------------------------------------------- where an activation stands

CubeLayout cube_layout(const Cube *c, const Batch *b) {
    const CommGrid *g = &c->grid;                          // in_col: the ranks of my column, by their row
    return (CubeLayout){ .rows = g->in_col, .cols = g->in_row, .layers = g->in_depth,
                         .B = range_size(shard_range(b->B, g->depth, g->layer)), .T = b->T };
}
CubeLayout cube_swapped(CubeLayout l) {
    CubeLayout y = l;
    y.rows = l.cols;                                       // the sum over the columns of x leaves rows of y there
    y.cols = l.rows;                                       // the gathered rows of x leave columns of y there
    return y;
}
Range cube_sequences(CubeLayout l, size_t B) {
    Range layer = shard_range(B, l.layers->size, l.layers->rank);
    Range mine = shard_range(range_size(layer), l.rows->size, l.rows->rank);
    return (Range){ layer.lo + mine.lo, layer.lo + mine.hi };
}

// n sequences of `positions` rows each, or n rows: what is cut is n, so a sequence stays whole.
Tensor cube_gather(Comm *axis, Arena *a, size_t n, size_t positions, Tensor mine) {
    Tensor whole = tensor_new(a, n * positions, mine.cols);
    comm_all_gather_rows(axis, tensor_reshape(whole, n, positions * mine.cols),
                         tensor_reshape(mine, mine.rows / positions, positions * mine.cols));
    return whole;
}
void cube_scatter(Comm *axis, size_t n, Tensor mine, Tensor sum) {
    size_t positions = n ? sum.rows / n : 1, row = positions * sum.cols;
    comm_reduce_scatter_rows(axis, tensor_reshape(mine, mine.rows / positions, row), tensor_reshape(sum, n, row));
}

// ---------------------------------------------------------------- y = x w

CubeOperands cube_operands(CubeLayout at, Arena *a, Tensor x, Tensor w) {
    return (CubeOperands){ .x = cube_gather(at.rows, a, at.B, at.T, x),            // receives (q-1)/q of [M/q, K/q]
                           .w = cube_gather(at.layers, a, x.cols, 1, w) };         // (q-1)/q of [K/q, N/q]
}

void cube_forward(CubeLayout at, Tensor y, CubeOperands o) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor sum = tensor_new(&scratch, o.x.rows, o.w.cols);
    op_matmul(sum, o.x, o.w);                              // [M/q, N/q]: a partial sum, of my K/q
    cube_scatter(at.cols, at.B, y, sum);                   // sends (q-1)/q of it; y [M/q^2, N/q] is finished
    arena_free(&scratch);
}

// dX = dY W^T sums over the columns of Y, which are cut along x's rows; dW = X^T dY over the rows, cut along layers.
void cube_backward(CubeLayout at, Tensor dx, Param *w, Tensor dy, CubeOperands o) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dX = tensor_new(&scratch, o.x.rows, o.x.cols), dW = tensor_new(&scratch, o.w.rows, o.w.cols);
    Tensor dw = tensor_new(&scratch, w->w.rows, w->w.cols);
    // EXERCISE 03.11a (4 points): back through y = x w. dy [M/q^2, N/q] stands where y does; o.x [M/q, K/q] and o.w
    // [K/q, N/q] are gathered. Make dx [M/q^2, K/q], which stands where x does, and dw [K/q^2, N/q], both finished, by
    // way of dX [M/q, K/q] and dW [K/q, N/q]: one cube_gather, two products (op_matmul_nt(c, a, b) is c = a b^T,
    // op_matmul_tn(c, a, b) is c = a^T b), two cube_scatter. Along which axis does each of them communicate?
    Tensor dY = cube_gather(at.cols, &scratch, at.B, at.T, dy);    // [M/q, N/q]: receives (q-1)/q of it
    op_matmul_nt(dX, dY, o.w);                             // [M/q, K/q]: a partial sum, of my N/q
    cube_scatter(at.rows, at.B, dx, dX);                   // sends (q-1)/q of it
    op_matmul_tn(dW, o.x, dY);                             // [K/q, N/q]: a partial sum, of the rows of my layer
    cube_scatter(at.layers, dW.rows, dw, dW);              // sends (q-1)/q of it
    // END
    param_add_gradient(w, dw);
    arena_free(&scratch);
}

// ================================ the experiment ================================

enum { B = 7, T = 3, K = 13, N = 10 };                             // of two linear layers alone
enum { STEPS = 3 };
static const double max_norm = 0.5;                                // small enough that every step is clipped

typedef struct { const Cube *cube; Comm *world; CubeMeasured r; } Measuring;

static StepResult step(void *measuring, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measuring *me = measuring;
    const Cube *c = me->cube;
    CubeMeasured *r = &me->r;
    double loss = 0;
    cube_ledgers_reset(c);
    comm_ledger_reset(me->world);
    model_zero_gradients(m);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &b[k]);
    loss *= b->token_weight;                                       // of the tokens that I count
    r->activations = memory_peak(MEM_ACTIVATIONS);
    cube_sent(c, r->sent);
    model_partial_sums(m);                                         // biases, gains, positions: over q^2 ranks
    r->planes = comm_bytes_sent(c->same_col) + comm_bytes_sent(c->same_row);
    model_fold_tied(m);                                            // both uses of my part of wte: sends nothing
    comm_all_reduce_doubles(me->world, &loss, 1);
    double norm = model_grad_norm(m, me->world);
    r->numbers = comm_bytes_sent(me->world);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss, norm };
}

static CubeMeasured train(Run *run, const Cube *c, const Training *t, Trajectory *trajectory) {
    Measuring me = { .cube = c, .world = run->world };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    cube_parallel(m, c);
    model_allocate(m);
    training_run(trajectory, m, t, 1, 0, step, &me);               // every rank is given every token
    me.r.block = model_unit(m, "h.0.ln_1.weight")->size * sizeof(real);
    me.r.parameters = memory_now(MEM_PARAMETERS);
    me.r.gradients = memory_now(MEM_GRADIENTS);
    me.r.optimizer = memory_now(MEM_OPTIMIZER);
    model_free(m);
    return me.r;
}

static void cube(Run *run) {
    ModelConfig z = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = 7, .vocab = 61,
                      .dropout = option_real(run, "dropout"), .seed = run->seed };
    config_require(&z);
    require_one_link(run);
    Cube c = cube_new(run->world);
    size_t q = c.grid.rows;
    CubeSizes even = { 2 * q * q, 3, 3 * q * q, 4 * q * q };
    cube_linears(run, &c, even, true);                             // everything divides
    cube_linears(run, &c, (CubeSizes){ B, T, K, N }, false);       // nothing divides
    cube_places(run, q, even);

    Training t = { .model = z, .data = data_synthetic(z.vocab, z.context, run->seed), .steps = STEPS,
                   .sequences = option_size(run, "batch"), .clip = max_norm,
                   .watched = MEM_ACTIVATIONS };
    const bool again = !strcmp(option_text(run, "backward"), "gather");
    Trajectory two[2];                                             // AdamW: as --backward says, and the other way
    for (size_t i = 0; i < 3; i++) {
        c.gather_again = i < 2 ? again : !again;
        t.optimizer = i ? adamw(0.01) : sgd(0.5);
        t.micro_batches = i ? 1 : 2;
        t.recorded = i > 0;
        Trajectory got = trajectory_new(run, &t);
        CubeMeasured r = train(run, &c, &t, &got);
        if (i < 2) {
            Trajectory want = training_unsplit(run, &t, 1);
            training_compare(run, "3D = unsplit", &got, &want, LIMIT_ROUNDING);
            check_true(run, "every step is clipped", i ? "AdamW" : "SGD", trajectory_clipped(&got, max_norm));
            trajectory_free(&want);
        }
        if (i) cube_costs(run, &c.grid, &z, t.sequences, c.gather_again, &r);
        if (i) two[i - 1] = got;
        else trajectory_free(&got);
    }
    training_compare(run, "gathered again = kept", &two[1], &two[0], 0);
    for (size_t i = 0; i < 2; i++) trajectory_free(&two[i]);
    cube_results(run, &z, t.sequences, q);
    data_free(&t.data);
    cube_free(&c);
}

static const Option options[] = {
    { "backward", "keep|gather", "keep", "what forward gathered is kept for backward, or gathered again" },
    { "batch", "N", "6", "sequences" },
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
EXPERIMENT(cube, options);
