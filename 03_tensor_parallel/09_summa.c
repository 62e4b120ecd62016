// ranks: 4
// level: extra
// question: Can every matrix be cut by all ranks, weights and activations alike, and what must be sent for that?
// vary: ranks 9, M 10..14, K 20..26, N 30..38
//
// p = q x q ranks stand in a grid. Every matrix of the model, weights, activations and gradients, is cut in q x q
// blocks; block (i, j) is on the rank of row i and column j, rank i q + j. No rank ever holds a whole row or a whole
// column: it sees the blocks of others one at a time. Tokens are cut between sequences, and q, k, v between heads: so
// attention stays local. Vectors (biases, gains) are cut by columns, and only row 0 holds them: every element of the
// parameters and of their gradients is on one rank. SUMMA: van de Geijn and Watts 1997; for Transformers: Optimus, Xu
// et al. 2021 (arXiv 2104.05343), section 3. Left out: broadcasts that overlap with products.
//
// This file has the three products, the linear layer, and the model's cut; grid_layers.c makes GPT's layers of them.
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/09_costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"
#include "common/comm/record.h"
#include "common/tensor/random.h"

// ================================ the technique ================================
// X [M, K], A [K, N] and Y [M, N] in blocks X(i,j) [M/q, K/q], A(i,j) [K/q, N/q], Y(i,j) [M/q, N/q]. With q = 2:
//
//     Y = X A        Y(i,j)  = X(i,0) A(0,j)    + X(i,1) A(1,j)         X(i,l) is in my row, A(l,j) is in my column
//     dX = dY A^T    dX(i,l) = dY(i,0) A(l,0)^T + dY(i,1) A(l,1)^T      a sum over the ranks of my row
//     dA = X^T dY    dA(l,j) = X(0,l)^T dY(0,j) + X(1,l)^T dY(1,j)      a sum over the ranks of my column
//
// Each product is q turns: broadcast what comes from my row or my column, multiply, add here or reduce. Along the row
// a rank receives q-1 blocks in q turns, along the column, too: (q-1)/q^2 (MK + KN) elements per product.
//
// K is cut the same way on both factors, in pieces that need not be equal. SummaCut is that way: n things of `each`
// elements, dealt out by shard_range. So { 5, 4 } cuts 20 columns between heads of 4, on q = 2 in 12 and 8.

// Piece l of q of one side of a matrix, in elements.
Range summa_range(SummaCut cut, size_t q, size_t l) {
    Range r = shard_range(cut.n, q, l);
    return (Range){ r.lo * cut.each, r.hi * cut.each };
}

// The block of one turn: my own, without a copy, or room for another rank's.
Tensor summa_panel(Arena *a, bool is_mine, Tensor block, size_t rows, size_t cols) {
    return is_mine ? block : tensor_new(a, rows, cols);
}

// g->in_row has the ranks of my row, and a rank's number in it is its column; in g->in_col it is its row.
// y [M/q, N/q] = x [M/q, K/q] a [K/q, N/q].
void summa_product(const CommGrid *g, Tensor y, Tensor x, Tensor a, SummaCut k) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor part = tensor_new(&scratch, y.rows, y.cols);
    for (size_t l = 0; l < g->cols; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        size_t width = range_size(summa_range(k, g->cols, l));
        Tensor x_l = summa_panel(&panels, g->col == l, x, x.rows, width);      // X(i,l)
        Tensor a_l = summa_panel(&panels, g->row == l, a, width, a.cols);      // A(l,j)
        comm_broadcast(g->in_row, x_l, l);                 // M/q * K/q elements, from column l to all of my row
        comm_broadcast(g->in_col, a_l, l);                 // K/q * N/q elements, from row l to all of my column
        op_matmul(l ? part : y, x_l, a_l);                 // turn 0 overwrites y
        if (l) op_add(y, y, part);                         // finished after the last turn, here
        arena_free(&panels);
    }
    arena_free(&scratch);
}

// x [M/q, K/q] = y [M/q, N/q] a [K/q, N/q]^T.
void summa_product_nt(const CommGrid *g, Tensor x, Tensor y, Tensor a, SummaCut k) {
    for (size_t l = 0; l < g->cols; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        size_t width = range_size(summa_range(k, g->cols, l));
        // EXERCISE 03.09a (4 points): one turn of dX = dY A^T. It makes dX(i,l), on the rank of column l in every row.
        // y [M/q, N/q] is my block of dY, a [K/q, N/q] my block of A, x [M/q, K/q] my block of dX, width that of turn
        // l. summa_panel(&panels, is_mine, block, rows, cols) is my own block or room for another's. You need A(l,j),
        // a product (op_matmul_nt(c, a, b) is c = a b^T), and a sum over the ranks g->in_row or g->in_col.
        Tensor a_l = summa_panel(&panels, g->row == l, a, width, a.cols);      // A(l,j)
        Tensor x_l = summa_panel(&panels, g->col == l, x, x.rows, width);      // dX(i,l)
        comm_broadcast(g->in_col, a_l, l);                 // K/q * N/q elements, from row l to all of my column
        op_matmul_nt(x_l, y, a_l);                         // a partial sum: of my N/q columns of dY
        comm_reduce(g->in_row, x_l, l);                    // M/q * K/q elements, from all of my row to column l
        // END
        arena_free(&panels);
    }
}

// a [K/q, N/q] = x [M/q, K/q]^T y [M/q, N/q].
void summa_product_tn(const CommGrid *g, Tensor a, Tensor x, Tensor y, SummaCut k) {
    for (size_t l = 0; l < g->cols; l++) {
        Arena panels = arena(MEM_COMMUNICATION);
        size_t width = range_size(summa_range(k, g->cols, l));
        Tensor x_l = summa_panel(&panels, g->col == l, x, x.rows, width);      // X(i,l)
        Tensor a_l = summa_panel(&panels, g->row == l, a, width, a.cols);      // dA(l,j)
        comm_broadcast(g->in_row, x_l, l);                 // M/q * K/q elements, from column l to all of my row
        op_matmul_tn(a_l, x_l, y);                         // a partial sum: of my M/q tokens
        comm_reduce(g->in_col, a_l, l);                    // K/q * N/q elements, from all of my column to row l
        arena_free(&panels);
    }
}

// ---------------------------------------------------------------- a linear layer: p[0] its weights, p[1] its bias
// The bias [N] is cut by columns. Row 0 holds it, sends it down the columns, and gets the sum of its gradients.

void summa_linear_forward(const CommGrid *g, SummaCut k, Tensor y, Tensor x, const Param *p) {
    summa_product(g, y, x, p[0].w, k);
    Arena panels = arena(MEM_COMMUNICATION);
    Tensor bias = summa_panel(&panels, g->row == 0, p[1].w, 1, y.cols);
    comm_broadcast(g->in_col, bias, 0);                    // N/q elements, from row 0 to all of my column
    op_add_bias(y, y, bias);                               // every element of Y is on one rank: added once
    arena_free(&panels);
}

void summa_linear_backward(const CommGrid *g, SummaCut k, Tensor dx, Tensor x, Tensor dy, Param *p) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dw = tensor_new(&scratch, p[0].w.rows, p[0].w.cols), db = tensor_new(&scratch, 1, dy.cols);
    summa_product_tn(g, dw, x, dy, k);
    param_add_gradient(&p[0], dw);
    op_sum_rows(db, dy);                                   // a partial sum: of my tokens
    comm_reduce(g->in_col, db, 0);                         // N/q elements, from all of my column to row 0
    if (g->row == 0) param_add_gradient(&p[1], db);
    summa_product_nt(g, dx, dy, p[0].w, k);
    arena_free(&scratch);
}

// ---------------------------------------------------------------- who holds what

size_t summa_side(size_t ranks) {
    size_t q = 1;
    while ((q + 1) * (q + 1) <= ranks) q++;
    REQUIRE(q * q == ranks, "%zu ranks are no square: a grid of q x q ranks needs 1, 4, 9, 16, ...: start %zu or %zu",
            ranks, q * q, (q + 1) * (q + 1));
    return q;
}

// p->blocks is 3 for the weights of q | k | v, else 1: cols cuts each of these blocks of columns.
void summa_cut_matrix(Param *p, const CommGrid *g, SummaCut rows, SummaCut cols) {
    p->my_rows = summa_range(rows, g->rows, g->row);
    p->my_cols = summa_range(cols, g->cols, g->col);
}
void summa_cut_vector(Param *p, const CommGrid *g, SummaCut cols) {
    p->my_rows = (Range){ 0, g->row == 0 };                // others hold nothing of it
    p->my_cols = summa_range(cols, g->cols, g->col);
}

// ================================ the experiment ================================

enum { M = 12, K = 24, N = 36 };                           // of one linear layer: every q up to 4 divides them
enum { KEY_X = 1, KEY_A, KEY_B, KEY_DY };
static const SummaCut tokens = { M, 1 }, inner = { K, 1 }, outer = { N, 1 };

typedef struct { Tensor x, dx, y, dy; Param p[2]; } Linear;

// A block of a whole tensor that every rank can draw.
static Tensor drawn(Arena *a, uint64_t key, size_t rows, size_t cols, Range r, Range c) {
    Arena scratch = arena(MEM_REFERENCE);
    Tensor whole = tensor_new(&scratch, rows, cols), block = tensor_new(a, range_size(r), range_size(c));
    tensor_randomize(whole, key, 1);
    tensor_copy(block, tensor_col_range(tensor_row_range(whole, r.lo, r.hi), c.lo, c.hi));
    arena_free(&scratch);
    return block;
}
// My blocks of everything; g NULL: all of it.
static Linear linear_new(Run *run, Arena *a, const CommGrid *g, Range m, Range k, Range n) {
    Linear l = { .x = drawn(a, random_key(run->seed, KEY_X), M, K, m, k),
                 .dx = tensor_new(a, range_size(m), range_size(k)),
                 .y = tensor_new(a, range_size(m), range_size(n)),
                 .dy = drawn(a, random_key(run->seed, KEY_DY), M, N, m, n),
                 .p = { param_describe("A", K, N, 1), param_describe("b", 0, N, 1) } };
    if (g) summa_cut_matrix(&l.p[0], g, inner, outer), summa_cut_vector(&l.p[1], g, outer);
    for (size_t i = 0; i < 2; i++) {
        Param *p = &l.p[i];
        p->w = drawn(a, random_key(run->seed, i ? KEY_B : KEY_A), p->rows, p->cols, p->my_rows, p->my_cols);
        p->g = tensor_new(a, p->w.rows, p->w.cols);
        p->gradient_empty = true;
    }
    return l;
}
static void put(Snapshot *s, const Linear *l, Range m, Range k, Range n) {
    snapshot_put(s, "Y", M, N, l->y, m.lo, n.lo);
    snapshot_put(s, "grad X", M, K, l->dx, m.lo, k.lo);
    snapshot_put(s, "grad A", K, N, l->p[0].g, l->p[0].my_rows.lo, n.lo);
    if (l->p[1].g.rows) snapshot_put(s, "grad b", 1, N, l->p[1].g, 0, n.lo);
}

static void one_layer(Run *run, const CommGrid *g) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    Arena held = arena(MEM_ACTIVATIONS);
    Range m = summa_range(tokens, g->rows, g->row), k = summa_range(inner, g->cols, g->col);
    Range n = summa_range(outer, g->cols, g->col);
    SummaMeasured r[2];                                    // forward, backward
    Linear l = linear_new(run, &held, g, m, k, n);
    picture_begin(run, MEM_COMMUNICATION);
    record_enter(EVENT_FORWARD, NO_NUMBER);
    summa_measure_begin(g, &r[0]);
    summa_linear_forward(g, inner, l.y, l.x, l.p);
    summa_measure_end(g, &r[0]);
    record_leave();
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    summa_measure_begin(g, &r[1]);
    summa_linear_backward(g, inner, l.dx, l.x, l.dy, l.p);
    summa_measure_end(g, &r[1]);
    record_leave();
    picture_end(run);
    put(got, &l, m, k, n);
    arena_free(&held);
    if (run->is_root) {                                    // the unsplit layer
        ledger_pause();
        m = (Range){ 0, M }, k = (Range){ 0, K }, n = (Range){ 0, N };
        l = linear_new(run, &held, NULL, m, k, n);
        linear(l.y, l.x, &l.p[0]);
        op_add_bias(l.y, l.y, l.p[1].w);
        linear_gradients(&l.p[0], &l.p[1], l.x, l.dy);
        op_matmul_nt(l.dx, l.dy, l.p[0].w);
        put(want, &l, m, k, n);
        arena_free(&held);
        ledger_resume();
    }
    check_close(run, "one linear layer = unsplit", got, want, LIMIT_ROUNDING);
    summa_layer_costs(run, g, M, K, N, r);
    snapshot_free(got); snapshot_free(want);
}

// ---------------------------------------------------------------- GPT, trained

enum { STEPS = 3 };
static const double max_norm = 0.5;                        // small enough that every step is clipped

typedef struct { Comm *world; const CommGrid *g; SummaMeasured r; } Measuring;

static StepResult step(void *measuring, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measuring *x = measuring;
    model_zero_gradients(m);
    summa_measure_begin(x->g, &x->r);
    double loss = model_forward_backward(m, b) * b->token_weight;  // of my row's sequences
    summa_measure_end(x->g, &x->r);
    model_fold_tied(m);                                            // my block of wte, both uses: sends nothing
    if (x->g->col > 0) loss = 0;                                   // the ranks of a row have the same: counted once
    comm_all_reduce_doubles(x->world, &loss, 1);
    double norm = model_grad_norm(m, x->world);                    // every element of the gradient is on one rank
    optimizer_step(o, m, clip_factor(norm, t->clip));              // of what I hold
    return (StepResult){ loss, norm };
}

static void train(void *measuring, const Training *t, Trajectory *c) {
    Measuring *x = measuring;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    summa(m, x->g);                                                // cuts the parameters, replaces the layers
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, x);                          // every rank gets all tokens, and takes its row's
    summa_measure_state(&x->r, m);
    model_free(m);
}

static void summa_lesson(Run *run) {
    require_one_link(run);
    size_t q = summa_side(run->world->size);
    CommGrid g = comm_grid(run->world, q, q, 1);
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = option_size(run, "context"),
                      .vocab = option_size(run, "vocab"), .dropout = option_real(run, "dropout"),
                      .seed = run->seed };
    config_require(&c);
    one_layer(run, &g);
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = STEPS,
                   .sequences = option_size(run, "batch"), .micro_batches = 1, .clip = max_norm,
                   .watched = MEM_ACTIVATIONS };
    Measuring measuring = { .world = run->world, .g = &g };
    training_both(run, "SUMMA = unsplit", &t, train, &measuring);  // SGD, then AdamW
    summa_costs(run, &g, &c, t.sequences, &measuring.r);
    data_free(&t.data);
    comm_grid_free(&g);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "20", "columns; a multiple of --heads" },
    { "heads", "N", "5", "attention heads; at least one a column of the grid" },
    { "context", "N", "7", "positions of a sequence" },
    { "vocab", "N", "61", "vocabulary entries" },
    { "batch", "N", "3", "sequences of a step; a row of the grid may have none" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
EXPERIMENT(summa_lesson, options);
