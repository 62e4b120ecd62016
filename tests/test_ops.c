// test_ops.c: compares every op with a plain computation in double, and every backward with central
// finite differences of that computation. Covers odd sizes, windows on larger tensors, results in
// place, empty tensors, and wrong shapes.
//
// ranks: 1
// level: core
// question: Is every op what its formula says, and every backward its derivative?
#include <math.h>
#include "common/device/device.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include "common/tensor/real_math.h"
#include "tap.h"

#define ROUNDING \
    (sizeof(real) == 8 ? 1e-13 : 1e-6) // limit for an op against the same formula in double
// DERIVATIVE is the limit for a backward against finite differences in double.
#define DERIVATIVE (sizeof(real) == 8 ? 1e-8 : 1e-6)

// ---- host matrices in double; they and the tensors live until forget() ----

typedef struct {
    size_t rows, cols;
    double *v;
} Mat;
static double pool[400000];
static size_t pool_used;
static Arena storage = { .category = MEM_WORKSPACE };

static Mat mat(size_t rows, size_t cols) {
    Mat m = { rows, cols, pool + pool_used };
    pool_used += rows * cols;
    if (pool_used > sizeof pool / sizeof *pool) fault("test_ops: the pool is too small");
    memset(m.v, 0, rows * cols * sizeof *m.v);
    return m;
}
// Returns random values that a real holds exactly, so that op and reference start from the same
// numbers.
static Mat normal(size_t rows, size_t cols, uint64_t seed) {
    Mat m = mat(rows, cols);
    for (size_t i = 0; i < rows * cols; i++) m.v[i] = (real)random_normal(random_key(seed, i));
    return m;
}

// If `framed` is true, a tensor is a window on a larger tensor. The frame, which is the rest of the
// larger tensor, must stay NaN. An op that writes into the frame changes it, and an op that reads
// the frame gets NaN.
static bool framed;
static struct { Tensor whole, window; } frames[64];
static size_t frame_count;

static Tensor out(size_t rows, size_t cols) {
    if (!framed) return tensor_new(&storage, rows, cols);
    if (frame_count == 64) fault("test_ops: too many frames");
    Tensor whole = tensor_new(&storage, rows + 2, cols + 5);
    Tensor window = tensor_col_range(tensor_row_range(whole, 1, rows + 1), 2, cols + 2);
    frames[frame_count].whole = whole;
    frames[frame_count++].window = window;
    return window;
}
static real transfer[20000];
static void need_transfer(size_t n) {
    if (n > sizeof transfer / sizeof *transfer) fault("test_ops: a matrix is too large");
}
static Tensor put(Mat m) {
    need_transfer(m.rows * m.cols);
    for (size_t i = 0; i < m.rows * m.cols; i++) transfer[i] = (real)m.v[i];
    Tensor t = out(m.rows, m.cols);
    tensor_upload(t, transfer);
    return t;
}
// Returns a contiguous tensor, not a window, because the operands gain and bias must be contiguous
// rows.
static Tensor put_flat(Mat m) {
    const bool original = framed;
    framed = false;
    Tensor t = put(m);
    framed = original;
    return t;
}
static Mat get(Tensor t) {
    Mat m = mat(t.rows, t.cols);
    need_transfer(tensor_count(t));
    tensor_download(transfer, t);
    for (size_t i = 0; i < tensor_count(t); i++) m.v[i] = transfer[i];
    return m;
}
static const int *ids(const int *host, size_t n) {
    int *device = ints_new(&storage, n);
    ints_upload(device, host, n);
    return device;
}

// Ends a test. Checks the frames and frees everything.
static void forget(const char *what) {
    size_t written = 0;
    for (size_t f = 0; f < frame_count; f++) {
        tensor_fill(frames[f].window, (real)NAN);
        Mat m = get(frames[f].whole);
        for (size_t i = 0; i < m.rows * m.cols; i++) written += !isnan(m.v[i]);
    }
    if (frame_count) ok(written == 0, "%s keeps to its window", what);
    arena_free(&storage);
    pool_used = frame_count = 0;
}

// ---- comparing ----

static double worst_rounding, worst_derivative;

// Returns max |a-b| / max |b|, or max |a-b| if b is all zero. Returns infinity for NaN.
static double error_of(Mat a, Mat b) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < b.rows * b.cols; i++) {
        const double d = fabs(a.v[i] - b.v[i]);
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
        largest = fmax(largest, fabs(b.v[i]));
    }
    return largest > 0 ? worst / largest : worst;
}
static void is_close(const char *op, const char *name, Tensor got, Mat want, double limit,
                     double *worst) {
    const double e = error_of(get(got), want);
    *worst = fmax(*worst, e);
    ok(got.rows == want.rows && got.cols == want.cols && e <= limit, "%s%s%s: %.1e <= %.0e", op,
       framed ? " in a window, " : ", ", name, e, limit);
}
static void is_value(const char *op, const char *name, Tensor got, Mat want) {
    is_close(op, name, got, want, ROUNDING, &worst_rounding);
}
static bool same_bits(Tensor a, Tensor b) {
    Mat x = get(a), y = get(b);
    return a.rows == b.rows && a.cols == b.cols &&
           memcmp(x.v, y.v, a.rows * a.cols * sizeof *x.v) == 0;
}

// Plain is a plain computation of y from up to three inputs and from the fields of `fixed`.
typedef void Plain(Mat y, const Mat *in);
static struct {
    size_t Tq, Tk, B, heads, vocab0, sequence0, row0, col0, head0;
    // The positions of [B*Tq] queries and of [B*Tk] keys. NULL means 0, 1, ...
    int *query, *key_at;
    double scale, p;
    uint64_t key;
    const int *ids;
} fixed;

// Returns the gradient of sum(dy * plain(in)) with respect to in[which]. Uses central differences
// of fourth order: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h.
static Mat difference(Plain plain, size_t y_rows, size_t y_cols, const Mat *in, size_t which,
                      Mat dy) {
    const double h = 2e-5, step[] = { h, -h, 2 * h, -2 * h }, weight[] = { 8, -8, -1, 1 };
    Mat x = in[which], dx = mat(x.rows, x.cols), y = mat(y_rows, y_cols);
    for (size_t i = 0; i < x.rows * x.cols; i++) {
        const double original = x.v[i];
        for (int s = 0; s < 4; s++) {
            x.v[i] = original + step[s];
            plain(y, in);
            for (size_t k = 0; k < y_rows * y_cols; k++)
                dx.v[i] += dy.v[k] * y.v[k] * weight[s] / (12 * h);
        }
        x.v[i] = original;
    }
    return dx;
}
static void is_gradient(const char *op, const char *name, Tensor got, Plain plain, size_t y_rows,
                        size_t y_cols, const Mat *in, size_t which, Mat dy) {
    is_close(op, name, got, difference(plain, y_rows, y_cols, in, which, dy), DERIVATIVE,
             &worst_derivative);
}

// ---- exp and sums ----

static double ulps(real got, long double want) {
    const real rounded = (real)want,
               next = (real)(sizeof(real) == 8 ? nextafter((double)rounded, INFINITY)
                                               : nextafterf((float)rounded, INFINITY));
    return (double)(fabsl(got - want) / ((long double)next - rounded));
}
static void test_exp(void) {
    const double low = sizeof(real) == 8 ? -707.6 : -86.63,
                 high = sizeof(real) == 8 ? 709.78 : 88.72;
    const size_t n = 1000000;
    double worst = 0;
    for (size_t i = 0; i <= n; i++) {
        const real x = (real)(low + (high - low) * (double)i / (double)n), y = (real)(x / 700);
        worst = fmax(worst, ulps(real_exp(x), expl(x)));
        worst = fmax(worst, ulps(real_exp(y), expl(y)));
    }
    ok(worst <= 2, "real_exp is within %.2f units in the last place", worst);
    ok(real_exp(0) == 1, "exp(0) = 1");
    ok(isnan(real_exp((real)NAN)), "exp(NaN) = NaN");
    ok(real_exp(-(real)INFINITY) == 0 && real_exp(-1000) == 0, "exp of very little is 0");
    ok(isinf(real_exp((real)INFINITY)) && isinf(real_exp(1000)), "exp of very much is infinite");
    ok(fabs((double)real_sigmoid((real)-3) - 1 / (1 + exp(3))) < 1e-7, "sigmoid");
    ok(real_sigmoid(-1000) == 0 && real_sigmoid(1000) == 1, "sigmoid at the ends");
}

static void test_row_sum(void) {
    const size_t sizes[] = { 0, 1, 31, 32, 33, 511, 512, 513, 50257 };
    static real x[50257];
    for (size_t i = 0; i < 50257; i++) x[i] = (real)(1 + random_unit(random_key(1, i)));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s];
        double sum, want = 0;
        real largest = -(real)INFINITY;
        ROW_SUM(real, sum, i, n, x[i]);
        for (size_t i = 0; i < n; i++) want += x[i], largest = (real)fmax(largest, x[i]);
        ok(fabs(sum - want) <= (sizeof(real) == 8 ? 1e-13 : 1e-6) * want, "sum of a row of %zu", n);
        ok(row_max(x, n) == largest, "maximum of a row of %zu", n);
    }
}

// ---- products ----

static void plain_matmul(Mat y, const Mat *in) {
    Mat x = in[0], w = in[1];
    for (size_t i = 0; i < y.rows; i++)
        for (size_t j = 0; j < y.cols; j++) {
            double s = 0;
            for (size_t k = 0; k < x.cols; k++) s += x.v[i * x.cols + k] * w.v[k * w.cols + j];
            y.v[i * y.cols + j] = s;
        }
}
static Mat transposed(Mat m) {
    Mat t = mat(m.cols, m.rows);
    for (size_t i = 0; i < m.rows; i++)
        for (size_t j = 0; j < m.cols; j++) t.v[j * m.rows + i] = m.v[i * m.cols + j];
    return t;
}

static void test_products(size_t M, size_t K, size_t N) {
    Mat in[] = { normal(M, K, 1), normal(K, N, 2) }, want = mat(M, N), dy = normal(M, N, 3);
    Tensor y = out(M, N), dx = out(M, K), dw = out(K, N);
    plain_matmul(want, in);
    op_matmul(y, put(in[0]), put(in[1]));
    is_value("matmul", "y", y, want);
    op_matmul_nt(y, put(in[0]), put(transposed(in[1])));
    is_value("matmul_nt", "y", y, want);
    op_matmul_tn(y, put(transposed(in[0])), put(in[1]));
    is_value("matmul_tn", "y", y, want);
    op_matmul_nt(dx, put(dy), put(in[1]));
    is_gradient("matmul_nt", "dx = dy w^T", dx, plain_matmul, M, N, in, 0, dy);
    op_matmul_tn(dw, put(in[0]), put(dy));
    is_gradient("matmul_tn", "dw = x^T dy", dw, plain_matmul, M, N, in, 1, dy);
    forget("matmul");
}

// ---- element by element ----

static void plain_add(Mat y, const Mat *in) {
    for (size_t i = 0; i < y.rows * y.cols; i++) y.v[i] = in[0].v[i] + in[1].v[i];
}
static void plain_multiply(Mat y, const Mat *in) {
    for (size_t i = 0; i < y.rows * y.cols; i++) y.v[i] = in[0].v[i] * in[1].v[i];
}
static void plain_scale(Mat y, const Mat *in) {
    for (size_t i = 0; i < y.rows * y.cols; i++) y.v[i] = fixed.scale * in[0].v[i];
}
static void plain_add_bias(Mat y, const Mat *in) {
    for (size_t i = 0; i < y.rows * y.cols; i++) y.v[i] = in[0].v[i] + in[1].v[i % y.cols];
}
static void plain_gelu(Mat y, const Mat *in) {
    for (size_t i = 0; i < y.rows * y.cols; i++) {
        const double x = in[0].v[i];
        y.v[i] = 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    }
}

static void test_elements(size_t M, size_t N) {
    Mat in[] = { normal(M, N, 1), normal(M, N, 2) }, want = mat(M, N);
    Tensor y = out(M, N), a = put(in[0]), b = put(in[1]);
    fixed.scale = -0.75;
    plain_add(want, in);
    op_add(y, a, b);
    is_value("add", "y", y, want);
    tensor_copy(y, b);
    op_add(y, a, y);
    is_value("add", "in place", y, want);
    plain_multiply(want, in);
    op_multiply(y, a, b);
    is_value("multiply", "y", y, want);
    plain_scale(want, in);
    op_scale(y, a, (real)fixed.scale);
    is_value("scale", "y", y, want);
    op_scale(a, a, (real)fixed.scale);
    is_value("scale", "in place", a, want);
    forget("an element's op");
}

static void test_bias(size_t M, size_t N) {
    Mat in[] = { normal(M, N, 1), normal(1, N, 2) }, want = mat(M, N), dy = normal(M, N, 3);
    Tensor y = out(M, N), x = put(in[0]), bias = put_flat(in[1]), db = out(1, N);
    plain_add_bias(want, in);
    op_add_bias(y, x, bias);
    is_value("add_bias", "y", y, want);
    op_add_bias(x, x, bias);
    is_value("add_bias", "in place", x, want);
    op_sum_rows(db, put(dy));
    is_gradient("sum_rows", "dbias", db, plain_add_bias, M, N, in, 1, dy);
    forget("add_bias");
}

static void plain_max(Mat y, const Mat *in) {
    for (size_t i = 0; i < y.rows * y.cols; i++) y.v[i] = fmax(in[0].v[i], in[1].v[i]);
}

static Tensor corner(Tensor t) { return tensor_row_range(tensor_col_range(t, 0, 1), 0, 1); }

// Tests the ops with which Comm adds the ranks' tensors or takes their maxima. A sum of -0 must
// stay -0, and a NaN on any rank must stay NaN.
static void test_contributions(size_t M, size_t N) {
    Mat in[] = { normal(M, N, 1), normal(M, N, 2) }, want = mat(M, N);
    Tensor y = out(M, N), a = put(in[0]), b = put(in[1]);
    plain_max(want, in);
    op_max(y, a, b);
    is_value("max", "y", y, want);
    op_max(a, a, b);
    is_value("max", "in place", a, want);
    real first;
    for (int side = 0; side < 2; side++) {
        Mat with = normal(M, N, 3);
        with.v[0] = NAN;
        if (side == 0) op_max(y, put(with), b);
        else op_max(y, b, put(with));
        tensor_download(&first, corner(y));
        ok(isnan(first), "max: a NaN of side %d", side);
    }
    Tensor zero = out(M, N);
    tensor_fill(zero, (real)-0.0);
    op_add(y, zero, zero);
    tensor_download(&first, corner(y));
    ok(first == 0 && signbit(first), "add: -0 and -0");
    // op_combine() may write its result into the first row of its input.
    Tensor sum = out(1, N), parts = put(in[0]);
    op_combine(sum, zero, false);
    tensor_download(&first, corner(sum));
    ok(first == 0 && signbit(first), "combine: a sum of -0");
    Mat added = mat(1, N), largest = mat(1, N);
    for (size_t c = 0; c < N; c++) {
        added.v[c] = largest.v[c] = in[0].v[c];
        for (size_t r = 1; r < M; r++) {
            added.v[c] += in[0].v[r * N + c];
            largest.v[c] = fmax(largest.v[c], in[0].v[r * N + c]);
        }
    }
    op_combine(sum, parts, false);
    is_value("combine", "sum", sum, added);
    Mat with = normal(M, N, 3);
    with.v[(M / 2) * N] = NAN;
    op_combine(sum, put(with), true);
    tensor_download(&first, corner(sum));
    ok(isnan(first), "combine: a NaN among maxima");
    op_combine(tensor_row_range(parts, 0, 1), parts, true);
    is_value("combine", "maxima in place", tensor_row_range(parts, 0, 1), largest);
    forget("max");
}

static void test_gelu(size_t M, size_t N) {
    Mat in[] = { normal(M, N, 1) }, want = mat(M, N), dy = normal(M, N, 3);
    if (M * N > 2) in[0].v[1] = -9, in[0].v[2] = 9;
    Tensor x = put(in[0]), y = out(M, N), dx = out(M, N), d = put(dy);
    plain_gelu(want, in);
    op_gelu(y, x);
    is_value("gelu", "y", y, want);
    op_gelu_backward(dx, x, d);
    is_gradient("gelu_backward", "dx", dx, plain_gelu, M, N, in, 0, dy);
    op_gelu_backward(d, x, d);
    ok(same_bits(d, dx), "gelu_backward, in place");
    forget("gelu");
}

// ---- dropout ----

static void plain_dropout(Mat y, const Mat *in) {
    for (size_t r = 0; r < y.rows; r++)
        for (size_t c = 0; c < y.cols; c++) {
            const uint64_t key = random_key(random_key(fixed.key, fixed.row0 + r), fixed.col0 + c);
            y.v[r * y.cols + c] =
                random_unit(key) >= fixed.p ? in[0].v[r * y.cols + c] / (1 - fixed.p) : 0;
        }
}

static void test_dropout(size_t M, size_t N, double p) {
    Mat in[] = { normal(M, N, 1) }, want = mat(M, N), dy = normal(M, N, 3);
    const Dropout d = { .key = 99, .p = p, .row0 = 5, .col0 = 3 };
    fixed.key = d.key, fixed.p = p, fixed.row0 = d.row0, fixed.col0 = d.col0;
    Tensor x = put(in[0]), y = out(M, N), dx = out(M, N), part = out(2, N - 4);
    plain_dropout(want, in);
    op_dropout(y, x, d);
    is_value("dropout", "y", y, want);
    op_dropout(dx, put(dy), d);
    is_gradient("dropout", "dx", dx, plain_dropout, M, N, in, 0, dy);
    const Dropout of_part = { .key = 99, .p = p, .row0 = 5 + 3, .col0 = 3 + 2 };
    op_dropout(part, tensor_col_range(tensor_row_range(x, 3, 5), 2, N - 2), of_part);
    ok(same_bits(part, tensor_col_range(tensor_row_range(y, 3, 5), 2, N - 2)),
       "dropout, part of the whole");
    op_dropout(x, x, d);
    ok(same_bits(x, y), "dropout, in place");
    forget("dropout");
}

static int query_position(size_t b, size_t i) {
    return fixed.query ? fixed.query[b * fixed.Tq + i] : (int)i;
}
static int key_position(size_t b, size_t j) {
    return fixed.key_at ? fixed.key_at[b * fixed.Tk + j] : (int)j;
}

static void plain_dropout_heads(Mat y, const Mat *in) {
    const size_t H = fixed.heads;
    for (size_t b = 0; b < fixed.B; b++)
        for (size_t h = 0; h < H; h++)
            for (size_t t = 0; t < fixed.Tq; t++)
                for (size_t k = 0; k < fixed.Tk; k++) {
                    const uint64_t sequence = random_key(fixed.key, fixed.sequence0 + b);
                    const uint64_t at = random_key(sequence, (uint64_t)query_position(b, t));
                    const uint64_t key =
                        random_key(random_key(at, fixed.head0 + h), (uint64_t)key_position(b, k));
                    const size_t i = ((b * H + h) * fixed.Tq + t) * fixed.Tk + k;
                    y.v[i] = random_unit(key) >= fixed.p ? in[0].v[i] / (1 - fixed.p) : 0;
                }
}

// Returns n ascending positions with gaps for each of B sequences, from `first` on. Each sequence
// has other positions.
static int *some_positions(size_t B, size_t n, int first) {
    int *p = host_alloc((B * n + 1) * sizeof *p);
    for (size_t i = 0; i < B * n; i++)
        p[i] = i % n == 0 ? first + (int)(i / n) : p[i - 1] + 1 + (int)(random_key(5, i) % 3);
    return p;
}
// Sets the sizes and positions of `fixed`, and returns the same as a HeadsPlace. Without gaps every
// sequence has the positions 0, 1, 2, ..., which a HeadsPlace writes as NULL.
static HeadsPlace place_heads(size_t Tq, size_t Tk, size_t B, size_t H, bool gaps) {
    fixed.Tq = Tq, fixed.Tk = Tk, fixed.B = B, fixed.heads = H;
    free(fixed.query), free(fixed.key_at);
    fixed.query = gaps ? some_positions(B, Tq, 2) : NULL,
    fixed.key_at = gaps ? some_positions(B, Tk, 4) : NULL;
    return (HeadsPlace){ B, H, gaps ? ids(fixed.query, B * Tq) : NULL,
                         gaps ? ids(fixed.key_at, B * Tk) : NULL };
}

static void test_dropout_heads(size_t Tq, size_t Tk, size_t B, size_t H, double p, bool gaps) {
    Mat in[] = { normal(B * H * Tq, Tk, 1) }, want = mat(B * H * Tq, Tk),
        dy = normal(B * H * Tq, Tk, 3);
    const HeadsPlace at = place_heads(Tq, Tk, B, H, gaps);
    fixed.key = 4, fixed.p = p, fixed.sequence0 = 6, fixed.head0 = 2;
    Tensor x = put(in[0]), y = out(B * H * Tq, Tk), dx = out(B * H * Tq, Tk);
    plain_dropout_heads(want, in);
    op_dropout_heads(y, x, 4, p, 6, 2, at);
    is_value("dropout_heads", "y", y, want);
    op_dropout_heads(dx, put(dy), 4, p, 6, 2, at);
    is_gradient("dropout_heads", "dx", dx, plain_dropout_heads, B * H * Tq, Tk, in, 0, dy);
    if (H > 1 && !gaps) { // the last head of the last sequence alone, in place
        Tensor part = tensor_row_range(x, (B * H - 1) * Tq, B * H * Tq);
        op_dropout_heads(part, part, 4, p, 6 + B - 1, 2 + H - 1,
                         (HeadsPlace){ .B = 1, .heads = 1 });
        ok(same_bits(part, tensor_row_range(y, (B * H - 1) * Tq, B * H * Tq)),
           "dropout_heads, one head alone, in place");
    }
    forget("dropout_heads");
}

// The dropout of a token depends on the token's sequence and position, not on the row in which a
// rank has the token.
static void test_dropout_tokens(void) {
    enum { T = 6, B = 3, N = 5, LENGTH = 11 };
    static const int some[] = { 1, 2, 4, 7, 8, 10 }; // sequence 1 has these numbers minus 1
    int position[B * T];
    Mat in[] = { normal(B * T, N, 1) }, want = mat(B * T, N);
    for (size_t i = 0; i < B * T; i++) position[i] = some[i % T] - (int)(i / T % 2);
    for (size_t r = 0; r < B * T; r++) {
        const uint64_t row = random_key(99, (4 + r / T) * LENGTH + (uint64_t)position[r]);
        for (size_t c = 0; c < N; c++)
            want.v[r * N + c] =
                random_unit(random_key(row, c)) >= 0.3 ? in[0].v[r * N + c] / (1 - 0.3) : 0;
    }
    Dropout d = { .key = 99, .p = 0.3, .T = T, .length = LENGTH, .first_sequence = 4 };
    d.position = ids(position, B * T);
    Tensor x = put(in[0]), y = out(B * T, N), part = out(7, N - 1);
    op_dropout(y, x, d);
    is_value("dropout of tokens", "y", y, want);
    d.row0 = 8, d.col0 = 1;
    op_dropout(part, tensor_col_range(tensor_row_range(x, 8, 15), 1, N), d);
    ok(same_bits(part, tensor_col_range(tensor_row_range(y, 8, 15), 1, N)),
       "dropout of tokens, from a row on");
    Tensor whole = out(2 * LENGTH, 1), same = out(2 * LENGTH, 1);
    tensor_fill(whole, 1);
    op_dropout(same, whole,
               (Dropout){ .key = 9, .p = 0.5, .T = LENGTH, .length = LENGTH, .first_sequence = 3 });
    op_dropout(whole, whole, (Dropout){ .key = 9, .p = 0.5, .row0 = 3 * LENGTH });
    ok(same_bits(same, whole), "dropout of tokens, whole sequences: global row numbers");
    forget("dropout of tokens");
}

static void test_dropout_rate(void) {
    const size_t n = 20000;
    const double rates[] = { 0.1, 0.5, 0.9 };
    for (size_t i = 0; i < 3; i++) {
        Tensor t = tensor_new(&storage, 100, n / 100);
        tensor_fill(t, 1);
        op_dropout(t, t, (Dropout){ .key = 1, .p = rates[i] });
        const double kept = tensor_sum(t) * (1 - rates[i]) / (double)n;
        ok(fabs(kept - (1 - rates[i])) < 0.015, "dropout of %.1f keeps %.3f", rates[i], kept);
    }
    forget("dropout");
}

// ---- layer norm ----

static void plain_layer_norm(Mat y, const Mat *in) {
    const size_t n = y.cols;
    for (size_t r = 0; r < y.rows; r++) {
        const double *x = in[0].v + r * n;
        double mean = 0, variance = 0;
        for (size_t c = 0; c < n; c++) mean += x[c] / (double)n;
        for (size_t c = 0; c < n; c++) variance += (x[c] - mean) * (x[c] - mean) / (double)n;
        for (size_t c = 0; c < n; c++)
            y.v[r * n + c] = (x[c] - mean) / sqrt(variance + 1e-5) * in[1].v[c] + in[2].v[c];
    }
}

static void test_layer_norm(size_t M, size_t N) {
    Mat in[] = { normal(M, N, 1), normal(1, N, 2), normal(1, N, 3) }, want = mat(M, N),
        dy = normal(M, N, 4);
    for (size_t c = 0; c < N && M; c++)
        in[0].v[c] = (real)(1e-3 * in[0].v[c]); // a row where epsilon matters
    Tensor x = put(in[0]), gain = put_flat(in[1]), d = put(dy);
    Tensor y = out(M, N), stats = out(M, 2), dx = out(M, N), dgain = out(1, N), dbias = out(1, N);
    plain_layer_norm(want, in);
    op_layer_norm(y, stats, x, gain, put_flat(in[2]));
    is_value("layer_norm", "y", y, want);
    op_layer_norm_backward(dx, x, stats, gain, d);
    is_gradient("layer_norm_backward", "dx", dx, plain_layer_norm, M, N, in, 0, dy);
    op_layer_norm_grads(dgain, dbias, x, stats, d);
    is_gradient("layer_norm_grads", "dgain", dgain, plain_layer_norm, M, N, in, 1, dy);
    is_gradient("layer_norm_grads", "dbias", dbias, plain_layer_norm, M, N, in, 2, dy);
    if (M > 3) {
        Tensor part = out(2, N), part_stats = out(2, 2);
        op_layer_norm(part, part_stats, tensor_row_range(x, 2, 4), gain, put_flat(in[2]));
        ok(same_bits(part, tensor_row_range(y, 2, 4)) &&
               same_bits(part_stats, tensor_row_range(stats, 2, 4)),
           "layer_norm, some rows alone");
    }
    forget("layer_norm");
}

// ---- RMS norm, SwiGLU, rotary positions, grouped heads ----

static void plain_rms_norm(Mat y, const Mat *in) {
    const size_t n = y.cols;
    for (size_t r = 0; r < y.rows; r++) {
        const double *x = in[0].v + r * n;
        double squares = 0;
        for (size_t c = 0; c < n; c++) squares += x[c] * x[c] / (double)n;
        for (size_t c = 0; c < n; c++) y.v[r * n + c] = x[c] / sqrt(squares + 1e-6) * in[1].v[c];
    }
}
static void test_rms_norm(size_t M, size_t N) {
    Mat in[] = { normal(M, N, 1), normal(1, N, 2) }, want = mat(M, N), dy = normal(M, N, 4);
    for (size_t c = 0; c < N && M; c++)
        in[0].v[c] = (real)(1e-2 * in[0].v[c]); // a row where epsilon matters
    Tensor x = put(in[0]), gain = put_flat(in[1]), d = put(dy);
    Tensor y = out(M, N), stats = out(M, 1), dx = out(M, N), dgain = out(1, N);
    plain_rms_norm(want, in);
    op_rms_norm(y, stats, x, gain, 1e-6);
    is_value("rms_norm", "y", y, want);
    op_rms_norm_backward(dx, x, stats, gain, d);
    is_gradient("rms_norm_backward", "dx", dx, plain_rms_norm, M, N, in, 0, dy);
    op_rms_norm_grads(dgain, x, stats, d);
    is_gradient("rms_norm_grads", "dgain", dgain, plain_rms_norm, M, N, in, 1, dy);
    forget("rms_norm");
}

static void plain_swiglu(Mat y, const Mat *in) {
    const size_t F = y.cols;
    for (size_t r = 0; r < y.rows; r++)
        for (size_t c = 0; c < F; c++) {
            const double gate = in[0].v[r * 2 * F + c], up = in[0].v[r * 2 * F + F + c];
            y.v[r * F + c] = gate / (1 + exp(-gate)) * up;
        }
}
static void test_swiglu(size_t M, size_t F) {
    Mat in[] = { normal(M, 2 * F, 1) }, want = mat(M, F), dy = normal(M, F, 3);
    if (M * F > 2) in[0].v[1] = -9, in[0].v[2] = 9;
    Tensor x = put(in[0]), y = out(M, F), dx = out(M, 2 * F), d = put(dy), in_place = out(M, 2 * F);
    plain_swiglu(want, in);
    op_activation(y, x);
    is_value("swiglu", "y", y, want);
    op_activation_backward(dx, x, d);
    is_gradient("swiglu_backward", "dx", dx, plain_swiglu, M, F, in, 0, dy);
    tensor_copy(tensor_col_range(in_place, 0, F), d);
    op_activation_backward(in_place, x, tensor_col_range(in_place, 0, F));
    ok(same_bits(in_place, dx), "swiglu_backward, in place");
    forget("swiglu");
}

// Takes columns i and i + D/2 of a head as the two parts of a complex number and turns this number
// by `angle` (Su et al. 2021, section 3.2.1).
static void plain_rotate(Mat y, const Mat *in) {
    const size_t D = fixed.Tk;
    for (size_t r = 0; r < y.rows; r++)
        for (size_t c = 0; c < y.cols; c++) {
            const size_t head = c / D * D, i = c % D % (D / 2), at = r * y.cols + head + i;
            const double position = fixed.query ? fixed.query[r] : (double)(r % fixed.Tq);
            const double angle = position / pow(fixed.scale, 2 * (double)i / (double)D);
            const double a = in[0].v[at], b = in[0].v[at + D / 2];
            y.v[r * y.cols + c] =
                c % D < D / 2 ? a * cos(angle) - b * sin(angle) : b * cos(angle) + a * sin(angle);
        }
}
static void test_rotate(size_t T, size_t B, size_t heads, size_t D, bool gaps) {
    const size_t M = B * T, N = heads * D;
    Mat in[] = { normal(M, N, 1) }, want = mat(M, N), dy = normal(M, N, 2);
    int *position = host_alloc((M + 1) * sizeof *position);
    for (size_t r = 0; r < M; r++) position[r] = (int)(7 + 900 * (r % T));
    memset(&fixed, 0, sizeof fixed);
    fixed.Tq = T, fixed.Tk = D, fixed.scale = 500, fixed.query = gaps ? position : NULL;
    plain_rotate(want, in);
    const int *at = gaps ? ids(position, M) : NULL;
    Tensor x = put(in[0]), d = put(dy);
    op_rotate(x, D, at, T, 500, 1);
    is_value("rotate", "y", x, want);
    op_rotate(d, D, at, T, 500, -1);
    is_gradient("rotate", "back: dx", d, plain_rotate, M, N, in, 0, dy);
    op_rotate(x, D, at, T, 500, -1);
    is_value("rotate", "there and back", x, in[0]);
    forget("rotate");
    free(position);
    memset(&fixed, 0, sizeof fixed);
}

// Repeats each of fixed.heads heads of D columns fixed.B times.
static void plain_repeat(Mat y, const Mat *in) {
    const size_t D = fixed.Tk;
    for (size_t r = 0; r < y.rows; r++)
        for (size_t g = 0; g < fixed.heads; g++)
            for (size_t k = 0; k < fixed.B; k++)
                for (size_t c = 0; c < D; c++)
                    y.v[r * y.cols + (g * fixed.B + k) * D + c] =
                        in[0].v[r * in[0].cols + g * D + c];
}
static void test_groups(size_t M, size_t heads, size_t ratio, size_t D) {
    Mat in[] = { normal(M, heads * D, 1) }, want = mat(M, heads * ratio * D),
        dy = normal(M, heads * ratio * D, 2);
    memset(&fixed, 0, sizeof fixed);
    fixed.heads = heads, fixed.B = ratio, fixed.Tk = D;
    plain_repeat(want, in);
    Tensor y = out(want.rows, want.cols), x = put(in[0]), dx = out(in[0].rows, in[0].cols);
    op_repeat_heads(y, x, D);
    is_value("repeat_heads", "y", y, want);
    op_fold_heads(dx, put(dy), D);
    is_gradient("fold_heads", "dx", dx, plain_repeat, M, want.cols, in, 0, dy);
    forget("grouped heads");
    memset(&fixed, 0, sizeof fixed);
}

// Ops must add nothing for a tensor that the model family does not have.
static void test_absent(void) {
    Tensor x = put(normal(5, 7, 1)), y = out(5, 7);
    Tensor none = tensor_new(&storage, 1, 0), table = tensor_new(&storage, 9, 0);
    op_add_bias(y, x, none);
    ok(same_bits(y, x), "add_bias: a bias of 0 columns");
    tensor_fill(y, 0);
    op_add_positions(y, x, table, NULL);
    ok(same_bits(y, x), "add_positions: a table of 0 columns");
    op_add_positions_grad(table, NULL, x);
    forget("absent tensors");
}

// Tests layer norm with the columns of a row in three parts, as on three ranks. The sums of all
// parts are added before these sums are applied to any part.
static void test_layer_norm_parts(size_t M, size_t N) {
    enum { PARTS = 3 };
    Mat in[] = { normal(M, N, 1), normal(1, N, 2), normal(1, N, 3) }, want = mat(M, N),
        dy = normal(M, N, 4);
    for (size_t c = 0; c < N && M; c++) in[0].v[c] = (real)(1e-3 * in[0].v[c]);
    Tensor x = put(in[0]), gain = put_flat(in[1]), bias = put_flat(in[2]), d = put(dy);
    Tensor y = out(M, N), stats = out(M, 2), dx = out(M, N), dgain = out(1, N), dbias = out(1, N);
    Tensor sums = out(M, 2), part = out(M, 2);
    for (int backward = 0; backward < 2; backward++) {
        tensor_fill(sums, 0);
        for (size_t i = 0; i < PARTS; i++) {
            const Range r = shard_range(N, PARTS, i);
            Tensor my_x = tensor_col_range(x, r.lo, r.hi), my_d = tensor_col_range(d, r.lo, r.hi);
            if (backward)
                op_layer_norm_backward_sums(part, my_x, stats, tensor_col_range(gain, r.lo, r.hi),
                                            my_d);
            else op_layer_norm_sums(part, my_x);
            op_add(sums, sums, part);
        }
        for (size_t i = 0; i < PARTS; i++) {
            const Range r = shard_range(N, PARTS, i);
            Tensor my_x = tensor_col_range(x, r.lo, r.hi), my_d = tensor_col_range(d, r.lo, r.hi);
            Tensor my_gain = tensor_col_range(gain, r.lo, r.hi),
                   my_bias = tensor_col_range(bias, r.lo, r.hi);
            if (backward) {
                op_layer_norm_backward_apply(tensor_col_range(dx, r.lo, r.hi), sums, my_x, stats,
                                             my_gain, my_d, N);
                op_layer_norm_grads(tensor_col_range(dgain, r.lo, r.hi),
                                    tensor_col_range(dbias, r.lo, r.hi), my_x, stats, my_d);
            } else {
                op_layer_norm_apply(tensor_col_range(y, r.lo, r.hi), stats, sums, my_x, my_gain,
                                    my_bias, N);
            }
        }
    }
    plain_layer_norm(want, in);
    is_value("layer_norm of parts", "y", y, want);
    is_gradient("layer_norm of parts", "dx", dx, plain_layer_norm, M, N, in, 0, dy);
    is_gradient("layer_norm of parts", "dgain", dgain, plain_layer_norm, M, N, in, 1, dy);
    is_gradient("layer_norm of parts", "dbias", dbias, plain_layer_norm, M, N, in, 2, dy);
    forget("layer_norm of parts");
}

// ---- attention ----

// Returns the address of element d of head h of token (b, t).
static double *at(Mat m, size_t T, size_t b, size_t h, size_t t, size_t d) {
    return &m.v[(b * T + t) * m.cols + h * (m.cols / fixed.heads) + d];
}
static double *score_at(Mat p, size_t b, size_t h, size_t i, size_t j) {
    return &p.v[((b * fixed.heads + h) * fixed.Tq + i) * fixed.Tk + j];
}
#define FOR(i, n) for (size_t i = 0; i < (n); i++)
static void plain_scores(Mat p, const Mat *in) {
    FOR (b, fixed.B)
        FOR (h, fixed.heads)
            FOR (i, fixed.Tq)
                FOR (j, fixed.Tk) {
                    double s = 0;
                    FOR (d, in[0].cols / fixed.heads)
                        s += *at(in[0], fixed.Tq, b, h, i, d) * *at(in[1], fixed.Tk, b, h, j, d);
                    *score_at(p, b, h, i, j) = s;
                }
}
static void plain_mix(Mat o, const Mat *in) {
    FOR (b, fixed.B)
        FOR (h, fixed.heads)
            FOR (i, fixed.Tq)
                FOR (d, o.cols / fixed.heads) {
                    double s = 0;
                    FOR (j, fixed.Tk)
                        s += *score_at(in[0], b, h, i, j) * *at(in[1], fixed.Tk, b, h, j, d);
                    *at(o, fixed.Tq, b, h, i, d) = s;
                }
}
static void plain_mix_t(Mat o, const Mat *in) {
    FOR (b, fixed.B)
        FOR (h, fixed.heads)
            FOR (j, fixed.Tk)
                FOR (d, o.cols / fixed.heads) {
                    double s = 0;
                    FOR (i, fixed.Tq)
                        s += *score_at(in[0], b, h, i, j) * *at(in[1], fixed.Tq, b, h, i, d);
                    *at(o, fixed.Tk, b, h, j, d) = s;
                }
}

static void test_heads(size_t Tq, size_t Tk, size_t B, size_t H, size_t D) {
    fixed.Tq = Tq, fixed.Tk = Tk, fixed.B = B, fixed.heads = H;
    const size_t P = B * H * Tq;
    Mat qk[] = { normal(B * Tq, H * D, 1), normal(B * Tk, H * D, 2) },
        pv[] = { normal(P, Tk, 3), qk[1] };
    Mat pq[] = { pv[0], qk[0] }, p_want = mat(P, Tk), o_want = mat(B * Tq, H * D),
        ot_want = mat(B * Tk, H * D);
    Mat dp = normal(P, Tk, 4), d_o = normal(B * Tq, H * D, 5);
    Tensor p = out(P, Tk), o = out(B * Tq, H * D), ot = out(B * Tk, H * D), q = put(qk[0]),
           k = put(qk[1]);
    Tensor s = put(pv[0]);
    plain_scores(p_want, qk);
    op_heads_scores(p, q, k, B, H);
    is_value("heads_scores", "p", p, p_want);
    op_heads_mix(o, put(dp), k, B, H);
    is_gradient("heads_mix", "dq", o, plain_scores, P, Tk, qk, 0, dp);
    op_heads_mix_t(ot, put(dp), q, B, H);
    is_gradient("heads_mix_t", "dk", ot, plain_scores, P, Tk, qk, 1, dp);
    plain_mix(o_want, pv);
    op_heads_mix(o, s, k, B, H);
    is_value("heads_mix", "o", o, o_want);
    op_heads_scores(p, put(d_o), k, B, H);
    is_gradient("heads_scores", "dp", p, plain_mix, B * Tq, H * D, pv, 0, d_o);
    op_heads_mix_t(ot, s, put(d_o), B, H);
    is_gradient("heads_mix_t", "dv", ot, plain_mix, B * Tq, H * D, pv, 1, d_o);
    plain_mix_t(ot_want, pq);
    op_heads_mix_t(ot, s, q, B, H);
    is_value("heads_mix_t", "o", ot, ot_want);
    forget("a head's op");
}

static void plain_softmax(Mat p, const Mat *in) {
    FOR (r, p.rows) {
        const double *s = in[0].v + r * p.cols;
        const size_t b = r / fixed.Tq / fixed.heads;
        double sum = 0, largest = -INFINITY;
        bool live[64];
        FOR (c, p.cols) live[c] = key_position(b, c) <= query_position(b, r % fixed.Tq);
        FOR (c, p.cols)
            if (live[c]) largest = fmax(largest, fixed.scale * s[c]);
        FOR (c, p.cols)
            if (live[c]) sum += exp(fixed.scale * s[c] - largest);
        FOR (c, p.cols) p.v[r * p.cols + c] = live[c] ? exp(fixed.scale * s[c] - largest) / sum : 0;
    }
}

static void test_softmax(size_t Tq, size_t Tk, size_t B, size_t H, bool gaps) {
    const size_t P = B * H * Tq;
    const HeadsPlace place = place_heads(Tq, Tk, B, H, gaps);
    Mat in[] = { normal(P, Tk, 1) }, want = mat(P, Tk), dy = normal(P, Tk, 2);
    fixed.scale = 0.7;
    in[0].v[0] = 300; // a score whose exp overflows in fp32
    Tensor s = put(in[0]), p = out(P, Tk), ds = out(P, Tk), dp = put(dy);
    plain_softmax(want, in);
    op_causal_softmax(p, s, (real)0.7, place);
    is_value("causal_softmax", "p", p, want);
    op_causal_softmax_backward(ds, p, dp, (real)0.7, place);
    is_gradient("causal_softmax_backward", "ds", ds, plain_softmax, P, Tk, in, 0, dy);
    FOR (r, P)
        FOR (c, Tk) {
            if (key_position(r / Tq / H, c) <= query_position(r / Tq / H, r % Tq)) continue;
            tensor_fill(tensor_col_range(tensor_row_range(s, r, r + 1), c, c + 1), (real)NAN);
            tensor_fill(tensor_col_range(tensor_row_range(dp, r, r + 1), c, c + 1), (real)NAN);
        }
    op_causal_softmax(s, s, (real)0.7, place);
    ok(same_bits(s, p), "causal_softmax, in place, never reads later keys");
    op_causal_softmax_backward(dp, p, dp, (real)0.7, place);
    ok(same_bits(dp, ds), "causal_softmax_backward, in place, never reads later keys");
    forget("causal_softmax");
}

// Tests chunks of a sequence on N ranks. For one rank's queries and another rank's keys, the
// scores, the softmax, the causal mask and the dropout must equal this part of the whole sequence.
// A rank has the rank-th of N equal chunks. With zigzag a rank has two of 2N chunks: the rank-th
// from the front and the rank-th from the back.
enum { CHUNK_RANKS = 3, CHUNK_EACH = 4, CHUNK_T = CHUNK_RANKS * CHUNK_EACH };
static void chunk_positions(int *position, size_t B, size_t rank, bool zigzag) {
    enum { HALF = CHUNK_EACH / 2 };
    FOR (b, B)
        FOR (i, CHUNK_EACH) {
            const size_t back = (2 * CHUNK_RANKS - 1 - rank) * HALF;
            position[b * CHUNK_EACH + i] = (int)(!zigzag    ? rank * CHUNK_EACH + i
                                                 : i < HALF ? rank * HALF + i
                                                            : back + i - HALF);
        }
}
// Returns the rows of the tokens at these positions.
static Mat chosen(Mat whole, const int *position, size_t B, size_t T) {
    Mat m = mat(B * CHUNK_EACH, whole.cols);
    FOR (r, m.rows) {
        const size_t from = r / CHUNK_EACH * T + (size_t)position[r];
        memcpy(m.v + r * m.cols, whole.v + from * m.cols, m.cols * sizeof *m.v);
    }
    return m;
}
static void test_chunks(size_t B, size_t H, size_t D, bool zigzag) {
    const size_t T = CHUNK_T, E = CHUNK_EACH;
    Mat q = normal(B * T, H * D, 1), k = normal(B * T, H * D, 2);
    const HeadsPlace all = { .B = B, .heads = H };
    Tensor whole = out(B * H * T, T), seen = out(B * H * T, T), kept = out(B * H * T, T);
    op_heads_scores(whole, put(q), put(k), B, H);
    op_causal_softmax(seen, whole, 1, all);
    op_dropout_heads(kept, whole, 4, 0.4, 6, 1, all);
    Mat scores = get(whole), p = get(seen), dropped = get(kept);
    double worst = 0;
    bool same_mask = true, same_dropout = true;
    FOR (i, CHUNK_RANKS)
        FOR (j, CHUNK_RANKS) {
            int query[8], key[8];
            chunk_positions(query, B, i, zigzag);
            chunk_positions(key, B, j, zigzag);
            const HeadsPlace place = { B, H, ids(query, B * E), ids(key, B * E) };
            Tensor s = out(B * H * E, E), part = out(B * H * E, E), d = out(B * H * E, E);
            op_heads_scores(s, put(chosen(q, query, B, T)), put(chosen(k, key, B, T)), B, H);
            op_causal_softmax(part, s, 1, place);
            op_dropout_heads(d, s, 4, 0.4, 6, 1, place);
            Mat my_scores = get(s), local = get(part), my_dropped = get(d);
            FOR (r, B * H * E) {
                const size_t row = r / E * T + (size_t)query[r % E];
                double share = 0; // the probability of these keys in the row
                FOR (c, E) share += p.v[row * T + (size_t)key[c]];
                FOR (c, E) {
                    const size_t at = row * T + (size_t)key[c];
                    worst = fmax(worst, fabs(my_scores.v[r * E + c] - scores.v[at]));
                    worst = fmax(worst, fabs(local.v[r * E + c] * share - p.v[at]));
                    same_mask = same_mask && (local.v[r * E + c] == 0) == (p.v[at] == 0);
                    same_dropout =
                        same_dropout && (my_dropped.v[r * E + c] == 0) == (dropped.v[at] == 0);
                }
            }
        }
    const char *what = zigzag ? "zigzag chunks" : "chunks";
    ok(worst < 10 * ROUNDING,
       "%s of queries and keys: scores and softmax are that part of the whole: %.1e", what, worst);
    ok(same_mask, "%s of queries and keys: the causal mask is that part of the whole", what);
    ok(same_dropout, "%s of queries and keys: dropout is that part of the whole", what);
    forget("chunks");
}

// lse[row, head] <- the log of the sum of the exponentials of the scaled scores that a query sees.
// The scores are [B*heads*Tq, Tk], and lse is [B*Tq, heads].
static void plain_lse(Mat lse, const Mat *in) {
    FOR (r, in[0].rows) {
        const double *s = in[0].v + r * in[0].cols;
        const size_t b = r / fixed.Tq / fixed.heads, q = r % fixed.Tq,
                     h = r / fixed.Tq % fixed.heads;
        double sum = 0, largest = -INFINITY;
        FOR (c, in[0].cols)
            if (key_position(b, c) <= query_position(b, q))
                largest = fmax(largest, fixed.scale * s[c]);
        FOR (c, in[0].cols)
            if (key_position(b, c) <= query_position(b, q))
                sum += exp(fixed.scale * s[c] - largest);
        lse.v[(b * fixed.Tq + q) * fixed.heads + h] = largest + log(sum);
    }
}
static void is_near(const char *what, Tensor got, Mat want, double limit) {
    const double e = error_of(get(got), want);
    ok(e <= limit * ROUNDING, "%s: %.1e", what, e);
}
// Scores are in the hundreds. The outputs of attention to two blocks of keys, merged, must equal
// the output of attention to all keys. op_causal_scores_backward(), which reads the dot product of
// o and its gradient per row and head, must equal the softmax's backward. The ops *_triangle use
// only the elements up to the diagonal. With a causal mask they must give the results of the ops
// without _triangle.
static void test_blocks(size_t T, size_t B, size_t H, size_t D) {
    const size_t P = B * H * T, A = H * D, half = T / 2;
    const HeadsPlace all = place_heads(T, T, B, H, false);
    int *first = host_alloc((B * T + 1) * sizeof *first),
        *second = host_alloc((B * T + 1) * sizeof *second);
    FOR (b, B)
        FOR (i, T) { // the positions of each block's keys
            if (i < half) first[b * half + i] = (int)i;
            else second[b * (T - half) + i - half] = (int)i;
        }
    int *query = host_alloc((B * T + 1) * sizeof *query);
    FOR (i, B * T) query[i] = (int)(i % T);
    const int *queries = ids(query, B * T);
    const HeadsPlace early = { B, H, queries, ids(first, B * half) };
    const HeadsPlace late = { B, H, queries, ids(second, B * (T - half)) };
    Mat in[] = { normal(P, T, 1) }, want = mat(P, T), lse_want = mat(B * T, H),
        dot_want = mat(B * T, H);
    FOR (i, P * T) in[0].v[i] *= 200;
    fixed.scale = 0.5;
    plain_softmax(want, in);
    plain_lse(lse_want, in);
    Tensor s = put(in[0]), p = out(P, T), lse = out(B * T, H), again = out(P, T);
    op_causal_softmax_lse(p, lse, s, (real)0.5, all);
    is_near("causal_softmax_lse: p", p, want, 10);
    is_value("causal_softmax_lse", "lse", lse, lse_want);
    op_causal_probabilities(again, s, lse, (real)0.5, all);
    is_near("causal_probabilities from lse: p", again, want, 1000);

    Tensor v = put(normal(B * T, A, 2)), o = out(B * T, A), o_all = out(B * T, A),
           lse_merged = out(B * T, H);
    op_heads_mix(o_all, p, v, B, H);
    tensor_fill(o, 0);
    tensor_fill(lse_merged, -(real)HUGE_VAL);
    // The later keys come first, and many queries attend to none of them.
    FOR (block, 2) {
        const size_t n = block ? half : T - half, lo = block ? 0 : half;
        Tensor ps = out(P, n), vs = out(B * n, A), os = out(B * T, A), ls = out(B * T, H);
        FOR (b, B)
            tensor_copy(tensor_row_range(vs, b * n, (b + 1) * n),
                        tensor_row_range(v, b * T + lo, b * T + lo + n));
        op_causal_softmax_lse(ps, ls, tensor_col_range(s, lo, lo + n), (real)0.5,
                              block ? early : late);
        op_heads_mix(os, ps, vs, B, H);
        op_merge_heads(o, lse_merged, os, ls);
    }
    is_near("merge_heads: o of all keys", o, get(o_all), 100);
    is_value("merge_heads", "lse", lse_merged, lse_want);

    Tensor d_o = put(normal(B * T, A, 3)), dot = out(B * T, H), dp = out(P, T), ds = out(P, T),
           ds_want = out(P, T);
    Mat mo = get(o_all), md = get(d_o);
    FOR (r, B * T)
        FOR (c, A) dot_want.v[r * H + c / D] += mo.v[r * A + c] * md.v[r * A + c];
    op_heads_dot(dot, o_all, d_o);
    is_value("heads_dot", "dot", dot, dot_want);
    op_heads_scores(dp, d_o, v, B, H);
    op_causal_softmax_backward(ds_want, p, dp, (real)0.5, all);
    op_causal_scores_backward(ds, p, dp, dot, (real)0.5, all);
    is_near("causal_scores_backward: ds", ds, get(ds_want), 100);

    Tensor q = put(normal(B * T, A, 4)), k = put(normal(B * T, A, 5)), full = out(P, T),
           triangle = out(P, T);
    op_heads_scores(full, q, k, B, H);
    op_heads_scores_triangle(triangle, q, k, B, H); // `triangle` stays NaN above the diagonal
    op_causal_softmax(full, full, 1, all);
    op_causal_softmax(again, triangle, 1, all);
    is_near("heads_scores_triangle", again, get(full), 100);
    op_heads_mix(o, full, v, B, H);
    FOR (r, P)
        tensor_fill(tensor_col_range(tensor_row_range(again, r, r + 1), r % T + 1, T), (real)NAN);
    op_heads_mix_triangle(o_all, again, v, B, H);
    is_near("heads_mix_triangle", o_all, get(o), 100);
    op_heads_mix_t(o, full, v, B, H);
    op_heads_mix_t_triangle(o_all, again, v, B, H);
    is_near("heads_mix_t_triangle", o_all, get(o), 100);
    free(first), free(second), free(query);
    forget("an op of blocks");
}

// ---- embedding ----

static void plain_embed(Mat y, const Mat *in) {
    FOR (r, y.rows)
        FOR (c, y.cols) {
            const int word = fixed.ids[r] - (int)fixed.vocab0;
            y.v[r * y.cols + c] =
                word >= 0 && word < (int)in[0].rows ? in[0].v[(size_t)word * y.cols + c] : 0;
        }
}
static void plain_positions(Mat y, const Mat *in) {
    FOR (r, y.rows)
        FOR (c, y.cols)
            y.v[r * y.cols + c] =
                in[0].v[r * y.cols + c] + in[1].v[(size_t)fixed.ids[r] * y.cols + c];
}

static void test_embedding(size_t words, size_t vocab0, size_t C) {
    enum { M = 10 };
    static const int tokens[M] = { 0, 4, 8, 4, 12, 5, -1, 4, 3, 9 };
    Mat in[] = { normal(words, C, 1) }, want = mat(M, C), dy = normal(M, C, 2);
    fixed.ids = tokens, fixed.vocab0 = vocab0;
    Tensor y = out(M, C), dwte = out(words, C);
    plain_embed(want, in);
    op_embed_tokens(y, put(in[0]), ids(tokens, M), vocab0);
    is_value("embed_tokens", "y", y, want);
    op_embed_tokens_grad(dwte, ids(tokens, M), put(dy), vocab0);
    is_gradient("embed_tokens_grad", "dwte", dwte, plain_embed, M, C, in, 0, dy);
    forget("embed_tokens");
}

// Each sequence has T positions of wpe. The positions of sequence b are those of sequence 0, plus
// b, modulo `positions`.
static void test_positions(size_t T, size_t B, size_t positions, size_t C) {
    const size_t M = B * T;
    Mat in[] = { normal(M, C, 1), normal(positions, C, 2) }, want = mat(M, C), dy = normal(M, C, 3);
    int *position = host_alloc((M + 1) * sizeof *position);
    for (size_t i = 0; i < M; i++)
        position[i] = (int)((i % T * (positions / T) + i / T) % positions);
    fixed.ids = position;
    const int *on_device = ids(position, M);
    Tensor x = put(in[0]), wpe = put(in[1]), y = out(M, C), dwpe = out(positions, C);
    plain_positions(want, in);
    op_add_positions(y, x, wpe, on_device);
    is_value("add_positions", "y", y, want);
    op_add_positions(x, x, wpe, on_device);
    ok(same_bits(x, y), "add_positions, in place");
    op_add_positions_grad(dwpe, on_device, put(dy));
    is_gradient("add_positions_grad", "dwpe", dwpe, plain_positions, M, C, in, 1, dy);
    free(position);
    forget("add_positions");
}
static void test_no_such_position(void) {
    Tensor x = put(normal(3, 5, 1)), wpe = put(normal(4, 5, 2)), y = out(3, 5);
    op_add_positions(y, x, wpe, ids((int[]){ 3, 4, -1 }, 3));
    Mat got = get(y);
    ok(!isnan(got.v[0]) && isnan(got.v[5]) && isnan(got.v[14]),
       "add_positions: NaN if wpe lacks the position");
    forget("add_positions");
}

// ---- cross entropy, over a vocabulary in slices ----

static void plain_cross_entropy(Mat loss, const Mat *in) {
    FOR (r, loss.rows) {
        const double *x = in[0].v + r * in[0].cols;
        double largest = -INFINITY, sum = 0;
        FOR (c, in[0].cols) largest = fmax(largest, x[c]);
        FOR (c, in[0].cols) sum += exp(x[c] - largest);
        loss.v[r] = fixed.ids[r] < 0 ? 0 : log(sum) + largest - x[fixed.ids[r]];
    }
}

enum { SLICES = 4 };
static void test_cross_entropy(size_t V, const size_t *cut, const char *how) {
    enum { M = 7 };
    static const int targets[M] = { 0, 12, -1, 5, 4, -1, 9 };
    const int *on_device = ids(targets, M);
    Mat in[] = { normal(M, V, 1) }, want = mat(M, 1), dloss = normal(M, 1, 2), largest = mat(M, 1);
    fixed.ids = targets;
    FOR (c, V)
        in[0].v[3 * V + c] =
            (real)(in[0].v[3 * V + c] + 500); // a row whose exponentials are too large for a float
    Tensor logits = put(in[0]), max = out(M, 1), sum = out(M, 1);
    Tensor picked = out(M, 1), loss = out(M, 1), partial = out(M, 1);
    FOR (r, M) largest.v[r] = -INFINITY;
    tensor_fill(sum, 0);
    tensor_fill(picked, 0);
    // A vocabulary-parallel head communicates three values per row: the maximum, the target's logit
    // and the sum.
    FOR (i, SLICES) {
        Tensor local = tensor_col_range(logits, cut[i], cut[i + 1]);
        op_row_max(partial, local);
        Mat m = get(partial);
        FOR (r, M) largest.v[r] = fmax(largest.v[r], m.v[r]);
        op_pick_target(partial, local, on_device, cut[i]); // only one slice has the target's logit
        op_add(picked, picked, partial);
    }
    tensor_copy(max, put(largest));
    FOR (i, SLICES) {
        op_exp_sum(partial, tensor_col_range(logits, cut[i], cut[i + 1]), max);
        op_add(sum, sum, partial);
    }
    op_token_loss(loss, picked, max, sum, on_device);
    plain_cross_entropy(want, in);
    is_value(how, "loss", loss, want);
    Mat with_nan = mat(M, 1);
    // The gradient of a row's loss may be NaN if the row has no counted target.
    FOR (r, M) with_nan.v[r] = targets[r] < 0 ? NAN : dloss.v[r];
    FOR (i, SLICES)
        op_cross_entropy_backward(tensor_col_range(logits, cut[i], cut[i + 1]), sum, on_device,
                                  put(with_nan), cut[i]);
    is_gradient(how, "dlogits", logits, plain_cross_entropy, M, 1, in, 0, dloss);
    forget(how);
}

// ---- optimizers ----

static void test_optimizers(size_t M, size_t N) {
    Mat w = normal(M, N, 1), m = mat(M, N), v = mat(M, N);
    Tensor w_adam = put(w), w_sgd = put(w), tm = put(m), tv = put(v);
    Mat w_sgd_want = mat(M, N);
    memcpy(w_sgd_want.v, w.v, M * N * sizeof *w.v);
    const double lr = 0.05, b1 = 0.9, b2 = 0.95, epsilon = 1e-5, decay = 0.1, scale = 0.3;
    for (int step = 1; step <= 3; step++) {
        Mat g = normal(M, N, (uint64_t)(10 + step));
        const double c1 = 1 - pow(b1, step), c2 = 1 - pow(b2, step);
        FOR (i, M * N) {
            const double s = scale * g.v[i];
            m.v[i] = b1 * m.v[i] + (1 - b1) * s;
            v.v[i] = b2 * v.v[i] + (1 - b2) * s * s;
            w.v[i] -= lr * (m.v[i] / c1 / (sqrt(v.v[i] / c2) + epsilon) + decay * w.v[i]);
            w_sgd_want.v[i] -= lr * (s + decay * w_sgd_want.v[i]);
        }
        AdamW a = { (real)lr, (real)b1, (real)b2, (real)epsilon, (real)decay, (real)c1, (real)c2 };
        op_adamw(w_adam, put(g), tm, tv, (real)scale, a);
        op_sgd(w_sgd, put(g), (real)scale, (real)lr, (real)decay);
    }
    is_value("sgd", "w", w_sgd, w_sgd_want);
    is_value("adamw", "w", w_adam, w);
    is_value("adamw", "m", tm, m);
    is_value("adamw", "v", tv, v);
    forget("an optimizer");
}

// ---- wrong shapes end with both shapes and status 3 ----

static Tensor t(size_t rows, size_t cols) { return put(mat(rows, cols)); }
static HeadsPlace place(size_t B, size_t heads) { return (HeadsPlace){ .B = B, .heads = heads }; }
static void bad_matmul(void) { op_matmul(t(4, 8), t(4, 5), t(6, 8)); }
static void bad_matmul_nt(void) { op_matmul_nt(t(4, 8), t(4, 5), t(5, 8)); }
static void bad_matmul_tn(void) { op_matmul_tn(t(4, 8), t(4, 5), t(4, 8)); }
static void bad_add(void) { op_add(t(4, 8), t(4, 8), t(8, 4)); }
static void bad_multiply(void) { op_multiply(t(4, 8), t(4, 7), t(4, 8)); }
static void bad_scale(void) { op_scale(t(4, 8), t(4, 7), 1); }
static void bad_bias(void) { op_add_bias(t(4, 8), t(4, 8), t(1, 4)); }
static void bad_sum_rows(void) { op_sum_rows(t(1, 4), t(4, 8)); }
static void bad_max(void) { op_max(t(2, 8), t(4, 8), t(4, 8)); }
static void bad_gelu(void) { op_gelu(t(4, 8), t(2, 16)); }
static void bad_gelu_backward(void) { op_gelu_backward(t(4, 8), t(4, 8), t(4, 1)); }
static void bad_dropout(void) { op_dropout(t(4, 8), t(4, 9), (Dropout){ .p = 0.1 }); }
static void bad_p(void) { op_dropout(t(4, 8), t(4, 8), (Dropout){ .p = 1 }); }
static void bad_dropout_heads(void) {
    op_dropout_heads(t(30, 5), t(30, 5), 1, 0.1, 0, 0, place(4, 2));
}
static void bad_norm(void) { op_layer_norm(t(4, 8), t(4, 1), t(4, 8), t(1, 8), t(1, 8)); }
static void bad_norm_backward(void) {
    op_layer_norm_backward(t(4, 8), t(4, 8), t(4, 2), t(8, 1), t(4, 8));
}
static void bad_rms_norm(void) { op_rms_norm(t(4, 8), t(4, 2), t(4, 8), t(1, 8), 1e-5); }
static void bad_rms_norm_backward(void) {
    op_rms_norm_backward(t(4, 8), t(4, 8), t(4, 1), t(8, 1), t(4, 8));
}
static void bad_rms_norm_grads(void) { op_rms_norm_grads(t(1, 7), t(4, 8), t(4, 1), t(4, 8)); }
static void bad_swiglu(void) { op_swiglu(t(4, 8), t(4, 8)); }
static void bad_swiglu_backward(void) { op_swiglu_backward(t(4, 8), t(4, 8), t(4, 8)); }
static void bad_rotate(void) { op_rotate(t(4, 10), 5, NULL, 4, 100, 1); }
static void bad_repeat(void) { op_repeat_heads(t(4, 9), t(4, 6), 3); }
static void bad_fold(void) { op_fold_heads(t(4, 6), t(5, 12), 3); }
static void bad_norm_grads(void) {
    op_layer_norm_grads(t(1, 8), t(1, 7), t(4, 8), t(4, 2), t(4, 8));
}
static void bad_norm_sums(void) { op_layer_norm_sums(t(4, 1), t(4, 8)); }
static void bad_norm_apply(void) {
    op_layer_norm_apply(t(4, 8), t(4, 2), t(3, 2), t(4, 8), t(1, 8), t(1, 8), 16);
}
static void bad_norm_backward_sums(void) {
    op_layer_norm_backward_sums(t(4, 2), t(4, 8), t(4, 2), t(1, 16), t(4, 8));
}
static void bad_norm_backward_apply(void) {
    op_layer_norm_backward_apply(t(4, 8), t(4, 1), t(4, 8), t(4, 2), t(1, 8), t(4, 8), 16);
}
static void bad_scores(void) { op_heads_scores(t(30, 5), t(10, 7), t(10, 7), 2, 3); }
static void bad_mix(void) { op_heads_mix(t(10, 6), t(30, 5), t(10, 9), 2, 3); }
static void bad_mix_t(void) { op_heads_mix_t(t(10, 6), t(20, 5), t(10, 6), 2, 3); }
static void bad_softmax(void) { op_causal_softmax(t(7, 5), t(7, 5), 1, place(1, 2)); }
static void bad_softmax_backward(void) {
    op_causal_softmax_backward(t(10, 5), t(10, 5), t(5, 5), 1, place(1, 2));
}
static void bad_lse(void) { op_causal_softmax_lse(t(10, 5), t(10, 2), t(10, 5), 1, place(1, 2)); }
static void bad_merge(void) { op_merge_heads(t(4, 8), t(4, 2), t(4, 8), t(4, 1)); }
static void bad_dot(void) { op_heads_dot(t(3, 2), t(4, 8), t(4, 8)); }
static void bad_triangle(void) { op_heads_scores_triangle(t(10, 4), t(5, 6), t(4, 6), 1, 2); }
static void bad_embed(void) { op_embed_tokens(t(4, 8), t(9, 7), NULL, 0); }
static void bad_embed_grad(void) { op_embed_tokens_grad(t(9, 7), NULL, t(4, 8), 0); }
static void bad_positions(void) { op_add_positions(t(10, 3), t(10, 3), t(4, 4), NULL); }
static void bad_positions_grad(void) { op_add_positions_grad(t(5, 3), NULL, t(11, 4)); }
static void bad_row_max(void) { op_row_max(t(4, 2), t(4, 8)); }
static void bad_pick(void) { op_pick_target(t(3, 1), t(4, 8), NULL, 0); }
static void bad_exp_sum(void) { op_exp_sum(t(4, 1), t(4, 8), t(1, 4)); }
static void bad_loss(void) { op_token_loss(t(4, 1), t(4, 1), t(3, 1), t(4, 1), NULL); }
static void bad_cross_entropy(void) {
    op_cross_entropy_backward(t(4, 8), t(4, 1), NULL, t(1, 1), 0);
}
static void bad_sgd(void) { op_sgd(t(4, 8), t(4, 7), 1, 1, 0); }
static void bad_adamw(void) { op_adamw(t(4, 8), t(4, 8), t(4, 8), t(3, 8), 1, (AdamW){ .lr = 1 }); }

static void test_shapes(void) {
    ends(bad_matmul, 3, "op_matmul: y is [4, 8], but x [4, 5] times w [6, 8] does not fit");
    ends(bad_matmul_nt, 3, "op_matmul_nt: y is [4, 8], but x [4, 5] times w [5, 8]^T does not fit");
    ends(bad_matmul_tn, 3, "op_matmul_tn: y is [4, 8], but x [4, 5]^T times w [4, 8] does not fit");
    ends(bad_add, 3, "op_add: b is [8, 4], but a [4, 8] needs [4, 8]");
    ends(bad_multiply, 3, "op_multiply: y is [4, 8], but a [4, 7] needs [4, 7]");
    ends(bad_scale, 3, "op_scale: y is [4, 8], but x [4, 7] needs [4, 7]");
    ends(bad_bias, 3, "op_add_bias: bias is [1, 4], but x [4, 8] needs [1, 8]");
    ends(bad_sum_rows, 3, "op_sum_rows: sum is [1, 4], but x [4, 8] needs [1, 8]");
    ends(bad_max, 3, "op_max: y is [2, 8], but a [4, 8] needs [4, 8]");
    ends(bad_gelu, 3, "op_gelu: y is [4, 8], but x [2, 16] needs [2, 16]");
    ends(bad_gelu_backward, 3, "op_gelu_backward: dy is [4, 1], but x [4, 8] needs [4, 8]");
    ends(bad_dropout, 3, "op_dropout: y is [4, 8], but x [4, 9] needs [4, 9]");
    ends(bad_p, 3, "op_dropout: the probability is 1; it must be at least 0 and less than 1");
    ends(bad_dropout_heads, 3,
         "op_dropout_heads: p is [30, 5]: that is not 4 sequences with 2 heads");
    ends(bad_norm, 3, "op_layer_norm: stats is [4, 1], but x [4, 8] needs [4, 2]");
    ends(bad_norm_backward, 3, "op_layer_norm_backward: gain is [8, 1], but x [4, 8] needs [1, 8]");
    ends(bad_rms_norm, 3, "op_rms_norm: stats is [4, 2], but x [4, 8] needs [4, 1]");
    ends(bad_rms_norm_backward, 3,
         "op_rms_norm_backward: gain is [8, 1], but x [4, 8] needs [1, 8]");
    ends(bad_rms_norm_grads, 3, "op_rms_norm_grads: dgain is [1, 7], but x [4, 8] needs [1, 8]");
    ends(bad_swiglu, 3, "op_swiglu: y is [4, 8], but gate | up [4, 8] needs [4, 4]");
    ends(bad_swiglu_backward, 3,
         "op_swiglu_backward: dy is [4, 8], but gate | up [4, 8] needs [4, 4]");
    ends(bad_rotate, 3, "op_rotate: x is [4, 10], but heads of 5 columns");
    ends(bad_repeat, 3,
         "op_repeat_heads: [4, 9] and [4, 6] are not groups of heads with 3 columns");
    ends(bad_fold, 3,
         "op_fold_heads: the wide tensor is [5, 12], but the narrow one [4, 6] needs [4, 12]");
    ends(bad_norm_grads, 3, "op_layer_norm_grads: dbias is [1, 7], but x [4, 8] needs [1, 8]");
    ends(bad_norm_sums, 3, "op_layer_norm_sums: sums is [4, 1], but x [4, 8] needs [4, 2]");
    ends(bad_norm_apply, 3, "op_layer_norm_apply: sums is [3, 2], but x [4, 8] needs [4, 2]");
    ends(bad_norm_backward_sums, 3,
         "op_layer_norm_backward_sums: gain is [1, 16], but x [4, 8] needs [1, 8]");
    ends(bad_norm_backward_apply, 3,
         "op_layer_norm_backward_apply: sums is [4, 1], but x [4, 8] needs [4, 2]");
    ends(bad_scores, 3,
         "op_heads_scores: q is [10, 7], k [10, 7] and p [30, 5]: that is not 2 sequences with 3 "
         "heads");
    ends(bad_mix, 3,
         "op_heads_mix: o is [10, 6], v [10, 9] and p [30, 5]: that is not 2 sequences with 3 "
         "heads");
    ends(bad_mix_t, 3,
         "op_heads_mix_t: v is [10, 6], o [10, 6] and p [20, 5]: that is not 2 sequences with 3 "
         "heads");
    ends(bad_softmax, 3, "op_causal_softmax: p is [7, 5]: that is not 1 sequences with 2 heads");
    ends(bad_softmax_backward, 3,
         "op_causal_softmax_backward: dp is [5, 5], but p [10, 5] needs [10, 5]");
    ends(bad_lse, 3, "op_causal_softmax_lse: lse is [10, 2], but p [10, 5] needs [5, 2]");
    ends(bad_merge, 3, "op_merge_heads: lse_more is [4, 1], but lse [4, 2] needs [4, 2]");
    ends(bad_dot, 3, "op_heads_dot: dot is [3, 2], but o [4, 8] needs [4, 2]");
    ends(bad_triangle, 3,
         "op_heads_scores_triangle: p has 5 queries and 4 keys a sequence: a triangle has as many");
    ends(bad_embed, 3, "op_embed_tokens: y is [4, 8], but wte [9, 7] needs [4, 7]");
    ends(bad_embed_grad, 3, "op_embed_tokens_grad: dy is [4, 8], but dwte [9, 7] needs [4, 7]");
    ends(bad_positions, 3, "op_add_positions: x is [10, 3], but wpe [4, 4] needs [10, 4]");
    ends(bad_positions_grad, 3,
         "op_add_positions_grad: dy is [11, 4], but dwpe [5, 3] needs [11, 3]");
    ends(bad_row_max, 3, "op_row_max: max is [4, 2], but logits [4, 8] needs [4, 1]");
    ends(bad_pick, 3, "op_pick_target: picked is [3, 1], but logits [4, 8] needs [4, 1]");
    ends(bad_exp_sum, 3, "op_exp_sum: max is [1, 4], but logits [4, 8] needs [4, 1]");
    ends(bad_loss, 3, "op_token_loss: max is [3, 1], but picked [4, 1] needs [4, 1]");
    ends(bad_cross_entropy, 3,
         "op_cross_entropy_backward: dloss is [1, 1], but logits [4, 8] needs [4, 1]");
    ends(bad_sgd, 3, "op_sgd: g is [4, 7], but w [4, 8] needs [4, 8]");
    ends(bad_adamw, 3, "op_adamw: v is [3, 8], but w [4, 8] needs [4, 8]");
}

// An op in a window must give the same results, so these tests run with and without windows.
static void test_windows_and_sizes(void) {
    test_products(7, 5, 13);
    test_elements(7, 13);
    test_bias(7, 13);
    test_bias(5, 133); // more than two strips of 64 columns (for_each.h)
    test_contributions(7, 13);
    test_contributions(1, 5);
    test_gelu(7, 13);
    test_gelu(3, 65);
    test_dropout(7, 13, 0.3);
    test_dropout(7, 13, 0);
    test_dropout_tokens();
    test_dropout_heads(5, 5, 2, 3, 0.3, false);
    test_dropout_heads(5, 5, 2, 3, 0, false);
    test_dropout_heads(4, 6, 2, 3, 0.3, true);
    test_layer_norm(7, 13);
    test_layer_norm(4, 131);
    test_layer_norm(2, 1030);
    test_rms_norm(7, 13);
    test_rms_norm(4, 131);
    test_rms_norm(2, 1030);
    test_swiglu(7, 13);
    test_swiglu(3, 65);
    test_rotate(5, 2, 3, 4, false);
    test_rotate(5, 2, 3, 4, true);
    test_rotate(3, 1, 2, 70, true);
    test_groups(5, 2, 3, 4);
    test_groups(3, 1, 4, 33);
    test_absent();
    test_layer_norm_parts(7, 13);
    test_layer_norm_parts(3, 131);
    test_heads(5, 5, 2, 3, 7);
    test_heads(3, 8, 2, 3, 7);
    test_heads(8, 3, 2, 3, 7);
    test_softmax(5, 5, 3, 1, false);
    test_softmax(41, 41, 1, 1, false);
    test_softmax(5, 9, 2, 2, true); // the first query comes before all keys
    test_softmax(40, 17, 1, 2, true);
    test_blocks(10, 2, 3, 5);
    test_blocks(41, 1, 2, 4);
    test_chunks(2, 3, 5, false);
    test_chunks(2, 3, 5, true);
    test_embedding(13, 0, 9);
    test_embedding(5, 4, 9);
    test_embedding(5, 4, 70);
    test_positions(5, 2, 5, 9);
    test_positions(5, 3, 7, 33);
    test_positions(3, 2, 8, 9); // with gaps
    test_no_such_position();
    test_cross_entropy(13, (size_t[]){ 0, 13, 13, 13, 13 }, "cross entropy");
    test_cross_entropy(13, (size_t[]){ 0, 5, 5, 11, 13 }, "cross entropy in slices");
    test_cross_entropy(1030, (size_t[]){ 0, 5, 600, 1000, 1030 }, "cross entropy of many words");
    test_optimizers(7, 13);
}
static void test_empty(void) {
    test_products(7, 0, 13); // an empty sum is 0, also where there was NaN
    test_products(0, 5, 13);
    test_products(7, 5, 0);
    test_elements(0, 13);
    test_elements(3, 0);
    test_bias(0, 13);
    test_bias(4, 0);
    test_gelu(0, 5);
    test_layer_norm(0, 13);
    test_rms_norm(0, 13);
    test_swiglu(0, 5);
    test_rotate(0, 1, 2, 4, false);
    test_groups(3, 0, 2, 4);     // a rank without a head
    test_layer_norm_parts(2, 2); // a rank without a column
    test_heads(5, 5, 2, 0, 7);   // a rank without a head
    test_heads(5, 5, 0, 3, 7);
    test_dropout_heads(5, 5, 2, 0, 0.3, false);
    test_positions(5, 0, 7, 9);
    test_embedding(0, 4, 9);
    test_optimizers(1, 0);
}

int main(void) {
    memory_rank_begin();
    // Runs first, because a process that has used a GPU cannot fork a process that uses the GPU.
    test_shapes();
    device_init();
    test_exp();
    test_row_sum();
    test_dropout_rate();
    for (int i = 0; i < 2; i++) {
        framed = i == 1;
        test_windows_and_sizes();
        test_empty();
    }
    printf("# worst: %.1e of a value, %.1e of a derivative\n", worst_rounding, worst_derivative);
    memory_rank_end();
    return tap_end();
}
