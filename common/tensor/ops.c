// ops.c: implements the ops of ops.h, once for every device. The BLAS computes the GEMMs. Every
// other op has code for one item (an element, part of a row, a row, a strip of columns). FOR_EACH
// runs this code for every item, in a loop in C or in a kernel in CUDA C++. So the code uses the
// common subset of C and C++.
//
// Sums down a column are added in row order. Sums along a row have an order that depends on the
// row's length alone. No op allocates memory, but WIDENED uses memory_scratch(). No item writes an
// element that another item reads, so there are no atomics, and no result depends on timing.
//
// In C the loops read and write reals, so an op with 16-bit operands goes through WIDENED first. A
// kernel takes 16 bits as they are (rows.h), unless the kernel reads an output again before the
// output is complete. The device multiplies 16-bit factors itself, if device_multiplies() returns
// true.
#include "common/tensor/ops.h"
#include "common/base/meter.h"
#include "common/device/device.h"
#include "common/device/for_each.h"
#include "common/tensor/random.h"
#include "common/tensor/real_math.h"
#include "common/tensor/rows.h"
#include "common/base/util.h"

// Converts a size for a BLAS, which counts in int. blas_ld() returns the distance between rows. A
// BLAS requires ld >= columns even for a matrix of one row, where ld has no meaning.
static int blas_int(size_t n) {
    if (n > 0x7fffffff) fault("a matrix dimension of %zu is more than this BLAS can count", n);
    return (int)n;
}
static int blas_ld(size_t ld, size_t columns) {
    if (ld < columns) return blas_int(columns);
    return blas_int(ld < 1 ? 1 : ld);
}

// Charges a product to the clock (meter.h), then lets messages progress. No other arithmetic than
// products takes time on the simulated clock.
static void charge(size_t m, size_t n, size_t k) {
    if (meter_product) meter_product(2.0 * (double)m * (double)n * (double)k);
    if (device_meanwhile) device_meanwhile(0);
}

// All single products go through this function; batches have gemm_batch(). All three tensors are in
// reals, or device_multiplies() returns true for their element types.
static void gemm(int a_transposed, int b_transposed, size_t m, size_t n, size_t k, Tensor a,
                 Tensor b, Tensor c) {
    charge(m, n, k);
    if (m == 0 || n == 0) return;
    if (k == 0) { // the sum is empty
        tensor_fill(c, 0);
        return;
    }
    const int lda = blas_ld(a.ld, a_transposed ? m : k), ldb = blas_ld(b.ld, b_transposed ? k : n),
              ldc = blas_ld(c.ld, n);
    if (a.element == REALS) {
        device_gemm(a_transposed, b_transposed, blas_int(m), blas_int(n), blas_int(k), a.data, lda,
                    b.data, ldb, c.data, ldc);
        return;
    }
    const BatchSteps none = { { 0, 0 } };
    const HalfProducts p = { a_transposed, b_transposed, blas_int(m), blas_int(n), blas_int(k),
                             a.element,    c.element,    a.half,      b.half,      c.data,
                             lda,          ldb,          ldc,         { 1, 1 },    none,
                             none,         none };
    device_multiply_halves(&p);
}

// Computes a batch of count[0] * count[1] products, with k > 0.
static void gemm_batch(int a_transposed, int b_transposed, size_t m, size_t n, size_t k,
                       const size_t count[2], Tensor a, BatchSteps a_steps, Tensor b,
                       BatchSteps b_steps, Tensor c, BatchSteps c_steps) {
    // The loop charges each product alone, because the clock rounds the time of each product.
    for (size_t i = 0; i < count[0] * count[1]; i++) charge(m, n, k);
    if (m == 0 || n == 0 || count[0] * count[1] == 0) return;
    if (k == 0) fault("%zu products of [%zu, 0] and [0, %zu]", count[0] * count[1], m, n);
    const int lda = blas_ld(a.ld, a_transposed ? m : k), ldb = blas_ld(b.ld, b_transposed ? k : n),
              ldc = blas_ld(c.ld, n);
    if (a.element == REALS) {
        device_gemm_batch(a_transposed, b_transposed, blas_int(m), blas_int(n), blas_int(k), count,
                          a.data, lda, a_steps, b.data, ldb, b_steps, c.data, ldc, c_steps);
        return;
    }
    const HalfProducts p = { a_transposed, b_transposed,
                             blas_int(m),  blas_int(n),
                             blas_int(k),  a.element,
                             c.element,    a.half,
                             b.half,       c.data,
                             lda,          ldb,
                             ldc,          { count[0], count[1] },
                             a_steps,      b_steps,
                             c_steps };
    device_multiply_halves(&p);
}

// ---- shapes ----

// Calls fault() unless t is [rows, cols], as the shape of `other` requires. `by` is the name of
// `other`.
static void need_shape(const char *op, const char *name, Tensor t, size_t rows, size_t cols,
                       const char *by, Tensor other) {
    if (t.rows != rows || t.cols != cols)
        fault("%s: %s is [%zu, %zu], but %s [%zu, %zu] needs [%zu, %zu]", op, name, t.rows, t.cols,
              by, other.rows, other.cols, rows, cols);
}
static void need_same(const char *op, const char *name, Tensor t, const char *by, Tensor other) {
    need_shape(op, name, t, other.rows, other.cols, by, other);
}
// Calls fault() unless t is in reals and has the shape [rows, cols].
static void need_reals(const char *op, const char *name, Tensor t, size_t rows, size_t cols,
                       const char *by, Tensor other) {
    tensor_need_reals(op, name, t);
    need_shape(op, name, t, rows, cols, by, other);
}

// Returns t as one long row if `contiguous` is true, because element-wise ops ignore the shape.
static Tensor as_one_row(Tensor t, bool contiguous) {
    return contiguous ? tensor_reshape(t, 1, tensor_count(t)) : t;
}

// ---- 16 bits ----

// Replaces 16-bit operands by copies in reals, and returns whether any operand has 16 bits. Outputs
// are widened, too, because an op may change an operand in place, or only a part of it.
static bool widen(Tensor *const operand[], Tensor stored[], size_t n) {
    size_t count = 0;
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        stored[i] = *operand[i];
        if (!element_is_half(stored[i].element)) continue;
        any = true;
        count += tensor_count(stored[i]);
    }
    if (!any) return false;
    real *next = (real *)memory_scratch(count * sizeof *next);
    for (size_t i = 0; i < n; i++) {
        if (!element_is_half(stored[i].element)) continue;
        operand[i]->data = next;
        operand[i]->ld = operand[i]->cols;
        operand[i]->element = REALS;
        tensor_copy(*operand[i], stored[i]);
        next += tensor_count(stored[i]);
    }
    return true;
}
static void round_outputs(Tensor *const operand[], const Tensor stored[], size_t outputs) {
    for (size_t i = 0; i < outputs; i++)
        if (stored[i].element != REALS) tensor_copy(stored[i], *operand[i]);
}

// WIDENED(outputs, call, &y, &x, ...) is the first statement of an op that takes 16-bit operands.
// The outputs come first. If an operand has 16 bits, the op calls itself with operands in reals,
// rounds every output once, and returns. An operand that is not in the list must be in reals.
#define WIDENED(outputs, call, ...) \
    do { \
        Tensor *const operand_[] = { __VA_ARGS__ }; \
        Tensor stored_[sizeof operand_ / sizeof *operand_]; \
        if (widen(operand_, stored_, sizeof operand_ / sizeof *operand_)) { \
            call; \
            round_outputs(operand_, stored_, outputs); \
            return; \
        } \
    } while (0)
// WIDENED_IN_C is WIDENED in C. In CUDA C++ WIDENED_IN_C does nothing, because the op's kernels
// take 16 bits (rows.h).
#define WIDENED_IN_C(...) \
    do { \
        if (!KERNELS_TAKE_HALVES) WIDENED(__VA_ARGS__); \
    } while (0)

// ---- products ----

static void matmul(const char *op, Tensor y, Tensor x, Tensor w, int x_transposed,
                   int w_transposed) {
    if (!device_multiplies(x.element, w.element, y.element))
        WIDENED(1, matmul(op, y, x, w, x_transposed, w_transposed), &y, &x, &w);
    const size_t m = x_transposed ? x.cols : x.rows, k = x_transposed ? x.rows : x.cols;
    const size_t n = w_transposed ? w.rows : w.cols, k_of_w = w_transposed ? w.cols : w.rows;
    if (y.rows != m || y.cols != n || k != k_of_w)
        fault("%s: y is [%zu, %zu], but x [%zu, %zu]%s times w [%zu, %zu]%s does not fit", op,
              y.rows, y.cols, x.rows, x.cols, x_transposed ? "^T" : "", w.rows, w.cols,
              w_transposed ? "^T" : "");
    gemm(x_transposed, w_transposed, m, n, k, x, w, y);
}

void op_matmul(Tensor y, Tensor x, Tensor w) { matmul("op_matmul", y, x, w, 0, 0); }
void op_matmul_nt(Tensor y, Tensor x, Tensor w) { matmul("op_matmul_nt", y, x, w, 0, 1); }
void op_matmul_tn(Tensor y, Tensor x, Tensor w) { matmul("op_matmul_tn", y, x, w, 1, 0); }

// ---- element by element ----

// Checks that y, a and b have the same shape. If all are contiguous, makes each of them one long
// row.
static void need_pair(const char *op, Tensor *y, Tensor *a, Tensor *b) {
    need_same(op, "y", *y, "a", *a);
    need_same(op, "b", *b, "a", *a);
    const bool flat = tensor_contiguous(*y) && tensor_contiguous(*a) && tensor_contiguous(*b);
    *y = as_one_row(*y, flat);
    *a = as_one_row(*a, flat);
    *b = as_one_row(*b, flat);
}

ITEM void add_part(Row y, ConstRow a, ConstRow b, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) y[c] = a[c] + b[c];
}
void op_add(Tensor y, Tensor a, Tensor b) {
    WIDENED_IN_C(1, op_add(y, a, b), &y, &a, &b);
    need_pair("op_add", &y, &a, &b);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { add_part(row_of(y, r), row_of(a, r), row_of(b, r), lo, hi); });
}

ITEM void max_part(Row y, ConstRow a, ConstRow b, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) y[c] = b[c] > a[c] || b[c] != b[c] ? b[c] : a[c];
}
void op_max(Tensor y, Tensor a, Tensor b) {
    WIDENED_IN_C(1, op_max(y, a, b), &y, &a, &b);
    need_pair("op_max", &y, &a, &b);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { max_part(row_of(y, r), row_of(a, r), row_of(b, r), lo, hi); });
}

ITEM real sum_of_parts(Tensor parts, size_t c) {
    real sum = row_of(parts, 0)[c];
    for (size_t r = 1; r < parts.rows; r++) sum += row_of(parts, r)[c];
    return sum;
}
ITEM real max_of_parts(Tensor parts, size_t c) {
    real max = row_of(parts, 0)[c];
    for (size_t r = 1; r < parts.rows; r++) {
        const real x = row_of(parts, r)[c];
        max = x > max || x != x ? x : max;
    }
    return max;
}
void op_combine(Tensor y, Tensor parts, bool max) {
    WIDENED_IN_C(1, op_combine(y, parts, max), &y, &parts);
    need_shape("op_combine", "y", y, 1, parts.cols, "parts", parts);
    if (parts.rows == 0) fault("op_combine: there are no parts");
    FOR_EACH(c, parts.cols,
             { row_of(y, 0)[c] = max ? max_of_parts(parts, c) : sum_of_parts(parts, c); });
}

ITEM void scale_part(Row y, ConstRow x, real s, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) y[c] = s * x[c];
}
void op_scale(Tensor y, Tensor x, real s) {
    WIDENED_IN_C(1, op_scale(y, x, s), &y, &x);
    need_same("op_scale", "y", y, "x", x);
    const bool flat = tensor_contiguous(y) && tensor_contiguous(x);
    y = as_one_row(y, flat);
    x = as_one_row(x, flat);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { scale_part(row_of(y, r), row_of(x, r), s, lo, hi); });
}

ITEM void multiply_part(Row y, ConstRow a, ConstRow b, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) y[c] = a[c] * b[c];
}
void op_multiply(Tensor y, Tensor a, Tensor b) {
    WIDENED_IN_C(1, op_multiply(y, a, b), &y, &a, &b);
    need_pair("op_multiply", &y, &a, &b);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { multiply_part(row_of(y, r), row_of(a, r), row_of(b, r), lo, hi); });
}

static void copy_unless_same(Tensor y, Tensor x) {
    if (y.data != x.data) tensor_copy(y, x);
}
void op_add_bias(Tensor y, Tensor x, Tensor bias) {
    WIDENED_IN_C(1, op_add_bias(y, x, bias), &y, &x, &bias);
    need_same("op_add_bias", "y", y, "x", x);
    if (bias.cols == 0) {
        copy_unless_same(y, x);
        return;
    }
    need_shape("op_add_bias", "bias", bias, 1, x.cols, "x", x);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { add_part(row_of(y, r), row_of(x, r), row_of(bias, 0), lo, hi); });
}

// Calls a strip function in two branches. Most strips are full, and their branch has the constant
// width STRIP. So the compiler turns the loops over a strip into a few vector instructions.
#define BY_STRIP(width, call) \
    do { \
        if ((width) == STRIP) { \
            const size_t width_ = STRIP; \
            call; \
        } else { \
            const size_t width_ = (width); \
            call; \
        } \
    } while (0)
ITEM size_t strip_width(size_t first, size_t cols) {
    return cols - first < STRIP ? cols - first : (size_t)STRIP;
}

ITEM void sum_rows_strip(Row sum, Tensor x, size_t first, size_t width) {
    real s[STRIP];
    for (size_t c = 0; c < width; c++) s[c] = 0;
    for (size_t r = 0; r < x.rows; r++) {
        const ConstRow row = row_of(x, r) + first;
        for (size_t c = 0; c < width; c++) s[c] += row[c];
    }
    for (size_t c = 0; c < width; c++) sum[first + c] = s[c];
}
void op_sum_rows(Tensor sum, Tensor x) {
    WIDENED_IN_C(1, op_sum_rows(sum, x), &sum, &x);
    need_shape("op_sum_rows", "sum", sum, 1, x.cols, "x", x);
    FOR_EACH(i, ceil_div(x.cols, STRIP), {
        const size_t first = i * STRIP;
        BY_STRIP(strip_width(first, x.cols), sum_rows_strip(row_of(sum, 0), x, first, width_));
    });
}

// Returns 2u for GELU, which is x (1 + tanh u) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3)
// (Hendrycks and Gimpel 2016). GELU equals x sigmoid(2u). This form needs one exp, and for negative
// x no digits are lost by cancellation.
ITEM real gelu_2u(real x) { return (real)1.5957691216057308 * (x + (real)0.044715 * x * x * x); }
ITEM real gelu_2u_derivative(real x) {
    return (real)1.5957691216057308 * (1 + (real)(3 * 0.044715) * x * x);
}

ITEM void gelu_part(Row y, ConstRow x, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) y[c] = x[c] * real_sigmoid(gelu_2u(x[c]));
}
void op_gelu(Tensor y, Tensor x) {
    WIDENED_IN_C(1, op_gelu(y, x), &y, &x);
    need_same("op_gelu", "y", y, "x", x);
    const bool flat = tensor_contiguous(y) && tensor_contiguous(x);
    y = as_one_row(y, flat);
    x = as_one_row(x, flat);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols, { gelu_part(row_of(y, r), row_of(x, r), lo, hi); });
}

ITEM void gelu_backward_part(Row dx, ConstRow x, ConstRow dy, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) {
        const real s = real_sigmoid(gelu_2u(x[c]));
        dx[c] = dy[c] * (s + x[c] * s * (1 - s) * gelu_2u_derivative(x[c]));
    }
}
void op_gelu_backward(Tensor dx, Tensor x, Tensor dy) {
    WIDENED_IN_C(1, op_gelu_backward(dx, x, dy), &dx, &x, &dy);
    need_same("op_gelu_backward", "dx", dx, "x", x);
    need_same("op_gelu_backward", "dy", dy, "x", x);
    const bool flat = tensor_contiguous(dx) && tensor_contiguous(x) && tensor_contiguous(dy);
    dx = as_one_row(dx, flat);
    x = as_one_row(x, flat);
    dy = as_one_row(dy, flat);
    FOR_EACH_PART(r, lo, hi, x.rows, x.cols,
                  { gelu_backward_part(row_of(dx, r), row_of(x, r), row_of(dy, r), lo, hi); });
}

// ---- SwiGLU ----

// silu(x) = x sigmoid(x) (Hendrycks and Gimpel 2016). Its derivative is s (1 + x (1 - s)), where s
// = sigmoid(x).
ITEM void swiglu_part(Row y, ConstRow gate, ConstRow up, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) y[c] = gate[c] * real_sigmoid(gate[c]) * up[c];
}
static void need_half(const char *op, const char *name, Tensor half, Tensor x) {
    need_shape(op, name, half, x.rows, x.cols / 2, "gate | up", x);
}
void op_swiglu(Tensor y, Tensor x) {
    WIDENED_IN_C(1, op_swiglu(y, x), &y, &x);
    need_half("op_swiglu", "y", y, x);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { swiglu_part(row_of(y, r), row_of(x, r), row_of(x, r) + y.cols, lo, hi); });
}

ITEM void swiglu_backward_part(Row dgate, Row dup, ConstRow gate, ConstRow up, ConstRow dy,
                               size_t lo, size_t hi) {
    // EXERCISE 00.unsplit-b (3 points): backward of SwiGLU. Forward was y = silu(gate) up for each
    // column. Set dgate and dup of columns lo to hi - 1. dgate may be dy, so read dy[c] first.
    // real_sigmoid(x) is 1 / (1 + exp(-x)).
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) {
        const real s = real_sigmoid(gate[c]), d = dy[c];
        dgate[c] = d * up[c] * s * (1 + gate[c] * (1 - s));
        dup[c] = d * gate[c] * s;
    }
    // END
}
void op_swiglu_backward(Tensor dx, Tensor x, Tensor dy) {
    WIDENED_IN_C(1, op_swiglu_backward(dx, x, dy), &dx, &x, &dy);
    need_same("op_swiglu_backward", "dx", dx, "x", x);
    need_half("op_swiglu_backward", "dy", dy, x);
    FOR_EACH_PART(r, lo, hi, dy.rows, dy.cols, {
        swiglu_backward_part(row_of(dx, r), row_of(dx, r) + dy.cols, row_of(x, r),
                             row_of(x, r) + dy.cols, row_of(dy, r), lo, hi);
    });
}

void op_activation(Tensor y, Tensor x) { (2 * y.cols == x.cols ? op_swiglu : op_gelu)(y, x); }
void op_activation_backward(Tensor dx, Tensor x, Tensor dy) {
    (2 * dy.cols == x.cols ? op_swiglu_backward : op_gelu_backward)(dx, x, dy);
}

// ---- dropout ----

// Keeps an element if the upper 53 bits of its key, read as an integer, are at least `limit` = p
// 2^53. So an element is kept with probability 1 - p.
ITEM void dropout_part(Row y, ConstRow x, uint64_t row_key, uint64_t first, uint64_t limit,
                       real scale, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++)
        y[c] = random_key(row_key, first + c) >> 11 >= limit ? x[c] * scale : 0;
}
static uint64_t dropout_limit(const char *op, double p) {
    if (!(p >= 0 && p < 1))
        fault("%s: the probability is %g; it must be at least 0 and less than 1", op, p);
    return (uint64_t)(p * 0x1p53);
}

ITEM uint64_t dropout_row(Dropout d, size_t i) {
    if (d.T == 0) return i;
    return (d.first_sequence + i / d.T) * d.length + (d.position ? (size_t)d.position[i] : i % d.T);
}
void op_dropout(Tensor y, Tensor x, Dropout d) {
    WIDENED_IN_C(1, op_dropout(y, x, d), &y, &x);
    need_same("op_dropout", "y", y, "x", x);
    const uint64_t limit = dropout_limit("op_dropout", d.p);
    const real scale = (real)(1 / (1 - d.p));
    if (d.p == 0) {
        copy_unless_same(y, x);
        return;
    }
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols, {
        const uint64_t row_key = random_key(d.key, dropout_row(d, d.row0 + r));
        dropout_part(row_of(y, r), row_of(x, r), row_key, d.col0, limit, scale, lo, hi);
    });
}

// ---- layer norm ----

ITEM void layer_norm_row(Row y, real *stats, ConstRow x, ConstRow gain, ConstRow bias, size_t n) {
    double sum, squares;
    ROW_SUM(real, sum, c, n, x[c]);
    const real mean = (real)(sum / (double)n);
    ROW_SUM(real, squares, c, n, (x[c] - mean) * (x[c] - mean));
    const real scale = (real)(1 / sqrt(squares / (double)n + 1e-5));
    INDEPENDENT
    for (size_t c = 0; c < n; c++) y[c] = (x[c] - mean) * scale * gain[c] + bias[c];
    stats[0] = mean;
    stats[1] = scale;
}
void op_layer_norm(Tensor y, Tensor stats, Tensor x, Tensor gain, Tensor bias) {
    WIDENED_IN_C(1, op_layer_norm(y, stats, x, gain, bias), &y, &x, &gain, &bias);
    need_same("op_layer_norm", "y", y, "x", x);
    need_reals("op_layer_norm", "stats", stats, x.rows, 2, "x", x);
    need_shape("op_layer_norm", "gain", gain, 1, x.cols, "x", x);
    need_shape("op_layer_norm", "bias", bias, 1, x.cols, "x", x);
    FOR_EACH(r, x.rows, {
        layer_norm_row(row_of(y, r), row_of_reals(stats, r), row_of(x, r), row_of(gain, 0),
                       row_of(bias, 0), x.cols);
    });
}

// Computes dx = scale (g - mean(g) - h mean(g h)) with h = (x - mean) scale and g = dy gain.
ITEM void layer_norm_backward_row(Row dx, ConstRow x, const real *stats, ConstRow gain, ConstRow dy,
                                  size_t n) {
    const real mean = stats[0], scale = stats[1];
    double sum_g, sum_gh;
    ROW_SUM(real, sum_g, c, n, dy[c] * gain[c]);
    ROW_SUM(real, sum_gh, c, n, dy[c] * gain[c] * ((x[c] - mean) * scale));
    const real mean_g = (real)(sum_g / (double)n), mean_gh = (real)(sum_gh / (double)n);
    INDEPENDENT
    for (size_t c = 0; c < n; c++)
        dx[c] = scale * (dy[c] * gain[c] - mean_g - (x[c] - mean) * scale * mean_gh);
}
void op_layer_norm_backward(Tensor dx, Tensor x, Tensor stats, Tensor gain, Tensor dy) {
    WIDENED_IN_C(1, op_layer_norm_backward(dx, x, stats, gain, dy), &dx, &x, &gain, &dy);
    need_same("op_layer_norm_backward", "dx", dx, "x", x);
    need_same("op_layer_norm_backward", "dy", dy, "x", x);
    need_reals("op_layer_norm_backward", "stats", stats, x.rows, 2, "x", x);
    need_shape("op_layer_norm_backward", "gain", gain, 1, x.cols, "x", x);
    FOR_EACH(r, x.rows, {
        layer_norm_backward_row(row_of(dx, r), row_of(x, r), row_of_reals(stats, r),
                                row_of(gain, 0), row_of(dy, r), x.cols);
    });
}

ITEM void layer_norm_grads_strip(Row dgain, Row dbias, Tensor x, Tensor stats, Tensor dy,
                                 size_t first, size_t width) {
    real g[STRIP], b[STRIP];
    for (size_t c = 0; c < width; c++) g[c] = b[c] = 0;
    for (size_t r = 0; r < x.rows; r++) {
        const ConstRow in = row_of(x, r) + first, d = row_of(dy, r) + first;
        const real mean = row_of_reals(stats, r)[0], scale = row_of_reals(stats, r)[1];
        for (size_t c = 0; c < width; c++) g[c] += d[c] * ((in[c] - mean) * scale);
        for (size_t c = 0; c < width; c++) b[c] += d[c];
    }
    for (size_t c = 0; c < width; c++) dgain[first + c] = g[c];
    for (size_t c = 0; c < width; c++) dbias[first + c] = b[c];
}
void op_layer_norm_grads(Tensor dgain, Tensor dbias, Tensor x, Tensor stats, Tensor dy) {
    WIDENED_IN_C(2, op_layer_norm_grads(dgain, dbias, x, stats, dy), &dgain, &dbias, &x, &dy);
    need_same("op_layer_norm_grads", "dy", dy, "x", x);
    need_reals("op_layer_norm_grads", "stats", stats, x.rows, 2, "x", x);
    need_shape("op_layer_norm_grads", "dgain", dgain, 1, x.cols, "x", x);
    need_shape("op_layer_norm_grads", "dbias", dbias, 1, x.cols, "x", x);
    FOR_EACH(i, ceil_div(x.cols, STRIP), {
        const size_t first = i * STRIP;
        BY_STRIP(strip_width(first, x.cols),
                 layer_norm_grads_strip(row_of(dgain, 0), row_of(dbias, 0), x, stats, dy, first,
                                        width_));
    });
}

// ---- layer norm of rows that are spread over ranks ----

ITEM void layer_norm_sums_row(real *sums, ConstRow x, size_t n) {
    double sum, squares;
    ROW_SUM(double, sum, c, n, x[c]);
    ROW_SUM(double, squares, c, n, (double)x[c] * (double)x[c]);
    sums[0] = (real)sum;
    sums[1] = (real)squares;
}
void op_layer_norm_sums(Tensor sums, Tensor x) {
    WIDENED_IN_C(0, op_layer_norm_sums(sums, x), &x);
    need_reals("op_layer_norm_sums", "sums", sums, x.rows, 2, "x", x);
    FOR_EACH(r, x.rows, { layer_norm_sums_row(row_of_reals(sums, r), row_of(x, r), x.cols); });
}

ITEM void layer_norm_apply_row(Row y, real *stats, const real *sums, ConstRow x, ConstRow gain,
                               ConstRow bias, size_t n, size_t whole) {
    const double first = (double)sums[0] / (double)whole,
                 variance = (double)sums[1] / (double)whole - first * first;
    const real mean = (real)first, scale = (real)(1 / sqrt((variance > 0 ? variance : 0) + 1e-5));
    INDEPENDENT
    for (size_t c = 0; c < n; c++) y[c] = (x[c] - mean) * scale * gain[c] + bias[c];
    stats[0] = mean;
    stats[1] = scale;
}
void op_layer_norm_apply(Tensor y, Tensor stats, Tensor sums, Tensor x, Tensor gain, Tensor bias,
                         size_t whole) {
    WIDENED_IN_C(1, op_layer_norm_apply(y, stats, sums, x, gain, bias, whole), &y, &x, &gain,
                 &bias);
    need_same("op_layer_norm_apply", "y", y, "x", x);
    need_reals("op_layer_norm_apply", "stats", stats, x.rows, 2, "x", x);
    need_reals("op_layer_norm_apply", "sums", sums, x.rows, 2, "x", x);
    need_shape("op_layer_norm_apply", "gain", gain, 1, x.cols, "x", x);
    need_shape("op_layer_norm_apply", "bias", bias, 1, x.cols, "x", x);
    FOR_EACH(r, x.rows, {
        layer_norm_apply_row(row_of(y, r), row_of_reals(stats, r), row_of_reals(sums, r),
                             row_of(x, r), row_of(gain, 0), row_of(bias, 0), x.cols, whole);
    });
}

ITEM void layer_norm_backward_sums_row(real *sums, ConstRow x, const real *stats, ConstRow gain,
                                       ConstRow dy, size_t n) {
    const real mean = stats[0], scale = stats[1];
    double sum_g, sum_gh;
    ROW_SUM(real, sum_g, c, n, dy[c] * gain[c]);
    ROW_SUM(real, sum_gh, c, n, dy[c] * gain[c] * ((x[c] - mean) * scale));
    sums[0] = (real)sum_g;
    sums[1] = (real)sum_gh;
}
void op_layer_norm_backward_sums(Tensor sums, Tensor x, Tensor stats, Tensor gain, Tensor dy) {
    WIDENED_IN_C(0, op_layer_norm_backward_sums(sums, x, stats, gain, dy), &x, &gain, &dy);
    need_reals("op_layer_norm_backward_sums", "sums", sums, x.rows, 2, "x", x);
    need_same("op_layer_norm_backward_sums", "dy", dy, "x", x);
    need_reals("op_layer_norm_backward_sums", "stats", stats, x.rows, 2, "x", x);
    need_shape("op_layer_norm_backward_sums", "gain", gain, 1, x.cols, "x", x);
    FOR_EACH(r, x.rows, {
        layer_norm_backward_sums_row(row_of_reals(sums, r), row_of(x, r), row_of_reals(stats, r),
                                     row_of(gain, 0), row_of(dy, r), x.cols);
    });
}

ITEM void layer_norm_backward_apply_row(Row dx, const real *sums, ConstRow x, const real *stats,
                                        ConstRow gain, ConstRow dy, size_t n, size_t whole) {
    const real mean = stats[0], scale = stats[1];
    const real mean_g = (real)((double)sums[0] / (double)whole),
               mean_gh = (real)((double)sums[1] / (double)whole);
    INDEPENDENT
    for (size_t c = 0; c < n; c++)
        dx[c] = scale * (dy[c] * gain[c] - mean_g - (x[c] - mean) * scale * mean_gh);
}
void op_layer_norm_backward_apply(Tensor dx, Tensor sums, Tensor x, Tensor stats, Tensor gain,
                                  Tensor dy, size_t whole) {
    WIDENED_IN_C(1, op_layer_norm_backward_apply(dx, sums, x, stats, gain, dy, whole), &dx, &x,
                 &gain, &dy);
    need_same("op_layer_norm_backward_apply", "dx", dx, "x", x);
    need_same("op_layer_norm_backward_apply", "dy", dy, "x", x);
    need_reals("op_layer_norm_backward_apply", "sums", sums, x.rows, 2, "x", x);
    need_reals("op_layer_norm_backward_apply", "stats", stats, x.rows, 2, "x", x);
    need_shape("op_layer_norm_backward_apply", "gain", gain, 1, x.cols, "x", x);
    FOR_EACH(r, x.rows, {
        layer_norm_backward_apply_row(row_of(dx, r), row_of_reals(sums, r), row_of(x, r),
                                      row_of_reals(stats, r), row_of(gain, 0), row_of(dy, r),
                                      x.cols, whole);
    });
}

// ---- RMS norm ----

ITEM void rms_norm_row(Row y, real *stats, ConstRow x, ConstRow gain, double epsilon, size_t n) {
    double squares;
    ROW_SUM(real, squares, c, n, x[c] * x[c]);
    const real scale = (real)(1 / sqrt(squares / (double)n + epsilon));
    INDEPENDENT
    for (size_t c = 0; c < n; c++) y[c] = x[c] * scale * gain[c];
    stats[0] = scale;
}
void op_rms_norm(Tensor y, Tensor stats, Tensor x, Tensor gain, double epsilon) {
    WIDENED_IN_C(1, op_rms_norm(y, stats, x, gain, epsilon), &y, &x, &gain);
    need_same("op_rms_norm", "y", y, "x", x);
    need_reals("op_rms_norm", "stats", stats, x.rows, 1, "x", x);
    need_shape("op_rms_norm", "gain", gain, 1, x.cols, "x", x);
    FOR_EACH(r, x.rows, {
        rms_norm_row(row_of(y, r), row_of_reals(stats, r), row_of(x, r), row_of(gain, 0), epsilon,
                     x.cols);
    });
}

ITEM void rms_norm_backward_row(Row dx, ConstRow x, real scale, ConstRow gain, ConstRow dy,
                                size_t n) {
    // EXERCISE 00.unsplit-a (3 points): backward of an RMS norm, for one row of n elements. Forward
    // was y = x scale gain; scale is 1 / the root of the mean square of x, so it depends on x, too.
    // Set dx. dx may be dy.
    double sum_gh;
    // With h = x scale and g = dy gain: dx = scale (g - h mean(g h)).
    ROW_SUM(real, sum_gh, c, n, dy[c] * gain[c] * (x[c] * scale));
    const real mean_gh = (real)(sum_gh / (double)n);
    INDEPENDENT
    for (size_t c = 0; c < n; c++) dx[c] = scale * (dy[c] * gain[c] - x[c] * scale * mean_gh);
    // END
}
void op_rms_norm_backward(Tensor dx, Tensor x, Tensor stats, Tensor gain, Tensor dy) {
    WIDENED_IN_C(1, op_rms_norm_backward(dx, x, stats, gain, dy), &dx, &x, &gain, &dy);
    need_same("op_rms_norm_backward", "dx", dx, "x", x);
    need_same("op_rms_norm_backward", "dy", dy, "x", x);
    need_reals("op_rms_norm_backward", "stats", stats, x.rows, 1, "x", x);
    need_shape("op_rms_norm_backward", "gain", gain, 1, x.cols, "x", x);
    FOR_EACH(r, x.rows, {
        rms_norm_backward_row(row_of(dx, r), row_of(x, r), *row_of_reals(stats, r), row_of(gain, 0),
                              row_of(dy, r), x.cols);
    });
}

ITEM void rms_norm_grads_strip(Row dgain, Tensor x, Tensor stats, Tensor dy, size_t first,
                               size_t width) {
    real g[STRIP];
    for (size_t c = 0; c < width; c++) g[c] = 0;
    for (size_t r = 0; r < x.rows; r++) {
        const ConstRow in = row_of(x, r) + first, d = row_of(dy, r) + first;
        const real scale = *row_of_reals(stats, r);
        for (size_t c = 0; c < width; c++) g[c] += d[c] * (in[c] * scale);
    }
    for (size_t c = 0; c < width; c++) dgain[first + c] = g[c];
}
void op_rms_norm_grads(Tensor dgain, Tensor x, Tensor stats, Tensor dy) {
    WIDENED_IN_C(1, op_rms_norm_grads(dgain, x, stats, dy), &dgain, &x, &dy);
    need_same("op_rms_norm_grads", "dy", dy, "x", x);
    need_reals("op_rms_norm_grads", "stats", stats, x.rows, 1, "x", x);
    need_shape("op_rms_norm_grads", "dgain", dgain, 1, x.cols, "x", x);
    FOR_EACH(i, ceil_div(x.cols, STRIP), {
        const size_t first = i * STRIP;
        BY_STRIP(strip_width(first, x.cols),
                 rms_norm_grads_strip(row_of(dgain, 0), x, stats, dy, first, width_));
    });
}

// ---- rotary positions ----

// Rotates pair i of every head in a row. All heads share one sine and one cosine. The angle is a
// double, because a float has too few digits for late positions.
ITEM void rotate_item(Row x, size_t i, size_t heads, size_t D, double position, double theta,
                      int direction) {
    const double angle = position * pow(theta, -2 * (double)i / (double)D);
    const real c = (real)cos(angle), s = (real)(direction * sin(angle));
    for (size_t h = 0; h < heads; h++) {
        const size_t first = h * D + i, second = first + D / 2;
        const real a = x[first], b = x[second];
        x[first] = a * c - b * s;
        x[second] = b * c + a * s;
    }
}
void op_rotate(Tensor x, size_t D, const int *position, size_t T, double theta, int direction) {
    WIDENED_IN_C(1, op_rotate(x, D, position, T, theta, direction), &x);
    if (D == 0 || D % 2 != 0 || x.cols % D != 0)
        fault("op_rotate: x is [%zu, %zu], but heads of %zu columns: it turns pairs of columns of "
              "whole heads",
              x.rows, x.cols, D);
    const size_t pairs = D / 2;
    FOR_EACH(j, x.rows * pairs, {
        const size_t r = j / pairs;
        rotate_item(row_of(x, r), j % pairs, x.cols / D, D,
                    position ? (double)position[r] : (double)(r % T), theta, direction);
    });
}

// ---- grouped heads ----

static size_t need_groups(const char *op, Tensor wide, Tensor narrow, size_t D) {
    const size_t ratio = narrow.cols ? wide.cols / narrow.cols : 1;
    if (D == 0 || narrow.cols % D != 0 || wide.cols != ratio * narrow.cols)
        fault("%s: [%zu, %zu] and [%zu, %zu] are not groups of heads with %zu columns", op,
              wide.rows, wide.cols, narrow.rows, narrow.cols, D);
    need_shape(op, "the wide tensor", wide, narrow.rows, wide.cols, "the narrow one", narrow);
    return ratio;
}
void op_repeat_heads(Tensor y, Tensor x, size_t D) {
    WIDENED_IN_C(1, op_repeat_heads(y, x, D), &y, &x);
    const size_t ratio = need_groups("op_repeat_heads", y, x, D);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols, {
        for (size_t c = lo; c < hi; c++)
            row_of(y, r)[c] = row_of(x, r)[c / (ratio * D) * D + c % D];
    });
}
ITEM void fold_heads_part(Row y, ConstRow x, size_t ratio, size_t D, size_t lo, size_t hi) {
    // EXERCISE 00.unsplit-d (3 points): the gradient of a key head, in a row. x has heads of D
    // columns, one per head of the query. y has one head per group of `ratio` neighbouring heads.
    // Set columns lo to hi - 1 of y to the sums over their groups.
    for (size_t c = lo; c < hi; c++) {
        const ConstRow first = x + (c / D * ratio * D + c % D);
        real sum = first[0];
        for (size_t j = 1; j < ratio; j++) sum += first[j * D];
        y[c] = sum;
    }
    // END
}
void op_fold_heads(Tensor y, Tensor x, size_t D) {
    WIDENED_IN_C(1, op_fold_heads(y, x, D), &y, &x);
    const size_t ratio = need_groups("op_fold_heads", x, y, D);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { fold_heads_part(row_of(y, r), row_of(x, r), ratio, D, lo, hi); });
}

// ---- attention ----

// Checks the shapes of queries [B Tq, heads D] and keys [B Tk, heads D] against the shape of p.
// Returns D.
static size_t need_heads(const char *op, const char *q, Tensor queries, const char *k, Tensor keys,
                         Tensor p, size_t B, size_t heads) {
    if (p.rows != heads * queries.rows || keys.rows != B * p.cols ||
        (B ? queries.rows % B : queries.rows) != 0 || queries.cols != keys.cols ||
        (heads ? keys.cols % heads : keys.cols) != 0)
        fault("%s: %s is [%zu, %zu], %s [%zu, %zu] and p [%zu, %zu]: that is not %zu sequences "
              "with %zu heads",
              op, q, queries.rows, queries.cols, k, keys.rows, keys.cols, p.rows, p.cols, B, heads);
    return heads ? keys.cols / heads : 0;
}
// Returns the distances between the matrices of a batch with one product per sequence and head.
// Sequences are T rows apart and heads are D columns apart. score_steps() does the same for the
// scores p, where heads are Tq rows apart.
static BatchSteps head_steps(Tensor x, size_t T, size_t D) {
    BatchSteps s = { { T * x.ld, D } };
    return s;
}
static BatchSteps score_steps(Tensor p, size_t Tq, size_t heads) {
    BatchSteps s = { { heads * Tq * p.ld, Tq * p.ld } };
    return s;
}
static size_t per_sequence(Tensor x, size_t B) { return B ? x.rows / B : 0; }

void op_heads_scores(Tensor p, Tensor q, Tensor k, size_t B, size_t heads) {
    if (!device_multiplies(q.element, k.element, p.element))
        WIDENED(1, op_heads_scores(p, q, k, B, heads), &p, &q, &k);
    const size_t D = need_heads("op_heads_scores", "q", q, "k", k, p, B, heads),
                 count[2] = { B, heads };
    const size_t Tq = per_sequence(q, B), Tk = p.cols;
    gemm_batch(0, 1, Tq, Tk, D, count, q, head_steps(q, Tq, D), k, head_steps(k, Tk, D), p,
               score_steps(p, Tq, heads));
}
void op_heads_mix(Tensor o, Tensor p, Tensor v, size_t B, size_t heads) {
    if (!device_multiplies(p.element, v.element, o.element))
        WIDENED(1, op_heads_mix(o, p, v, B, heads), &o, &p, &v);
    const size_t D = need_heads("op_heads_mix", "o", o, "v", v, p, B, heads),
                 count[2] = { B, heads };
    const size_t Tq = per_sequence(o, B), Tk = p.cols;
    gemm_batch(0, 0, Tq, D, Tk, count, p, score_steps(p, Tq, heads), v, head_steps(v, Tk, D), o,
               head_steps(o, Tq, D));
}
void op_heads_mix_t(Tensor o, Tensor p, Tensor v, size_t B, size_t heads) {
    if (!device_multiplies(p.element, v.element, o.element))
        WIDENED(1, op_heads_mix_t(o, p, v, B, heads), &o, &p, &v);
    const size_t D = need_heads("op_heads_mix_t", "v", v, "o", o, p, B, heads),
                 count[2] = { B, heads };
    const size_t Tq = per_sequence(v, B), Tk = p.cols;
    gemm_batch(1, 0, Tk, D, Tq, count, p, score_steps(p, Tq, heads), v, head_steps(v, Tq, D), o,
               head_steps(o, Tk, D));
}

// Checks p and returns the number of queries per sequence in p.
static size_t need_place(const char *op, Tensor p, HeadsPlace at) {
    const size_t n = at.B * at.heads;
    if (n ? p.rows % n : p.rows)
        fault("%s: p is [%zu, %zu]: that is not %zu sequences with %zu heads", op, p.rows, p.cols,
              at.B, at.heads);
    return n ? p.rows / n : 0;
}
ITEM size_t query_position(HeadsPlace at, size_t Tq, size_t r) {
    return at.query ? (size_t)at.query[r / (at.heads * Tq) * Tq + r % Tq] : r % Tq;
}
// Returns how many of the Tk keys of row r's sequence do not come after the query of row r.
// Positions ascend, so these are the first keys.
ITEM size_t keys_seen(HeadsPlace at, size_t Tq, size_t Tk, size_t r) {
    const size_t query = query_position(at, Tq, r);
    if (!at.key) return query < Tk ? query + 1 : Tk;
    const int *key = at.key + r / (at.heads * Tq) * Tk;
    size_t lo = 0;
    for (size_t hi = Tk; lo < hi;) {
        const size_t middle = lo + (hi - lo) / 2;
        if ((size_t)key[middle] <= query) lo = middle + 1;
        else hi = middle;
    }
    return lo;
}

ITEM void dropout_keys_part(Row y, ConstRow x, uint64_t row_key, const int *key, uint64_t limit,
                            real scale, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++)
        y[c] = random_key(row_key, (uint64_t)key[c]) >> 11 >= limit ? x[c] * scale : 0;
}
void op_dropout_heads(Tensor y, Tensor x, uint64_t key, double prob, size_t first_sequence,
                      size_t head0, HeadsPlace at) {
    WIDENED_IN_C(1, op_dropout_heads(y, x, key, prob, first_sequence, head0, at), &y, &x);
    const uint64_t limit = dropout_limit("op_dropout_heads", prob);
    const real scale = (real)(1 / (1 - prob));
    need_same("op_dropout_heads", "y", y, "x", x);
    const size_t Tq = need_place("op_dropout_heads", x, at);
    if (prob == 0) {
        if (y.data != x.data) tensor_copy(y, x);
        return;
    }
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols, {
        const size_t head = r / Tq % at.heads, sequence = r / Tq / at.heads;
        const uint64_t of_sequence = random_key(key, first_sequence + sequence);
        const uint64_t of_query = random_key(of_sequence, query_position(at, Tq, r));
        const uint64_t row_key = random_key(of_query, head0 + head);
        if (at.key)
            dropout_keys_part(row_of(y, r), row_of(x, r), row_key, at.key + sequence * y.cols,
                              limit, scale, lo, hi);
        else dropout_part(row_of(y, r), row_of(x, r), row_key, 0, limit, scale, lo, hi);
    });
}

// Rounds `live`, the number of keys that a query attends to, up to whole vectors, but at most to n.
// causal_softmax_row() gives the added keys the score -inf, so their probability is 0.
ITEM size_t whole_lanes(size_t live, size_t n) {
    const size_t rounded = (live + LANES - 1) / LANES * LANES;
    return rounded < n ? rounded : n;
}
// `max` is the largest score, and `sum` is the sum of e^(score - max).
typedef struct {
    real max;
    double sum;
} SoftmaxRow;
ITEM SoftmaxRow causal_softmax_row(real *p, const real *s, real scale, size_t live, size_t n) {
    const size_t near = whole_lanes(live, n);
    double sum;
    if (live == 0) {
        for (size_t c = 0; c < n; c++) p[c] = 0;
        const SoftmaxRow none = { -(real)HUGE_VAL, 0 };
        return none;
    }
    INDEPENDENT
    for (size_t c = 0; c < live; c++) p[c] = scale * s[c];
    for (size_t c = live; c < near; c++) p[c] = -(real)HUGE_VAL;
    const real max = row_max(p, near);
    for (size_t c = 0; c < near; c++) p[c] = real_exp(p[c] - max);
    ROW_SUM(real, sum, c, near, p[c]);
    const real inverse = (real)(1 / sum);
    for (size_t c = 0; c < near; c++) p[c] *= inverse;
    for (size_t c = near; c < n; c++) p[c] = 0;
    const SoftmaxRow row = { max, sum };
    return row;
}
void op_causal_softmax(Tensor p, Tensor s, real scale, HeadsPlace at) {
    WIDENED(1, op_causal_softmax(p, s, scale, at), &p, &s);
    need_same("op_causal_softmax", "p", p, "s", s);
    const size_t Tq = need_place("op_causal_softmax", p, at);
    FOR_EACH(r, p.rows, {
        causal_softmax_row(row_of_reals(p, r), row_of_reals(s, r), scale,
                           keys_seen(at, Tq, p.cols, r), p.cols);
    });
}

// Computes ds = scale p (dp - sum(p dp)).
ITEM void causal_softmax_backward_row(real *ds, const real *p, const real *dp, real scale,
                                      size_t live, size_t n) {
    const size_t near = whole_lanes(live, n);
    double sum;
    INDEPENDENT
    for (size_t c = 0; c < live; c++) ds[c] = dp[c];
    for (size_t c = live; c < n; c++) ds[c] = 0;
    ROW_SUM(real, sum, c, near, p[c] * ds[c]);
    const real dot = (real)sum;
    INDEPENDENT
    for (size_t c = 0; c < live; c++) ds[c] = scale * p[c] * (ds[c] - dot);
}
void op_causal_softmax_backward(Tensor ds, Tensor p, Tensor dp, real scale, HeadsPlace at) {
    WIDENED(1, op_causal_softmax_backward(ds, p, dp, scale, at), &ds, &p, &dp);
    need_same("op_causal_softmax_backward", "ds", ds, "p", p);
    need_same("op_causal_softmax_backward", "dp", dp, "p", p);
    const size_t Tq = need_place("op_causal_softmax_backward", p, at);
    FOR_EACH(r, p.rows, {
        const size_t live = keys_seen(at, Tq, p.cols, r);
        causal_softmax_backward_row(row_of_reals(ds, r), row_of_reals(p, r), row_of_reals(dp, r),
                                    scale, live, p.cols);
    });
}

// ---- attention over some of the keys ----

ITEM size_t token_of(size_t heads, size_t Tq, size_t r) { return r / (heads * Tq) * Tq + r % Tq; }
ITEM size_t head_of(size_t heads, size_t Tq, size_t r) { return r / Tq % heads; }
static void need_tokens(const char *op, const char *name, Tensor t, Tensor p, HeadsPlace at) {
    need_reals(op, name, t, at.heads ? p.rows / at.heads : t.rows, at.heads, "p", p);
}

void op_causal_softmax_lse(Tensor p, Tensor lse, Tensor s, real scale, HeadsPlace at) {
    WIDENED(1, op_causal_softmax_lse(p, lse, s, scale, at), &p, &s);
    need_same("op_causal_softmax_lse", "p", p, "s", s);
    need_tokens("op_causal_softmax_lse", "lse", lse, p, at);
    const size_t Tq = need_place("op_causal_softmax_lse", p, at);
    FOR_EACH(r, p.rows, {
        const size_t live = keys_seen(at, Tq, p.cols, r);
        const SoftmaxRow row =
            causal_softmax_row(row_of_reals(p, r), row_of_reals(s, r), scale, live, p.cols);
        // Without a key lse is -inf.
        row_of_reals(lse, token_of(at.heads, Tq, r))[head_of(at.heads, Tq, r)] =
            (real)((double)row.max + log(row.sum));
    });
}

// Joins two softmaxes over different keys. The weight of a softmax is e^lse, the sum of its
// exponentials. The larger lse is subtracted first, because e^100 exceeds the range of float.
ITEM void merge_heads_item(Row o, real *lse, ConstRow o_more, real lse_more, size_t D) {
    const real max = *lse > lse_more ? *lse : lse_more;
    if (lse_more == -(real)HUGE_VAL) return; // the other part has no key
    const real own_part = real_exp(*lse - max), more = real_exp(lse_more - max),
               sum = own_part + more;
    for (size_t c = 0; c < D; c++) o[c] = own_part / sum * o[c] + more / sum * o_more[c];
    *lse = (real)((double)max + log((double)sum));
}
void op_merge_heads(Tensor o, Tensor lse, Tensor o_more, Tensor lse_more) {
    WIDENED_IN_C(1, op_merge_heads(o, lse, o_more, lse_more), &o, &o_more);
    need_same("op_merge_heads", "o_more", o_more, "o", o);
    need_reals("op_merge_heads", "lse_more", lse_more, lse.rows, lse.cols, "lse", lse);
    need_reals("op_merge_heads", "lse", lse, o.rows, lse.cols, "o", o);
    const size_t heads = lse.cols, D = heads ? o.cols / heads : 0;
    FOR_EACH(i, o.rows * heads, {
        const size_t r = i / heads, h = i % heads;
        merge_heads_item(row_of(o, r) + h * D, row_of_reals(lse, r) + h, row_of(o_more, r) + h * D,
                         row_of_reals(lse_more, r)[h], D);
    });
}

ITEM void causal_probabilities_row(Row p, ConstRow s, real lse, real scale, size_t live, size_t n) {
    INDEPENDENT
    for (size_t c = 0; c < live; c++) p[c] = real_exp(scale * s[c] - lse);
    for (size_t c = live; c < n; c++) p[c] = 0;
}
void op_causal_probabilities(Tensor p, Tensor s, Tensor lse, real scale, HeadsPlace at) {
    WIDENED_IN_C(1, op_causal_probabilities(p, s, lse, scale, at), &p, &s);
    need_same("op_causal_probabilities", "p", p, "s", s);
    need_tokens("op_causal_probabilities", "lse", lse, p, at);
    const size_t Tq = need_place("op_causal_probabilities", p, at);
    FOR_EACH(r, p.rows, {
        const real of_row = row_of_reals(lse, token_of(at.heads, Tq, r))[head_of(at.heads, Tq, r)];
        causal_probabilities_row(row_of(p, r), row_of(s, r), of_row, scale,
                                 keys_seen(at, Tq, p.cols, r), p.cols);
    });
}

ITEM real heads_dot_item(ConstRow a, ConstRow b, size_t D) {
    double sum;
    ROW_SUM(real, sum, c, D, a[c] * b[c]);
    return (real)sum;
}
void op_heads_dot(Tensor dot, Tensor o, Tensor d_o) {
    WIDENED_IN_C(0, op_heads_dot(dot, o, d_o), &o, &d_o);
    need_same("op_heads_dot", "do", d_o, "o", o);
    need_reals("op_heads_dot", "dot", dot, o.rows, dot.cols, "o", o);
    const size_t heads = dot.cols, D = heads ? o.cols / heads : 0;
    FOR_EACH(i, o.rows * heads, {
        const size_t r = i / heads, h = i % heads;
        row_of_reals(dot, r)[h] = heads_dot_item(row_of(o, r) + h * D, row_of(d_o, r) + h * D, D);
    });
}

ITEM void causal_scores_backward_row(Row ds, ConstRow p, ConstRow dp, real dot, real scale,
                                     size_t live, size_t n) {
    INDEPENDENT
    for (size_t c = 0; c < live; c++) ds[c] = scale * p[c] * (dp[c] - dot);
    for (size_t c = live; c < n; c++) ds[c] = 0;
}
void op_causal_scores_backward(Tensor ds, Tensor p, Tensor dp, Tensor dot, real scale,
                               HeadsPlace at) {
    WIDENED_IN_C(1, op_causal_scores_backward(ds, p, dp, dot, scale, at), &ds, &p, &dp);
    need_same("op_causal_scores_backward", "ds", ds, "p", p);
    need_same("op_causal_scores_backward", "dp", dp, "p", p);
    need_tokens("op_causal_scores_backward", "dot", dot, p, at);
    const size_t Tq = need_place("op_causal_scores_backward", p, at);
    FOR_EACH(r, p.rows, {
        const real of_row = row_of_reals(dot, token_of(at.heads, Tq, r))[head_of(at.heads, Tq, r)];
        causal_scores_backward_row(row_of(ds, r), row_of(p, r), row_of(dp, r), of_row, scale,
                                   keys_seen(at, Tq, p.cols, r), p.cols);
    });
}

// Checks that p has as many keys as queries per sequence. The op_heads_*_triangle functions compute
// with the triangle of p row by row or column by column. Each row or column has one product per
// sequence and head.
static void need_square(const char *op, Tensor p, size_t B, size_t Tq) {
    if (B && p.cols != Tq)
        fault("%s: p has %zu queries and %zu keys a sequence: a triangle has as many", op, Tq,
              p.cols);
}
// Returns t with `data` at element (row, col). The rows and cols of the result are those of t,
// because gemm_batch() gets the sizes of its matrices from the caller.
static Tensor part(Tensor t, size_t row, size_t col) {
    const size_t n = row * t.ld + col;
    if (t.element == REALS) t.data += n;
    else t.half += n;
    return t;
}
void op_heads_scores_triangle(Tensor p, Tensor q, Tensor k, size_t B, size_t heads) {
    if (!device_multiplies(q.element, k.element, p.element))
        WIDENED(1, op_heads_scores_triangle(p, q, k, B, heads), &p, &q, &k);
    const size_t D = need_heads("op_heads_scores_triangle", "q", q, "k", k, p, B, heads),
                 count[2] = { B, heads };
    const size_t T = per_sequence(q, B);
    need_square("op_heads_scores_triangle", p, B, T);
    for (size_t i = 0; i < T; i++) // p[i, 0..i] = q[i] k[0..i]^T
        gemm_batch(0, 1, 1, i + 1, D, count, part(q, i, 0), head_steps(q, T, D), k,
                   head_steps(k, T, D), part(p, i, 0), score_steps(p, T, heads));
}
void op_heads_mix_triangle(Tensor o, Tensor p, Tensor v, size_t B, size_t heads) {
    if (!device_multiplies(p.element, v.element, o.element))
        WIDENED(1, op_heads_mix_triangle(o, p, v, B, heads), &o, &p, &v);
    const size_t D = need_heads("op_heads_mix_triangle", "o", o, "v", v, p, B, heads),
                 count[2] = { B, heads };
    const size_t T = per_sequence(o, B);
    need_square("op_heads_mix_triangle", p, B, T);
    for (size_t i = 0; i < T; i++) // o[i] = p[i, 0..i] v[0..i]
        gemm_batch(0, 0, 1, D, i + 1, count, part(p, i, 0), score_steps(p, T, heads), v,
                   head_steps(v, T, D), part(o, i, 0), head_steps(o, T, D));
}
void op_heads_mix_t_triangle(Tensor o, Tensor p, Tensor v, size_t B, size_t heads) {
    if (!device_multiplies(p.element, v.element, o.element))
        WIDENED(1, op_heads_mix_t_triangle(o, p, v, B, heads), &o, &p, &v);
    const size_t D = need_heads("op_heads_mix_t_triangle", "v", v, "o", o, p, B, heads),
                 count[2] = { B, heads };
    const size_t T = per_sequence(v, B);
    need_square("op_heads_mix_t_triangle", p, B, T);
    for (size_t i = 0; i < T; i++) // o[i] = p[i.., i]^T v[i..]
        gemm_batch(1, 0, 1, D, T - i, count, part(p, i, i), score_steps(p, T, heads), part(v, i, 0),
                   head_steps(v, T, D), part(o, i, 0), head_steps(o, T, D));
}

// ---- embedding ----

// Returns the token's row in a slice that begins at vocabulary entry vocab0. For another rank's
// token, and for a negative token, the row is outside of the slice.
ITEM size_t vocab_row(int token, size_t vocab0) { return (size_t)token - vocab0; }

ITEM void embed_part(Row y, Tensor wte, size_t row, size_t lo, size_t hi) {
    const bool is_mine = row < wte.rows;
    const ConstRow from = row_of(wte, is_mine ? row : 0);
    for (size_t c = lo; c < hi; c++) y[c] = is_mine ? from[c] : 0;
}
void op_embed_tokens(Tensor y, Tensor wte, const int *tokens, size_t vocab0) {
    WIDENED_IN_C(1, op_embed_tokens(y, wte, tokens, vocab0), &y, &wte);
    need_shape("op_embed_tokens", "y", y, y.rows, wte.cols, "wte", wte);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols,
                  { embed_part(row_of(y, r), wte, vocab_row(tokens[r], vocab0), lo, hi); });
}

ITEM void embed_grad_strip(Tensor dwte, const int *tokens, Tensor dy, size_t vocab0, size_t first,
                           size_t width) {
    for (size_t r = 0; r < dy.rows; r++) {
        const size_t row = vocab_row(tokens[r], vocab0);
        if (row >= dwte.rows) continue;
        real *to = row_of_reals(dwte, row) + first;
        const real *from = row_of_reals(dy, r) + first;
        for (size_t c = 0; c < width; c++) to[c] += from[c];
    }
}
void op_embed_tokens_grad(Tensor dwte, const int *tokens, Tensor dy, size_t vocab0) {
    WIDENED(1, op_embed_tokens_grad(dwte, tokens, dy, vocab0), &dwte, &dy);
    need_shape("op_embed_tokens_grad", "dy", dy, dy.rows, dwte.cols, "dwte", dwte);
    tensor_fill(dwte, 0);
    FOR_EACH(i, ceil_div(dwte.cols, STRIP), {
        const size_t first = i * STRIP;
        BY_STRIP(strip_width(first, dwte.cols),
                 embed_grad_strip(dwte, tokens, dy, vocab0, first, width_));
    });
}

ITEM void add_position_part(Row y, ConstRow x, Tensor wpe, size_t position, size_t lo, size_t hi) {
    if (position < wpe.rows) add_part(y, x, row_of(wpe, position), lo, hi);
    else
        for (size_t c = lo; c < hi; c++) y[c] = (real)NAN;
}
void op_add_positions(Tensor y, Tensor x, Tensor wpe, const int *position) {
    WIDENED_IN_C(1, op_add_positions(y, x, wpe, position), &y, &x, &wpe);
    need_same("op_add_positions", "y", y, "x", x);
    if (wpe.cols == 0) {
        copy_unless_same(y, x);
        return;
    }
    need_shape("op_add_positions", "x", x, x.rows, wpe.cols, "wpe", wpe);
    FOR_EACH_PART(r, lo, hi, y.rows, y.cols, {
        add_position_part(row_of(y, r), row_of(x, r), wpe, (size_t)position[r], lo, hi);
    });
}

ITEM void positions_grad_part(real *dwpe, const int *position, Tensor dy, size_t t, size_t lo,
                              size_t hi) {
    for (size_t c = lo; c < hi; c++) dwpe[c] = 0;
    for (size_t r = 0; r < dy.rows; r++) {
        if ((size_t)position[r] != t) continue;
        const real *from = row_of_reals(dy, r);
        INDEPENDENT
        for (size_t c = lo; c < hi; c++) dwpe[c] += from[c];
    }
}
void op_add_positions_grad(Tensor dwpe, const int *position, Tensor dy) {
    WIDENED(1, op_add_positions_grad(dwpe, position, dy), &dwpe, &dy);
    if (dwpe.cols == 0) return;
    need_shape("op_add_positions_grad", "dy", dy, dy.rows, dwpe.cols, "dwpe", dwpe);
    FOR_EACH_PART(t, lo, hi, dwpe.rows, dwpe.cols,
                  { positions_grad_part(row_of_reals(dwpe, t), position, dy, t, lo, hi); });
}

// ---- cross entropy ----

void op_row_max(Tensor max, Tensor logits) {
    tensor_need_reals("op_row_max", "logits", logits);
    need_reals("op_row_max", "max", max, logits.rows, 1, "logits", logits);
    FOR_EACH(r, logits.rows,
             { *row_of_reals(max, r) = row_max(row_of_reals(logits, r), logits.cols); });
}

ITEM real pick_row(const real *logits, size_t row, size_t n) { return row < n ? logits[row] : 0; }
void op_pick_target(Tensor picked, Tensor logits, const int *targets, size_t vocab0) {
    tensor_need_reals("op_pick_target", "logits", logits);
    need_reals("op_pick_target", "picked", picked, logits.rows, 1, "logits", logits);
    FOR_EACH(r, logits.rows, {
        *row_of_reals(picked, r) =
            pick_row(row_of_reals(logits, r), vocab_row(targets[r], vocab0), logits.cols);
    });
}

ITEM real exp_sum_row(real *x, real max, size_t n) {
    double sum;
    for (size_t c = 0; c < n; c++) x[c] = real_exp(x[c] - max);
    ROW_SUM(real, sum, c, n, x[c]);
    return (real)sum;
}
void op_exp_sum(Tensor sum, Tensor logits, Tensor max) {
    tensor_need_reals("op_exp_sum", "logits", logits);
    need_reals("op_exp_sum", "sum", sum, logits.rows, 1, "logits", logits);
    need_reals("op_exp_sum", "max", max, logits.rows, 1, "logits", logits);
    FOR_EACH(r, logits.rows, {
        *row_of_reals(sum, r) =
            exp_sum_row(row_of_reals(logits, r), *row_of_reals(max, r), logits.cols);
    });
}

ITEM real token_loss_item(real picked, real max, real sum, int target) {
    return target < 0 ? 0 : (real)(log((double)sum) + ((double)max - (double)picked));
}
void op_token_loss(Tensor loss, Tensor picked, Tensor max, Tensor sum, const int *targets) {
    need_reals("op_token_loss", "loss", loss, picked.rows, 1, "picked", picked);
    need_reals("op_token_loss", "picked", picked, picked.rows, 1, "picked", picked);
    need_reals("op_token_loss", "max", max, picked.rows, 1, "picked", picked);
    need_reals("op_token_loss", "sum", sum, picked.rows, 1, "picked", picked);
    FOR_EACH(r, loss.rows, {
        *row_of_reals(loss, r) = token_loss_item(*row_of_reals(picked, r), *row_of_reals(max, r),
                                                 *row_of_reals(sum, r), targets[r]);
    });
}

ITEM void cross_entropy_backward_part(real *x, real sum, int target, real dloss, size_t vocab0,
                                      size_t lo, size_t hi) {
    const real inverse = 1 / sum;
    const size_t own = vocab_row(target, vocab0);
    const real at_target = own >= lo && own < hi ? x[own] : 0;
    for (size_t c = lo; c < hi; c++) x[c] = target < 0 ? 0 : x[c] * inverse * dloss;
    if (own >= lo && own < hi) x[own] = (at_target * inverse - 1) * dloss;
}
void op_cross_entropy_backward(Tensor logits, Tensor sum, const int *targets, Tensor dloss,
                               size_t vocab0) {
    tensor_need_reals("op_cross_entropy_backward", "logits", logits);
    need_reals("op_cross_entropy_backward", "sum", sum, logits.rows, 1, "logits", logits);
    need_reals("op_cross_entropy_backward", "dloss", dloss, logits.rows, 1, "logits", logits);
    FOR_EACH_PART(r, lo, hi, logits.rows, logits.cols, {
        cross_entropy_backward_part(row_of_reals(logits, r), *row_of_reals(sum, r), targets[r],
                                    *row_of_reals(dloss, r), vocab0, lo, hi);
    });
}

// ---- optimizers ----

ITEM void sgd_part(Row w, ConstRow g, real scale, real lr, real weight_decay, size_t lo,
                   size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) w[c] -= lr * (scale * g[c] + weight_decay * w[c]);
}
void op_sgd(Tensor w, Tensor g, real scale, real lr, real weight_decay) {
    WIDENED_IN_C(1, op_sgd(w, g, scale, lr, weight_decay), &w, &g);
    need_same("op_sgd", "g", g, "w", w);
    const bool flat = tensor_contiguous(w) && tensor_contiguous(g);
    w = as_one_row(w, flat);
    g = as_one_row(g, flat);
    FOR_EACH_PART(r, lo, hi, w.rows, w.cols,
                  { sgd_part(row_of(w, r), row_of(g, r), scale, lr, weight_decay, lo, hi); });
}

ITEM void adamw_part(Row w, ConstRow g, real *m, real *v, real scale, AdamW a, size_t lo,
                     size_t hi) {
    const real inverse1 = 1 / a.correction1, inverse2 = 1 / a.correction2;
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) {
        const real s = scale * g[c];
        m[c] = a.beta1 * m[c] + (1 - a.beta1) * s;
        v[c] = a.beta2 * v[c] + (1 - a.beta2) * s * s;
        const real step = m[c] * inverse1 / (real_sqrt(v[c] * inverse2) + a.epsilon);
        w[c] -= a.lr * (step + a.weight_decay * w[c]);
    }
}
void op_adamw(Tensor w, Tensor g, Tensor m, Tensor v, real scale, AdamW a) {
    WIDENED_IN_C(1, op_adamw(w, g, m, v, scale, a), &w, &g);
    need_same("op_adamw", "g", g, "w", w);
    need_reals("op_adamw", "m", m, w.rows, w.cols, "w", w);
    need_reals("op_adamw", "v", v, w.rows, w.cols, "w", w);
    const bool flat = tensor_contiguous(w) && tensor_contiguous(g) && tensor_contiguous(m) &&
                      tensor_contiguous(v);
    w = as_one_row(w, flat);
    g = as_one_row(g, flat);
    m = as_one_row(m, flat);
    v = as_one_row(v, flat);
    FOR_EACH_PART(r, lo, hi, w.rows, w.cols, {
        adamw_part(row_of(w, r), row_of(g, r), row_of_reals(m, r), row_of_reals(v, r), scale, a, lo,
                   hi);
    });
}
