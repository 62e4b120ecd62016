// ranks: 1
// level: core
// question: If a weight matrix is cut, which results lie side by side, and which must be added?
//
// Y = X W with X [2, 4] and W [4, 3] in whole numbers small enough for paper. One process plays every rank in turn,
// with bare loops over plain arrays: shard i touches its own part of W and nothing else of it. W is cut in two ways:
//     by columns   every shard reads all of X and finishes its own columns of Y
//     by rows      shard i reads its columns of X only and has a partial sum of ALL of Y
// The loss is half the squared distance of Y from a target, so dY = Y - target. Left out: bias, and ranks (the next
// lesson).
#include "judge/frame/lesson.h"
#include <stdio.h>
#include <string.h>

enum { M = 2, K = 4, N = 3, STEPS = 3 };                   // rows of X (the batch), inputs, outputs
static const double X[M][K] = { { 1, 2, 0, 3 }, { 2, 1, 1, 0 } };
static const double START[K][N] = { { 1, 0, 2 }, { 2, 1, 0 }, { 0, 3, 1 }, { 1, 1, 2 } };
static const double TARGET[M][N] = { { 7, 3, 7 }, { 3, 5, 4 } };
static const double RATE = 1.0 / 16;                       // a power of two: every number below stays exact

typedef struct { double w[K][N], y[M][N], dy[M][N], dx[M][K], dw[K][N]; } Layer;

static Layer new_layer(void) {
    Layer l = {0};
    for (int k = 0; k < K; k++) for (int n = 0; n < N; n++) l.w[k][n] = START[k][n];
    return l;
}

// ---------------------------------------------------------------- the paper

// Matrices side by side, as on paper: a line of names, then the rows.
typedef struct { char text[1 + K][100]; size_t rows, at; } Paper;

// sign: what stands between the matrix before and this one. ld elements from row to row, so that a part of a matrix
// can be shown.
static void write_matrix(Paper *p, const char *sign, const char *name, const double *a, size_t rows, size_t cols,
                         size_t ld) {
    char body[1 + K][40];
    size_t width = 0;
    for (size_t r = 0; r <= rows; r++) {
        int n = r ? snprintf(body[r], sizeof body[r], "[") : snprintf(body[r], sizeof body[r], "%s", name);
        for (size_t c = 0; r && c < cols; c++)
            n += snprintf(body[r] + n, sizeof body[r] - (size_t)n, "%3g", a[(r - 1) * ld + c]);
        if (r) n += snprintf(body[r] + n, sizeof body[r] - (size_t)n, " ]");
        if ((size_t)n > width) width = (size_t)n;
    }
    for (size_t r = 0; r <= K; r++)
        snprintf(p->text[r] + p->at, sizeof p->text[r] - p->at, "  %1s %-*s", r && r <= rows ? sign : "", (int)width,
                 r <= rows ? body[r] : "");
    p->at += 4 + width;
    if (rows > p->rows) p->rows = rows;
}
static void show(Run *run, Paper *p) {
    for (size_t r = 0; r <= p->rows; r++) {
        size_t n = strlen(p->text[r]);
        while (n && p->text[r][n - 1] == ' ') n--;
        say(run, "%.*s", (int)n, p->text[r]);
    }
    *p = (Paper){0};
}

// ---------------------------------------------------------------- unsplit

static void error_of(Layer *l) {
    for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) l->dy[m][n] = l->y[m][n] - TARGET[m][n];
}

static void unsplit_step(Layer *l) {
    for (int m = 0; m < M; m++)                            // Y = X W
        for (int n = 0; n < N; n++) {
            l->y[m][n] = 0;
            for (int k = 0; k < K; k++) l->y[m][n] += X[m][k] * l->w[k][n];
        }
    error_of(l);
    for (int m = 0; m < M; m++)                            // dX = dY W^T
        for (int k = 0; k < K; k++) {
            l->dx[m][k] = 0;
            for (int n = 0; n < N; n++) l->dx[m][k] += l->dy[m][n] * l->w[k][n];
        }
    for (int k = 0; k < K; k++)                            // dW = X^T dY
        for (int n = 0; n < N; n++) {
            l->dw[k][n] = 0;
            for (int m = 0; m < M; m++) l->dw[k][n] += X[m][k] * l->dy[m][n];
        }
    for (int k = 0; k < K; k++) for (int n = 0; n < N; n++) l->w[k][n] -= RATE * l->dw[k][n];
}

// ---------------------------------------------------------------- W cut by columns

static void column_step(Layer *l, size_t shards, Paper *page) {
    for (size_t i = 0; i < shards; i++) {                  // forward: shard i has columns c.lo <= n < c.hi
        Range c = shard_range(N, shards, i);
        for (int m = 0; m < M; m++)
            for (size_t n = c.lo; n < c.hi; n++) {
                l->y[m][n] = 0;
                for (int k = 0; k < K; k++) l->y[m][n] += X[m][k] * l->w[k][n];
            }
        char name[40];
        snprintf(name, sizeof name, "Y%zu = X W%zu", i, i);
        if (page) write_matrix(&page[0], i ? "|" : "", name, &l->y[0][c.lo], M, range_size(c), N);
    }
    if (page) write_matrix(&page[0], "=", "Y", &l->y[0][0], M, N, N);
    error_of(l);                                           // element by element: each shard does it for its own columns
    double dx[M][K] = {{0}};
    for (size_t i = 0; i < shards; i++) {
        Range c = shard_range(N, shards, i);
        double part[M][K] = {{0}};
        for (int m = 0; m < M; m++)
            for (int k = 0; k < K; k++)
                for (size_t n = c.lo; n < c.hi; n++) part[m][k] += l->dy[m][n] * l->w[k][n];
        char name[40];
        snprintf(name, sizeof name, "dY%zu W%zu^T", i, i);
        if (page) write_matrix(&page[1], i ? "+" : "", name, &part[0][0], M, K, K);
        for (int m = 0; m < M; m++) for (int k = 0; k < K; k++) dx[m][k] += part[m][k];        // the sum over shards
    }
    for (int m = 0; m < M; m++) for (int k = 0; k < K; k++) l->dx[m][k] = dx[m][k];
    if (page) write_matrix(&page[1], "=", "dX", &l->dx[0][0], M, K, K);
    for (size_t i = 0; i < shards; i++) {                  // dW_i = X^T dY_i: finished, and updated where it lies
        Range c = shard_range(N, shards, i);
        for (int k = 0; k < K; k++)
            for (size_t n = c.lo; n < c.hi; n++) {
                l->dw[k][n] = 0;
                for (int m = 0; m < M; m++) l->dw[k][n] += X[m][k] * l->dy[m][n];
                l->w[k][n] -= RATE * l->dw[k][n];
            }
    }
}

// ---------------------------------------------------------------- W cut by rows, X by columns

static void row_step(Layer *l, size_t shards, Paper *page) {
    double y[M][N] = {{0}};
    for (size_t i = 0; i < shards; i++) {                  // forward: shard i has rows r.lo <= k < r.hi
        Range r = shard_range(K, shards, i);
        double part[M][N] = {{0}};
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++)
                for (size_t k = r.lo; k < r.hi; k++) part[m][n] += X[m][k] * l->w[k][n];
        char name[40];
        snprintf(name, sizeof name, "X%zu W%zu", i, i);
        if (page) write_matrix(&page[0], i ? "+" : "", name, &part[0][0], M, N, N);
        for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) y[m][n] += part[m][n];         // the sum over shards
    }
    for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) l->y[m][n] = y[m][n];
    if (page) write_matrix(&page[0], "=", "Y", &l->y[0][0], M, N, N);
    error_of(l);                                           // needs the sum: every shard must know all of Y now
    for (size_t i = 0; i < shards; i++) {                  // backward: dX_i = dY W_i^T, dW_i = X_i^T dY: both finished
        Range r = shard_range(K, shards, i);
        for (size_t k = r.lo; k < r.hi; k++) {
            for (int m = 0; m < M; m++) {
                l->dx[m][k] = 0;
                for (int n = 0; n < N; n++) l->dx[m][k] += l->dy[m][n] * l->w[k][n];
            }
            for (int n = 0; n < N; n++) {
                l->dw[k][n] = 0;
                for (int m = 0; m < M; m++) l->dw[k][n] += X[m][k] * l->dy[m][n];
            }
            for (int n = 0; n < N; n++) l->w[k][n] -= RATE * l->dw[k][n];
        }
        char name[40];
        snprintf(name, sizeof name, "dX%zu = dY W%zu^T", i, i);
        if (page) write_matrix(&page[1], i ? "|" : "", name, &l->dx[0][r.lo], M, range_size(r), K);
    }
    if (page) write_matrix(&page[1], "=", "dX", &l->dx[0][0], M, K, K);
}

// ---------------------------------------------------------------- where the words swap
// PyTorch's Linear stores V = W^T, [out, in], and computes y = x V^T. The cut that gives every shard some OUTPUTS
// takes columns of W, which are rows of V. So one text's "column parallel" is another text's "by rows"; what is added
// does not change.

static void stored_transposed(Run *run) {
    double v[N][K], rows[M][N] = {{0}}, columns[M][N] = {{0}}, want[M][N] = {{0}};
    for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) v[n][k] = START[k][n];
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) want[m][n] += X[m][k] * START[k][n];
    for (int n = 0; n < N; n++)                            // shard n holds ROW n of V: it finishes output n
        for (int m = 0; m < M; m++) for (int k = 0; k < K; k++) rows[m][n] += v[n][k] * X[m][k];
    for (int k = 0; k < K; k++)                            // shard k holds COLUMN k of V: a partial sum of every output
        for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) columns[m][n] += v[n][k] * X[m][k];
    check_numbers(run, "y = x V^T = unsplit", "rows of V, side by side", &rows[0][0], &want[0][0], M * N, 0);
    check_numbers(run, "y = x V^T = unsplit", "columns of V, added", &columns[0][0], &want[0][0], M * N, 0);
}

// ---------------------------------------------------------------- comparison

// Whole numbers, and sixteenths of them: equal, not close.
static void compare(Run *run, const char *what, const Layer *got, const Layer *want) {
    check_numbers(run, what, "Y", &got->y[0][0], &want->y[0][0], M * N, 0);
    check_numbers(run, what, "dX", &got->dx[0][0], &want->dx[0][0], M * K, 0);
    check_numbers(run, what, "dW", &got->dw[0][0], &want->dw[0][0], K * N, 0);
    check_numbers(run, what, "W after 3 steps", &got->w[0][0], &want->w[0][0], K * N, 0);
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "this lesson plays all ranks in one process: start it with one rank");
    Layer want = new_layer();
    unsplit_step(&want);
    Paper page[2] = {0};
    write_matrix(page, "", "X", &X[0][0], M, K, K);
    write_matrix(page, "", "W", &START[0][0], K, N, N);
    write_matrix(page, "", "Y = X W", &want.y[0][0], M, N, N);
    write_matrix(page, "", "dY = Y - target", &want.dy[0][0], M, N, N);
    write_matrix(page, "", "dX = dY W^T", &want.dx[0][0], M, K, K);
    show(run, page);
    for (int step = 1; step < STEPS; step++) unsplit_step(&want);

    for (size_t shards = 1; shards <= N; shards++) {
        Layer got = new_layer();
        for (int step = 0; step < STEPS; step++) column_step(&got, shards, shards == N && step == 0 ? page : NULL);
        if (shards == N) {
            say(run, "W in %zu column shards. Forward: finished columns of Y, side by side", shards);
            show(run, &page[0]);
            say(run, "  Backward: partial sums of all of dX, added");
            show(run, &page[1]);
        }
        char what[40];
        snprintf(what, sizeof what, "%zu-way column cut = unsplit", shards);
        compare(run, what, &got, &want);
    }
    for (size_t shards = 1; shards <= K; shards++) {
        Layer got = new_layer();
        for (int step = 0; step < STEPS; step++) row_step(&got, shards, shards == 2 && step == 0 ? page : NULL);
        if (shards == 2) {
            say(run, "W in %zu row shards. Forward: partial sums of all of Y, added", shards);
            show(run, &page[0]);
            say(run, "  Backward: finished columns of dX, side by side");
            show(run, &page[1]);
        }
        char what[40];
        snprintf(what, sizeof what, "%zu-way row cut = unsplit", shards);
        compare(run, what, &got, &want);
    }
    stored_transposed(run);
    static const char *const columns[] = { "Y", "dX", "dW", NULL };
    static const Result rows[] = { { "W by columns", NULL, { "=side by side", "=added", "=finished" } },
                                   { "W by rows", NULL, { "=added", "=side by side", "=finished" } }, {0} };
    results(run, columns, rows);
    say(run, "PyTorch's Linear stores V = W^T, so a row of V is a column of W. target: [ %g %g %g ], [ %g %g %g ]",
        TARGET[0][0], TARGET[0][1], TARGET[0][2], TARGET[1][0], TARGET[1][1], TARGET[1][2]);
}

static const Option options[] = { {0} };
EXPERIMENT(by_hand, options);
