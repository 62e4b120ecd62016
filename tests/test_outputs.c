// test_outputs.c: compares the results of two builds, such as the CPU's and a GPU's. One build
// writes the results of most ops for fixed inputs, and another build compares its own results with
// them:
//     build/cpu-fp32/tests/test_outputs --write FILE
//     build/cuda-fp32/tests/test_outputs --compare FILE
//
// The same source must give the same bits in both builds, for four reasons. IEEE 754 defines the
// rounding of a sum, a product, a quotient and a square root. No operation is fused. exp is a
// function of this project (real_math.h). Sums have one order. Two kinds of ops may differ. Matrix
// products come from two libraries. Ops that call log or cos may differ, because CUDA's manual
// allows errors of 1 (log) and 2 (cos) units in the last place of a double.
//
// ranks: 1
// level: core
// question: Do two builds compute the same numbers?
#include <math.h>
#include "01_data_parallel/compression.h"
#include "common/device/device.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include "tap.h"

// A Kind is the allowed difference.
//   SAME_BITS  no difference
//   LIBM       some units in the last place of a result. In fp32 a result is rounded once. In fp64
//              a few operations, each with its own rounding, give a result.
//   PRODUCT    of K terms: |d| <= 32 eps sqrt(K) max|a| max|b|, where eps is the distance from 1 to
//              the next number
typedef enum { SAME_BITS, LIBM, PRODUCT } Kind;
static const double libm_ulps = sizeof(real) == 8 ? 8 : 1;
static const double epsilon = sizeof(real) == 8 ? 0x1p-52 : 0x1p-23;

static FILE *file;
static bool comparing, framed; // framed: tensors are windows on larger tensors
static Arena storage = { .category = MEM_WORKSPACE };
static struct {
    size_t differ, of;
    double worst;
} of_kind[3]; // worst: in units of the limit

// ---- one output, written or compared ----

static double ulps(double got, double want) {
    const double size = fabs(want) > fabs(got) ? fabs(want) : fabs(got);
    return fabs(got - want) / (size > 0 ? ldexp(epsilon, ilogb(size)) : 1);
}

static void compare(const char *name, const double *got, size_t rows, size_t cols, Kind kind,
                    double product_limit) {
    char found_name[80];
    size_t found_rows, found_cols, differ = 0, where = 0;
    double worst = 0, want = 0, *wanted = host_alloc((rows * cols + 1) * sizeof *wanted);
    REQUIRE(fscanf(file, "%79s %zu %zu", found_name, &found_rows, &found_cols) == 3 &&
                fgetc(file) == '\n' && strcmp(found_name, name) == 0 && found_rows == rows &&
                found_cols == cols &&
                fread(wanted, sizeof *wanted, rows * cols, file) == rows * cols,
            "the file has other tests: write it with a build of the same source and precision");
    for (size_t i = 0; i < rows * cols; i++) {
        if (memcmp(&got[i], &wanted[i], sizeof *got) == 0) continue;
        double off = kind == SAME_BITS ? INFINITY
                     : kind == LIBM    ? ulps(got[i], wanted[i]) / libm_ulps
                                       : fabs(got[i] - wanted[i]) / product_limit;
        differ++;
        if (!(off <= worst)) worst = isnan(off) ? INFINITY : off, where = i, want = wanted[i];
    }
    of_kind[kind].differ += differ;
    of_kind[kind].of += rows * cols;
    of_kind[kind].worst = fmax(of_kind[kind].worst, worst);
    if (!ok(worst <= 1, "%s%s [%zu, %zu]: %s", name, framed ? " in a window" : "", rows, cols,
            kind == SAME_BITS ? "the same bits" : "within its tolerance"))
        printf(
            "#   %zu of %zu numbers differ; worst at [%zu, %zu]: %.17g here, %.17g in FILE, %.2g "
            "times the permitted difference\n",
            differ, rows * cols, where / cols, where % cols, got[where], want, worst);
    free(wanted);
}

static void put_out(const char *name, const double *x, size_t rows, size_t cols, Kind kind,
                    double product_limit) {
    if (comparing) {
        compare(name, x, rows, cols, kind, product_limit);
        return;
    }
    fprintf(file, "%s %zu %zu\n", name, rows, cols);
    if (fwrite(x, sizeof *x, rows * cols, file) != rows * cols)
        fault("test_outputs: the file cannot be written");
}

static double *on_host(Tensor t) {
    const size_t n = tensor_count(t);
    real *x = host_alloc((n + 1) * sizeof *x);
    double *y = host_alloc((n + 1) * sizeof *y);
    tensor_download(x, t);
    for (size_t i = 0; i < n; i++) y[i] = x[i];
    free(x);
    return y;
}
static void result(const char *name, Tensor t, Kind kind, double product_limit) {
    double *x = on_host(t);
    put_out(name, x, t.rows, t.cols, kind, product_limit);
    free(x);
}
static void exact(const char *name, Tensor t) { result(name, t, SAME_BITS, 0); }
static void number(const char *name, double x) { put_out(name, &x, 1, 1, SAME_BITS, 0); }

static double largest(Tensor t) {
    double *x = on_host(t), most = 0;
    for (size_t i = 0; i < tensor_count(t); i++) most = fmax(most, fabs(x[i]));
    free(x);
    return most;
}
static void product(const char *name, Tensor t, size_t k, Tensor a, Tensor b) {
    result(name, t, PRODUCT, 32 * epsilon * sqrt((double)k) * largest(a) * largest(b));
}

// ---- inputs ----

static Tensor empty(size_t rows, size_t cols) {
    if (!framed) return tensor_new(&storage, rows, cols);
    return tensor_col_range(tensor_new(&storage, rows, cols + 7), 3, cols + 3);
}
static Tensor flat(size_t cols) { return tensor_new(&storage, 1, cols); }
static Tensor filled(Tensor t, uint64_t seed) {
    real *x = host_alloc((tensor_count(t) + 1) * sizeof *x);
    for (size_t i = 0; i < tensor_count(t); i++) x[i] = (real)random_normal(random_key(seed, i));
    tensor_upload(t, x);
    free(x);
    return t;
}
static Tensor normal(size_t rows, size_t cols, uint64_t seed) {
    return filled(empty(rows, cols), seed);
}
// Returns n random token ids. -1 is a token that is not counted.
static const int *words(size_t n, int below) {
    int *host = host_alloc((n + 1) * sizeof *host), *device = ints_new(&storage, n);
    for (size_t i = 0; i < n; i++) host[i] = (int)(random_key(5, i) % (unsigned)(below + 1)) - 1;
    ints_upload(device, host, n);
    free(host);
    return device;
}

static const int *positions(size_t B, size_t T) {
    int *host = host_alloc(B * T * sizeof *host), *device = ints_new(&storage, B * T);
    for (size_t i = 0; i < B * T; i++) host[i] = (int)(i % T);
    ints_upload(device, host, B * T);
    free(host);
    return device;
}

// ---- the ops ----

static void elements(size_t M, size_t N) {
    Tensor a = normal(M, N, 1), b = normal(M, N, 2), y = empty(M, N), row = filled(flat(N), 3),
           sums = flat(N);
    op_add(y, a, b), exact("add", y);
    op_multiply(y, a, b), exact("multiply", y);
    op_scale(y, a, (real)-0.7), exact("scale", y);
    op_add_bias(y, a, row), exact("add_bias", y);
    op_sum_rows(sums, a), exact("sum_rows", sums);
    op_max(y, a, b), exact("max", y);
    op_scale(y, a, 5), op_gelu(y, y), exact("gelu", y);
    op_gelu_backward(y, a, b), exact("gelu_backward", y);
    op_dropout(y, a, (Dropout){ .key = 9, .p = 0.3, .row0 = 5, .col0 = 2 }), exact("dropout", y);
    tensor_copy(y, a), exact("copy", y);
    tensor_fill(y, (real)0.1), exact("fill", y);
    number("sum", tensor_sum(a)), number("sum_of_squares", tensor_sum_of_squares(a));
    tensor_copy(y, a);
    Tensor x = flat(M * N), z = flat(M * N);
    filled(x, 4), tensor_copy(z, x);
    number("equal", tensor_equal(x, z));
    tensor_randomize(y, 77, 0.02), result("randomize", y, LIBM, 0);
}

static void optimizers(size_t M, size_t N) {
    Tensor w = normal(M, N, 1), g = normal(M, N, 2), m = normal(M, N, 3), v = empty(M, N);
    op_multiply(v, m, m);
    AdamW a = { (real)0.05, (real)0.9, (real)0.95, (real)1e-5, (real)0.1, (real)0.2, (real)0.1 };
    for (int step = 0; step < 2; step++) op_adamw(w, g, m, v, (real)0.3, a);
    exact("adamw_w", w), exact("adamw_m", m), exact("adamw_v", v);
    op_sgd(w, g, (real)0.3, (real)0.05, (real)0.1), exact("sgd", w);
}

static void layer_norms(size_t M, size_t N) {
    Tensor x = normal(M, N, 1), y = empty(M, N), stats = empty(M, 2), dy = normal(M, N, 4),
           dx = empty(M, N);
    Tensor gain = filled(flat(N), 2), bias = filled(flat(N), 3), dgain = flat(N), dbias = flat(N);
    op_layer_norm(y, stats, x, gain, bias), exact("layer_norm", y),
        exact("layer_norm_stats", stats);
    op_layer_norm_backward(dx, x, stats, gain, dy), exact("layer_norm_backward", dx);
    op_layer_norm_grads(dgain, dbias, x, stats, dy), exact("layer_norm_dgain", dgain),
        exact("layer_norm_dbias", dbias);
}

static void llama(size_t M, size_t N) {
    Tensor x = normal(M, N, 1), y = empty(M, N), stats = empty(M, 1), dy = normal(M, N, 4),
           dx = empty(M, N);
    Tensor gain = filled(flat(N), 2), dgain = flat(N), wide = normal(M, 2 * N, 5),
           dwide = empty(M, 2 * N);
    op_rms_norm(y, stats, x, gain, 1e-6), exact("rms_norm", y), exact("rms_norm_stats", stats);
    op_rms_norm_backward(dx, x, stats, gain, dy), exact("rms_norm_backward", dx);
    op_rms_norm_grads(dgain, x, stats, dy), exact("rms_norm_dgain", dgain);
    op_swiglu(y, wide), exact("swiglu", y);
    op_swiglu_backward(dwide, wide, dy), exact("swiglu_backward", dwide);
    op_repeat_heads(dwide, x, N), exact("repeat_heads", dwide);
    op_fold_heads(y, wide, N), exact("fold_heads", y);
    const double limit =
        32 * epsilon * largest(wide); // a sum of two products, with cos and sin of libm
    op_rotate(wide, 2 * N, NULL, 3, 1e4, 1), result("rotate", wide, PRODUCT, limit);
}

static void products(size_t M, size_t K, size_t N) {
    Tensor x = normal(M, K, 1), xt = normal(K, M, 2), w = normal(K, N, 3), wt = normal(N, K, 4),
           y = empty(M, N);
    op_matmul(y, x, w), product("matmul", y, K, x, w);
    op_matmul_nt(y, x, wt), product("matmul_nt", y, K, x, wt);
    op_matmul_tn(y, xt, w), product("matmul_tn", y, K, xt, w);
}

static void attention(size_t B, size_t T, size_t heads, size_t D) {
    const size_t rows = B * heads * T;
    Tensor q = normal(B * T, heads * D, 1), k = normal(B * T, heads * D, 2),
           o = empty(B * T, heads * D);
    Tensor p = empty(rows, T), s = normal(rows, T, 3), dp = normal(rows, T, 4);
    const int *position = positions(B, T);
    const HeadsPlace at = { B, heads, position, position };
    op_heads_scores(p, q, k, B, heads), product("heads_scores", p, D, q, k);
    op_heads_mix(o, s, k, B, heads), product("heads_mix", o, T, s, k);
    op_heads_mix_t(o, s, k, B, heads), product("heads_mix_t", o, T, s, k);
    op_causal_softmax(p, s, (real)0.7, at), exact("causal_softmax", p);
    op_causal_softmax_backward(s, p, dp, (real)0.7, at), exact("causal_softmax_backward", s);
    op_dropout_heads(s, p, 4, 0.2, 6, 2, at), exact("dropout_heads", s);
}

static void embeddings(size_t B, size_t T, size_t V, size_t C) {
    const int *tokens = words(B * T, (int)V + 9); // some of the tokens belong to other slices
    Tensor wte = normal(V, C, 1), wpe = normal(T + 3, C, 2), y = empty(B * T, C);
    Tensor dwte = empty(V, C), dwpe = empty(T + 3, C);
    op_embed_tokens(y, wte, tokens, 4), exact("embed_tokens", y);
    op_add_positions(y, y, wpe, positions(B, T)), exact("add_positions", y);
    op_embed_tokens_grad(dwte, tokens, y, 4), exact("embed_tokens_grad", dwte);
    op_add_positions_grad(dwpe, positions(B, T), y), exact("add_positions_grad", dwpe);
}

static void cross_entropy(size_t M, size_t V) {
    const int *targets = words(M, (int)V);
    Tensor x = normal(M, V, 1), max = empty(M, 1), picked = empty(M, 1), sum = empty(M, 1),
           loss = empty(M, 1);
    Tensor dloss = normal(M, 1, 2);
    op_row_max(max, x), exact("row_max", max);
    op_pick_target(picked, x, targets, 0), exact("pick_target", picked);
    op_exp_sum(sum, x, max), exact("exp", x), exact("exp_sum", sum);
    op_token_loss(loss, picked, max, sum, targets), result("token_loss", loss, LIBM, 0);
    op_cross_entropy_backward(x, sum, targets, dloss, 0), exact("cross_entropy_backward", x);
}

// Tests sizes near those of a strip of columns (for_each.h), of a block of a sum (real_math.h) and
// of a GPU's block of threads. One size has many strips and blocks.
static void all_ops(void) {
    const size_t shapes[][2] = { { 1, 1 }, { 7, 13 }, { 33, 517 }, { 130, 1030 }, { 3, 64 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        elements(shapes[i][0], shapes[i][1]);
        optimizers(shapes[i][0], shapes[i][1]);
        layer_norms(shapes[i][0], shapes[i][1]);
        llama(shapes[i][0], shapes[i][1]);
        cross_entropy(shapes[i][0], shapes[i][1]);
        arena_free(&storage);
    }
    products(1, 1, 1), products(7, 5, 13), products(65, 130, 97);
    arena_free(&storage);
    attention(2, 5, 3, 7), attention(1, 41, 1, 64), attention(2, 64, 4, 16);
    arena_free(&storage);
    embeddings(2, 5, 13, 9), embeddings(3, 64, 40, 130);
    arena_free(&storage);
    Tensor p = normal(61, 5, 1);
    if (tensor_contiguous(p)) orthonormalise(p), exact("orthonormalise", p);
    arena_free(&storage);
}

int main(int argc, char **argv) {
    if (argc != 3 || (strcmp(argv[1], "--write") != 0 && strcmp(argv[1], "--compare") != 0))
        usage_error("usage: %s --write FILE or --compare FILE", argv[0]);
    comparing = strcmp(argv[1], "--compare") == 0;
    file = fopen(argv[2], comparing ? "rb" : "wb");
    REQUIRE(file, "%s cannot be opened", argv[2]);
    memory_rank_begin();
    device_init();
    for (int i = 0; i < 2; i++) {
        framed = i == 1;
        all_ops();
    }
    device_rank_end();
    memory_rank_end();
    if (fclose(file) != 0) fault("test_outputs: the file cannot be written");
    if (!comparing) return 0;
    printf("# one text, one result: %zu of %zu numbers differ\n", of_kind[SAME_BITS].differ,
           of_kind[SAME_BITS].of);
    printf("# log and cos: %zu of %zu differ, by at most %.2g of %g units in the last place\n",
           of_kind[LIBM].differ, of_kind[LIBM].of, of_kind[LIBM].worst * libm_ulps, libm_ulps);
    printf("# products: %zu of %zu differ, by at most %.2g of the permitted difference\n",
           of_kind[PRODUCT].differ, of_kind[PRODUCT].of, of_kind[PRODUCT].worst);
    return tap_end();
}
