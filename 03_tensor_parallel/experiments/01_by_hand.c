// 01_by_hand.c: compares both splits of a small layer with the unsplit layer in every bit, for
// every number of shards, and prints the matrices.
#include "03_tensor_parallel/by_hand.h"
#include "judge/frame/lesson.h"
#include <string.h>

enum { STEPS = 3, ROW_SHARDS = 2 };  // the page shows N column shards, and ROW_SHARDS row shards
static const double RATE = 1.0 / 16; // a power of two, so every number here is exact

static HandLayer new_layer(void) {
    return (HandLayer){ .x = { { 1, 2, 0, 3 }, { 2, 1, 1, 0 } },
                        .w = { { 1, 0, 2 }, { 2, 1, 0 }, { 0, 3, 1 }, { 1, 1, 2 } },
                        .target = { { 7, 3, 7 }, { 3, 5, 4 } } };
}

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

// ---------------------------------------------------------------- the matrices on the page

typedef struct {
    const char *sign, *name; // the sign is printed before the matrix
    const double *a;         // row r begins at a[r * ld]; ld > cols in a part of a wider matrix
    size_t rows, cols, ld;
} Matrix;

// Prints matrices side by side, first a line of names, then in each line a row of every matrix.
static void show(Run *run, const Matrix *m, size_t n) {
    size_t rows = 0;
    for (size_t i = 0; i < n; i++) rows = m[i].rows > rows ? m[i].rows : rows;
    for (size_t r = 0; r <= rows; r++) {
        const char *line = "";
        for (size_t i = 0; i < n; i++) {
            const size_t brackets = strlen("[ ]") + 3 * m[i].cols, name = strlen(m[i].name);
            const bool has_row = r > 0 && r <= m[i].rows;
            const char *cell = r ? "" : m[i].name;
            for (size_t c = 0; has_row && c < m[i].cols; c++)
                cell = page_text(run, "%s%3g", c ? cell : "[", m[i].a[(r - 1) * m[i].ld + c]);
            line = page_text(run, "%s  %1s %-*s", line, has_row ? m[i].sign : "",
                             (int)(name > brackets ? name : brackets),
                             has_row ? page_text(run, "%s ]", cell) : cell);
        }
        size_t length = strlen(line);
        while (length && line[length - 1] == ' ') length--;
        say(run, "%.*s", (int)length, line);
    }
}

static void show_unsplit(Run *run, const HandLayer *l) {
    const HandLayer start = new_layer();
    const Matrix m[] = { { "", "X", &l->x[0][0], M, K, K },
                         { "", "W", &start.w[0][0], K, N, N },
                         { "", "Y = X W", &l->y[0][0], M, N, N },
                         { "", "dY = Y - target", &l->dy[0][0], M, N, N },
                         { "", "dX = dY W^T", &l->dx[0][0], M, K, K } };
    show(run, m, sizeof m / sizeof *m);
}
// Prints each shard's part of `whole` [M, cols], and `whole`. With parts NULL a shard has finished
// columns. Otherwise a shard has partial sums of all columns, and `parts` holds these sums shard by
// shard.
static void show_parts(Run *run, const char *const *names, size_t shards, const char *name,
                       const double *parts, const double *whole, size_t cols) {
    Matrix m[K + 1];
    for (size_t i = 0; i < shards; i++) {
        const Range own = parts ? (Range){ 0, cols } : shard_range(cols, shards, i);
        const double *first = parts ? parts + i * M * cols : whole + own.lo;
        const char *sign = parts ? "+" : "|";
        m[i] = (Matrix){ i ? sign : "", names[i], first, M, range_size(own), cols };
    }
    m[shards] = (Matrix){ "=", name, whole, M, cols, cols };
    show(run, m, shards + 1);
}
static void show_columns(Run *run) {
    static const char *const y[N] = { "Y0 = X W0", "Y1 = X W1", "Y2 = X W2" };
    static const char *const dx[N] = { "dY0 W0^T", "dY1 W1^T", "dY2 W2^T" };
    HandLayer l = new_layer();
    by_hand_columns(&l, N, RATE);
    say(run, "W in %d column shards. Forward: finished columns of Y, side by side", N);
    show_parts(run, y, N, "Y", NULL, &l.y[0][0], N);
    say(run, "  Backward: partial sums of all of dX, added");
    show_parts(run, dx, N, "dX", &l.dx_part[0][0][0], &l.dx[0][0], K);
}
static void show_rows(Run *run) {
    static const char *const y[ROW_SHARDS] = { "X0 W0", "X1 W1" };
    static const char *const dx[ROW_SHARDS] = { "dX0 = dY W0^T", "dX1 = dY W1^T" };
    HandLayer l = new_layer();
    by_hand_rows(&l, ROW_SHARDS, RATE);
    say(run, "W in %d row shards. Forward: partial sums of all of Y, added", ROW_SHARDS);
    show_parts(run, y, ROW_SHARDS, "Y", &l.y_part[0][0][0], &l.y[0][0], N);
    say(run, "  Backward: finished columns of dX, side by side");
    show_parts(run, dx, ROW_SHARDS, "dX", NULL, &l.dx[0][0], K);
}

// ---------------------------------------------------------------- comparison

typedef void HandCut(HandLayer *l, size_t shards, double rate);

// Compares one cut with the unsplit layer, for every number of shards up to `most`. All numbers are
// multiples of a power of 1/2 and have few digits, so nothing is rounded.
static void all_shards(Run *run, const char *name, HandCut *cut, size_t most,
                       const HandLayer *want) {
    for (size_t shards = 1; shards <= most; shards++) {
        HandLayer got = new_layer();
        const char *what = page_text(run, "%zu-way %s cut = unsplit", shards, name);
        for (int step = 0; step < STEPS; step++) cut(&got, shards, RATE);
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
    show_columns(run);
    show_rows(run);
    for (int step = 1; step < STEPS; step++) unsplit_step(&want);
    all_shards(run, "column", by_hand_columns, N, &want);
    all_shards(run, "row", by_hand_rows, K, &want);
    results(run, (const char *const[]){ "Y", "dX", "dW", NULL },
            (const Result[]){ { "W by columns", NULL, { "=side by side", "=added", "=finished" } },
                              { "W by rows", NULL, { "=added", "=side by side", "=finished" } },
                              { 0 } });
    say(run, "  finished: a shard has its part of dW and needs no other shard for it");
    say_answer(run,
               "A cut by columns lays the %d parts of Y side by side and adds %d partial sums "
               "of dX. A cut by rows adds %d partial sums of Y and lays the parts of dX side by "
               "side.",
               N, N, ROW_SHARDS);
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
