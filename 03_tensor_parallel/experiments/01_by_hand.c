// 01_by_hand.c: compares both splits of a small layer with the unsplit layer in every bit, for
// every number of shards, and prints the matrices.
#include "03_tensor_parallel/by_hand.h"
#include "judge/frame/lesson.h"
#include <string.h>

enum { STEPS = 3, SHOWN_ROW_SHARDS = 2 }; // the column split is shown with N shards
static const double RATE = 1.0 / 16;      // a power of two, so every number here is exact

static HandLayer new_layer(void) {
    return (HandLayer){ .x = { { 1, 2, 0, 3 }, { 2, 1, 1, 0 } },
                        .w = { { 1, 0, 2 }, { 2, 1, 0 }, { 0, 3, 1 }, { 1, 1, 2 } },
                        .target = { { 7, 3, 7 }, { 3, 5, 4 } } };
}

// ---------------------------------------------------------------- unsplit

static void unsplit_step(HandLayer *l) {
    for (int m = 0; m < M; m++) // Y = X W, and dY = Y - target
        for (int n = 0; n < N; n++) {
            l->y[m][n] = 0;
            for (int k = 0; k < K; k++) l->y[m][n] += l->x[m][k] * l->w[k][n];
            l->dy[m][n] = l->y[m][n] - l->target[m][n];
        }
    for (int m = 0; m < M; m++) // dX = dY W^T
        for (int k = 0; k < K; k++) {
            l->dx[m][k] = 0;
            for (int n = 0; n < N; n++) l->dx[m][k] += l->dy[m][n] * l->w[k][n];
        }
    for (int k = 0; k < K; k++) // dW = X^T dY
        for (int n = 0; n < N; n++) {
            l->dw[k][n] = 0;
            for (int m = 0; m < M; m++) l->dw[k][n] += l->x[m][k] * l->dy[m][n];
            l->w[k][n] -= RATE * l->dw[k][n];
        }
}

// ---------------------------------------------------------------- the paper

// Matrices side by side: the first line has the names, each later line a row of every matrix.
typedef struct {
    const char *line[1 + K];
    size_t rows;
} Paper;

// Appends a matrix. `sign` separates it from the matrix before it. ld is the distance of two rows
// in memory, so `a` can be a part of a larger matrix.
static void add_matrix(Run *run, Paper *p, const char *sign, const char *name, const double *a,
                       size_t rows, size_t cols, size_t ld) {
    const char *line[1 + K] = { name };
    size_t width = strlen(name);
    for (size_t r = 1; r <= rows; r++) {
        line[r] = "[";
        for (size_t c = 0; c < cols; c++)
            line[r] = page_text(run, "%s%3g", line[r], a[(r - 1) * ld + c]);
        line[r] = page_text(run, "%s ]", line[r]);
        if (strlen(line[r]) > width) width = strlen(line[r]);
    }
    for (size_t r = 0; r <= K; r++)
        p->line[r] = page_text(run, "%s  %1s %-*s", p->line[r] ? p->line[r] : "",
                               r && r <= rows ? sign : "", (int)width, r <= rows ? line[r] : "");
    if (rows > p->rows) p->rows = rows;
}
static void show(Run *run, const Paper *p) {
    for (size_t r = 0; r <= p->rows; r++) {
        size_t n = strlen(p->line[r]);
        while (n && p->line[r][n - 1] == ' ') n--;
        say(run, "%.*s", (int)n, p->line[r]);
    }
}

static void show_unsplit(Run *run, const HandLayer *l) {
    const HandLayer start = new_layer();
    Paper p = { 0 };
    add_matrix(run, &p, "", "X", &l->x[0][0], M, K, K);
    add_matrix(run, &p, "", "W", &start.w[0][0], K, N, N);
    add_matrix(run, &p, "", "Y = X W", &l->y[0][0], M, N, N);
    add_matrix(run, &p, "", "dY = Y - target", &l->dy[0][0], M, N, N);
    add_matrix(run, &p, "", "dX = dY W^T", &l->dx[0][0], M, K, K);
    show(run, &p);
}
static void show_columns(Run *run, const HandLayer *l, size_t shards) {
    Paper forward = { 0 }, backward = { 0 };
    for (size_t i = 0; i < shards; i++) {
        Range own = shard_range(N, shards, i);
        const char *y = page_text(run, "Y%zu = X W%zu", i, i);
        const char *dx = page_text(run, "dY%zu W%zu^T", i, i);
        add_matrix(run, &forward, i ? "|" : "", y, &l->y[0][own.lo], M, range_size(own), N);
        add_matrix(run, &backward, i ? "+" : "", dx, &l->dx_part[i][0][0], M, K, K);
    }
    add_matrix(run, &forward, "=", "Y", &l->y[0][0], M, N, N);
    add_matrix(run, &backward, "=", "dX", &l->dx[0][0], M, K, K);
    say(run, "W in %zu column shards. Forward: finished columns of Y, side by side", shards);
    show(run, &forward);
    say(run, "  Backward: partial sums of all of dX, added");
    show(run, &backward);
}
static void show_rows(Run *run, const HandLayer *l, size_t shards) {
    Paper forward = { 0 }, backward = { 0 };
    for (size_t i = 0; i < shards; i++) {
        Range own = shard_range(K, shards, i);
        const char *y = page_text(run, "X%zu W%zu", i, i);
        const char *dx = page_text(run, "dX%zu = dY W%zu^T", i, i);
        add_matrix(run, &forward, i ? "+" : "", y, &l->y_part[i][0][0], M, N, N);
        add_matrix(run, &backward, i ? "|" : "", dx, &l->dx[0][own.lo], M, range_size(own), K);
    }
    add_matrix(run, &forward, "=", "Y", &l->y[0][0], M, N, N);
    add_matrix(run, &backward, "=", "dX", &l->dx[0][0], M, K, K);
    say(run, "W in %zu row shards. Forward: partial sums of all of Y, added", shards);
    show(run, &forward);
    say(run, "  Backward: finished columns of dX, side by side");
    show(run, &backward);
}

// ---------------------------------------------------------------- where the words swap

// PyTorch's Linear stores V = W^T, [out, in], and computes y = x V^T. A cut of W by columns gives
// every shard some outputs, so it is a cut of V by rows. In both notations the same results must be
// added.
static void stored_transposed(Run *run) {
    const HandLayer l = new_layer();
    double v[N][K], rows[M][N] = { { 0 } }, columns[M][N] = { { 0 } }, want[M][N] = { { 0 } };
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++) v[n][k] = l.w[k][n];
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) want[m][n] += l.x[m][k] * l.w[k][n];
    for (int n = 0; n < N; n++) // shard n holds row n of V: it finishes output n
        for (int m = 0; m < M; m++)
            for (int k = 0; k < K; k++) rows[m][n] += v[n][k] * l.x[m][k];
    for (int k = 0; k < K; k++) // shard k holds column k of V: partial sums of y
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) columns[m][n] += v[n][k] * l.x[m][k];
    const char *what = "y = x V^T = unsplit";
    check_numbers(run, what, "rows of V, side by side", &rows[0][0], &want[0][0], M * N, 0);
    check_numbers(run, what, "columns of V, added", &columns[0][0], &want[0][0], M * N, 0);
}

// ---------------------------------------------------------------- comparison

typedef void HandCut(HandLayer *l, size_t shards, double rate);
typedef void ShowCut(Run *run, const HandLayer *l, size_t shards);

// Compares one cut with the unsplit layer, for every number of shards up to `most`. All numbers are
// whole numbers or fractions of powers of two, so nothing is rounded. Step 1 of `shown` shards is
// printed.
static void all_shards(Run *run, const char *name, HandCut *cut, size_t most, size_t shown,
                       ShowCut *show_cut, const HandLayer *want) {
    for (size_t shards = 1; shards <= most; shards++) {
        HandLayer got = new_layer();
        const char *what = page_text(run, "%zu-way %s cut = unsplit", shards, name);
        for (int step = 0; step < STEPS; step++) {
            cut(&got, shards, RATE);
            if (shards == shown && step == 0) show_cut(run, &got, shards);
        }
        check_numbers(run, what, "Y", &got.y[0][0], &want->y[0][0], M * N, 0);
        check_numbers(run, what, "dX", &got.dx[0][0], &want->dx[0][0], M * K, 0);
        check_numbers(run, what, "dW", &got.dw[0][0], &want->dw[0][0], K * N, 0);
        check_numbers(run, what, "W after 3 steps", &got.w[0][0], &want->w[0][0], K * N, 0);
    }
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this lesson plays all ranks in one process: choose one rank");
    HandLayer want = new_layer();
    unsplit_step(&want);
    show_unsplit(run, &want);
    for (int step = 1; step < STEPS; step++) unsplit_step(&want);

    all_shards(run, "column", by_hand_columns, N, N, show_columns, &want);
    all_shards(run, "row", by_hand_rows, K, SHOWN_ROW_SHARDS, show_rows, &want);
    stored_transposed(run);
    static const char *const columns[] = { "Y", "dX", "dW", NULL };
    static const Result rows[] = {
        { "W by columns", NULL, { "=side by side", "=added", "=finished" } },
        { "W by rows", NULL, { "=added", "=side by side", "=finished" } },
        { 0 }
    };
    results(run, columns, rows);
    say(run, "  finished: a shard has its part of dW and needs no other shard for it");
    say_answer(run,
               "A cut by columns lays the %d parts of Y side by side and adds %d partial sums "
               "of dX. A cut by rows adds %d partial sums of Y and lays the parts of dX side by "
               "side.",
               N, N, SHOWN_ROW_SHARDS);
    say_cost(run, "one sum over the shards per step: of %d numbers of dX, or of %d numbers of Y.",
             M * K, M * N);
    say_use_when(run, "you read a tensor-parallel layer. Each product sums over one dimension. If "
                      "the cut goes through that dimension, the results must be added.");
}

static const Option options[] = {
    REALS_ONLY("this lesson computes with plain C arrays, whose elements are reals"),
    { 0 },
};
EXPERIMENT(by_hand, options);
