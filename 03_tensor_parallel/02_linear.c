// ranks: 4
// level: core
// question: How do ranks share one linear layer, and must they communicate forward or backward?
// vary: M 4..9, K 8..14, N 8..13
//
// Y = dropout(X W + b), X [M, K], W [K, N]; a step of SGD on half the squared distance of Y from a target, three times.
//     column-parallel   rank holds W[:, its columns] and b[its columns]; every rank has X whole; Y stays cut by columns
//     row-parallel      rank holds W[its rows, :] and all of b; X comes cut by columns; every rank gets Y whole
// Neither 10 columns nor 11 rows divide by 4: shard_range gives the first ranks one more. Left out: a second layer,
// which is what makes both cuts worth having (next lesson). Shoeybi et al. 2019, section 3.
#include "03_tensor_parallel/tensor_parallel.h"
#include "03_tensor_parallel/experiments/costs.h"
#include "03_tensor_parallel/experiments/trial.h"
#include "common/tensor/random.h"
#include "common/comm/record.h"

// ================================ the technique ================================
// Two all-reduces, which Megatron-LM calls f and g:
//     f   where a column-parallel layer begins   nothing in forward, an all-reduce of dX in backward
//     g   where a row-parallel layer ends        an all-reduce of Y in forward, nothing in backward
// linear and linear_gradients are those of the unsplit layers (common/model/layer.c): y = x w; w->g += x^T dy, b->g +=
// the sum of dy's rows. Gradients of the weights never need communication: each rank has all that its part depends on.

// ---------------------------------------------------------------- column-parallel

void column_parallel_cut(Param *p, Range columns) { p->my_cols = columns; }

void column_parallel_forward(Tensor y, Tensor x, const Param *w, const Param *b) {
    linear(y, x, w);                                       // [M, N/tp] = [M, K] x [K, N/tp]: finished, sends nothing
    op_add_bias(y, y, b->w);                               // [N/tp]: b is cut with the columns
}

void column_parallel_backward(Comm *tp, Tensor dx, Tensor x, Tensor dy, Param *w, Param *b) {
    // EXERCISE 03.02a (3 points): back through a column-parallel layer. dy [M, N/tp] is the gradient of this rank's
    // columns, x [M, K] the whole input, w [K, N/tp] and b [N/tp] this rank's part. Add the gradients of w and b
    // (linear_gradients), and make dx [M, K] the gradient of the whole input, the same on every rank
    // (op_matmul_nt(c, a, b) is c = a b^T; w->w are the weights). All ranks together need one all-reduce.
    linear_gradients(w, b, x, dy);                         // [K, N/tp] = [M, K]^T x [M, N/tp]: finished
    op_matmul_nt(dx, dy, w->w);                            // [M, K] = [M, N/tp] x [K, N/tp]^T: a partial sum
    comm_all_reduce(tp, dx);                               // f: sends 2(tp-1) ceil(M*K/tp) of its M*K elements
    // END
}

// Where the next layer wants all columns (Megatron's gather_output): whole [M, N] <- y [M, N/tp] of all ranks, side by
// side. Backward needs no communication: a rank takes its own columns of the gradient.
void column_parallel_gather(Comm *tp, Tensor whole, Tensor y) {
    size_t M = y.rows, widest = ceil_div(whole.cols, tp->size);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor parts = tensor_new(&scratch, tp->size * M, widest);             // one rank's columns under another's,
    tensor_fill(parts, 0);                                                 // padded, as all parts must be equally large
    Tensor mine = tensor_row_range(parts, tp->rank * M, (tp->rank + 1) * M);
    tensor_copy(tensor_col_range(mine, 0, y.cols), y);
    comm_all_gather(tp, parts, mine);                      // sends (tp-1) M ceil(N/tp) elements
    for (size_t i = 0; i < tp->size; i++) {
        Range its = shard_range(whole.cols, tp->size, i);
        tensor_copy(tensor_col_range(whole, its.lo, its.hi),
                    tensor_col_range(tensor_row_range(parts, i * M, (i + 1) * M), 0, range_size(its)));
    }
    arena_free(&scratch);
}

// ---------------------------------------------------------------- row-parallel

void row_parallel_cut(Param *p, Range rows) { p->my_rows = rows; }

void row_parallel_forward(Comm *tp, Tensor y, Tensor x, const Param *w, const Param *b) {
    // EXERCISE 03.02b (2 points): forward through a row-parallel layer. x [M, K/tp] are this rank's columns of the
    // input, w [K/tp, N] its rows of the weights (linear multiplies), b [N] the whole bias, which every rank has
    // (op_add_bias adds b->w to every row). y [M, N] is to be the whole layer's output, on every rank.
    linear(y, x, w);                                       // [M, N] = [M, K/tp] x [K/tp, N]: a partial sum, of my K/tp
    comm_all_reduce(tp, y);                                // g: sends 2(tp-1) ceil(M*N/tp) of its M*N elements
    op_add_bias(y, y, b->w);                               // [N], whole on every rank: added once, after the sum
    // END
}

void row_parallel_backward(Tensor dx, Tensor x, Tensor dy, Param *w, Param *b) {
    linear_gradients(w, b, x, dy);                         // [K/tp, N], b's is equal on all: not summed
    op_matmul_nt(dx, dy, w->w);                            // [M, K/tp] = [M, N] x [K/tp, N]^T: finished, sends nothing
}

// ================================ the experiment ================================

enum { M = 6, K = 11, N = 10 };
enum { W, BIAS };
enum { KEY_X = 101, KEY_WEIGHTS, KEY_TARGET = 104, KEY_MASK };
static const double keep_out = 0.2;                        // the probability that dropout drops an element

static uint64_t key(uint64_t seed, TrialData what, size_t i) {
    if (what == TRIAL_WEIGHTS) return random_key(seed, KEY_WEIGHTS + i);
    return random_key(seed, (what == TRIAL_X ? KEY_X : KEY_TARGET) + 1000 * i);
}

// Rows are sequences here: the mask of an element follows from (step, row, column of the WHOLE layer), never from a
// rank. So a column-parallel output gets the mask of its own columns, and a whole one the same mask on every rank.
static void drop(const Trial *t, Tensor y) {
    uint64_t mask = random_key(random_key(t->run->seed, KEY_MASK), t->step);
    op_dropout(y, y, (Dropout){ .key = mask, .p = keep_out, .col0 = t->y_cols.lo });
}

static void column_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    (void)s;
    record_enter(EVENT_FORWARD, NO_NUMBER);                // for the picture
    column_parallel_forward(y, x, &t->params[W], &t->params[BIAS]);
    drop(t, y);
    record_leave();
}
static void column_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    (void)s;
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    drop(t, dy);
    column_parallel_backward(t->tp, dx, x, dy, &t->params[W], &t->params[BIAS]);
    record_leave();
}

static void row_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    (void)s;
    record_enter(EVENT_FORWARD, NO_NUMBER);
    row_parallel_forward(t->tp, y, x, &t->params[W], &t->params[BIAS]);
    drop(t, y);
    record_leave();
}
static void row_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    (void)s;
    record_enter(EVENT_BACKWARD, NO_NUMBER);
    drop(t, dy);
    row_parallel_backward(dx, x, dy, &t->params[W], &t->params[BIAS]);
    record_leave();
}

static void unsplit_forward(Trial *t, Tensor y, Tensor x, Saved *s) {
    (void)s;
    op_matmul(y, x, t->params[W].w);                       // [M, N] = [M, K] x [K, N]
    op_add_bias(y, y, t->params[BIAS].w);
    drop(t, y);
}
static void unsplit_backward(Trial *t, Tensor dx, Tensor x, Tensor dy, Saved *s) {
    (void)s;
    drop(t, dy);
    op_matmul_tn(t->params[W].g, x, dy);                   // [K, N] = [M, K]^T x [M, N]
    op_sum_rows(t->params[BIAS].g, dy);
    op_matmul_nt(dx, dy, t->params[W].w);                  // [M, K] = [M, N] x [K, N]^T
}

static Trial layer(Run *run, Comm *tp) {
    return (Trial){ .run = run, .tp = tp, .M = M, .K = K, .N = N, .x_cols = {0, K}, .y_cols = {0, N},
                    .params = { param_describe("W", K, N, 1), param_describe("b", 0, N, 1) },
                    .deviation = 0.3, .rate = 0.05, .before = "", .after = "", .recorded = true, .key = key,
                    .forward = unsplit_forward, .backward = unsplit_backward };
}
static void train_columns(Run *run, Comm *tp, TrialResult *r) {
    Trial t = layer(run, tp);
    if (tp) {
        t.y_cols = shard_range(N, tp->size, tp->rank);
        column_parallel_cut(&t.params[W], t.y_cols); column_parallel_cut(&t.params[BIAS], t.y_cols);
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

// Adding up tensors that are zero but for a rank's own columns puts the same Y together, for nearly twice the bytes.
static void gathered(Run *run) {
    Comm *tp = run->world;
    Range mine = shard_range(N, tp->size, tp->rank);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&scratch, M, range_size(mine)), whole = tensor_new(&scratch, M, N);
    Tensor sum = tensor_new(&scratch, M, N);
    tensor_randomize(y, random_key(run->seed, tp->rank), 1);
    comm_ledger_reset(tp);
    column_parallel_gather(tp, whole, y);
    linear_gather_costs(run, M, N, (double)comm_bytes_sent(tp));
    tensor_fill(sum, 0);
    tensor_copy(tensor_col_range(sum, mine.lo, mine.hi), y);
    comm_all_reduce(tp, sum);
    check_true(run, "gathered output = all columns", "Y", tensor_equal(whole, sum));
    arena_free(&scratch);
}

static void linear_layer(Run *run) {
    size_t n = run->world->size;
    REQUIRE(n <= N, "%zu ranks cannot share %d columns: start at most %d", n, N, N);
    TrialResult columns = trial_compare(run, "column-parallel = unsplit", train_columns);
    linear_column_costs(run, M, K, N, &columns);
    TrialResult by_rows = trial_compare(run, "row-parallel = unsplit", train_rows);
    linear_row_costs(run, M, K, N, &by_rows);
    gathered(run);
    linear_results(run, M, K, N);
}

static const Option options[] = { {0} };
EXPERIMENT(linear_layer, options);
