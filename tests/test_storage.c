// test_storage.c: tests numbers of 16 bits. Rounding is compared with the neighbours of every
// number. Every op that accepts 16 bits is compared with the same op on reals, whose outputs are
// rounded once. An op that accepts only reals must refuse 16 bits.
//
// ranks: 1
// level: core
// question: Is a 16-bit result the real result, rounded once?
#include <math.h>
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/device/device.h"
#include "common/model/optimizer.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include "common/tensor/storage.h"
#include "judge/frame/launch.h"
#include "tap.h"

static const Element HALVES[] = { BF16S, FP16S };

// ---- 1. Rounding ----

typedef struct {
    int fraction_bits, least; // numbers are multiples of 2^least
} Format;
static Format format_of(Element e) {
    return e == BF16S ? (Format){ 7, -133 } : (Format){ 10, -24 };
}
static double defined_value(Element e, unsigned h) {
    const Format f = format_of(e);
    const unsigned ones = (1u << (15 - f.fraction_bits)) - 1;
    const unsigned exponent = h >> f.fraction_bits & ones,
                   fraction = h & ((1u << f.fraction_bits) - 1);
    const double sign = h >> 15 ? -1 : 1;
    if (exponent == ones) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, f.least);
    return sign * ldexp((1u << f.fraction_bits) + fraction, f.least + (int)exponent - 1);
}
static real just_above(real x) {
    return (real)(sizeof(real) == 8 ? nextafter((double)x, INFINITY)
                                    : (double)nextafterf((float)x, INFINITY));
}
static real just_below(real x) { return -just_above(-x); }

static void test_values(Element e) {
    size_t wrong = 0, not_back = 0, nans = 0;
    for (unsigned h = 0; h < 1 << 16; h++) {
        const double want = defined_value(e, h);
        const real got = stored_value(e, (uint16_t)h);
        const uint16_t back = stored_round(e, got);
        if (isnan(want)) {
            nans++;
            wrong += !isnan(got);
            not_back += !isnan(stored_value(e, back));
            continue;
        }
        wrong += (double)got != want || !signbit(got) != !signbit(want);
        not_back += back != h;
    }
    ok(wrong == 0 && nans > 100, "%s: all 65,536 values, %zu of them NaN", element_name(e), nans);
    ok(not_back == 0, "%s: every number rounds to itself", element_name(e));
}

// The largest number's upper neighbour counts as a number with the next exponent.
static void test_ties(Element e) {
    const unsigned infinite = e == BF16S ? 0x7f80 : 0x7c00;
    size_t wrong = 0;
    for (unsigned h = 0; h < infinite; h++) {
        const double lower = defined_value(e, h), step = h + 1 < infinite
                                                             ? defined_value(e, h + 1) - lower
                                                             : lower - defined_value(e, h - 1);
        const real middle = (real)(lower + step / 2);
        const unsigned even = h + (h & 1);
        for (unsigned sign = 0; sign < 2; sign++) {
            const real s = sign ? -1 : 1;
            const unsigned bit = sign << 15;
            wrong += stored_round(e, s * middle) != (bit | even);
            wrong += stored_round(e, s * just_below(middle)) != (bit | h);
            wrong += stored_round(e, s * just_above(middle)) != (bit | (h + 1));
        }
    }
    ok(wrong == 0, "%s: ties go to the even neighbour, others to the nearest, up to infinity",
       element_name(e));
}

static void test_special(Element e) {
    const uint16_t infinite = e == BF16S ? 0x7f80 : 0x7c00;
    ok(stored_round(e, (real)INFINITY) == infinite &&
           stored_round(e, (real)-INFINITY) == (infinite | 0x8000),
       "%s: infinities", element_name(e));
    ok(isnan(stored_value(e, stored_round(e, (real)NAN))), "%s: NaN", element_name(e));
    ok(stored_round(e, (real)(sizeof(real) == 8 ? 1e300 : 3.4e38)) == infinite,
       "%s: a number beyond the range is infinite", element_name(e));
    ok(stored_round(e, (real)1e-44) == 0 && stored_round(e, -(real)1e-44) == 0x8000,
       "%s: a number below the range is 0, with its sign", element_name(e));
}

// ---- 2. Tensors ----

static Arena storage = { .category = MEM_WORKSPACE };
static Tensor stored(size_t rows, size_t cols, Element e) {
    return tensor_shaped(&storage, tensor_shape(rows, cols, e));
}
// Returns a window of a larger tensor, with random values.
static Tensor window(size_t rows, size_t cols, Element e, uint64_t seed) {
    Tensor whole = stored(rows + 2, cols + 5, e);
    tensor_fill(whole, (real)NAN);
    Tensor t = tensor_col_range(tensor_row_range(whole, 1, rows + 1), 3, cols + 3);
    tensor_randomize(t, seed, 1);
    return t;
}
static Tensor in_reals(Tensor t) {
    Tensor wide = tensor_new(&storage, t.rows, t.cols);
    tensor_copy(wide, t);
    return wide;
}
static Tensor flat(Tensor t) {
    Tensor copy = tensor_like(&storage, t);
    tensor_copy(copy, t);
    return copy;
}
static bool same(Tensor a, Tensor b) { return tensor_equal(flat(a), flat(b)); }

static void test_tensors(Element e) {
    enum { M = 5, N = 7 };
    real host[M * N], back[M * N];
    const char *name = element_name(e);
    for (size_t i = 0; i < M * N; i++) host[i] = (real)random_normal(random_key(9, i));
    Tensor t = window(M, N, e, 1), whole = stored(M, N, e), wide = tensor_new(&storage, M, N);
    ok(tensor_bytes(whole) == 2 * M * N, "%s: 2 bytes per element", name);
    tensor_upload(t, host);
    tensor_upload(wide, host);
    tensor_copy(whole, wide);
    ok(same(t, whole), "%s: an upload rounds as a copy from reals does", name);
    tensor_download(back, t);
    size_t wrong = 0;
    for (size_t i = 0; i < M * N; i++)
        wrong += back[i] != stored_value(e, stored_round(e, host[i]));
    ok(wrong == 0, "%s: a download gives the rounded values", name);
    Tensor part = tensor_col_range(tensor_row_range(whole, 2, 4), 1, 6);
    tensor_download(back, part);
    ok(back[0] == stored_value(e, stored_round(e, host[2 * N + 1])) &&
           back[9] == stored_value(e, stored_round(e, host[3 * N + 5])),
       "%s: rows and columns of a view", name);
    tensor_download(back, tensor_flat_range(whole, 17, 19));
    ok(back[1] == stored_value(e, stored_round(e, host[18])), "%s: a flat view", name);
    ok(tensor_sum(t) == tensor_sum(in_reals(t)) &&
           tensor_sum_of_squares(t) == tensor_sum_of_squares(in_reals(t)),
       "%s: sums are equal to the sums of the reals", name);
    tensor_fill(part, (real)1.00001);
    ok(tensor_sum(part) == 10 && !same(t, whole), "%s: a fill is rounded", name);
    Tensor other = stored(M, N, e == BF16S ? FP16S : BF16S), direct = tensor_like(&storage, other);
    tensor_copy(other, t);
    tensor_copy(direct, in_reals(t));
    ok(same(other, direct), "%s: a copy to the other format goes through real", name);
    arena_free(&storage);
}

// ---- 3. Ops ----

enum { B = 2, T = 6, HEADS = 2, D = 4, C = HEADS * D, ROWS = B * T, SQUARE = B * HEADS * T, V = 9 };
static const int tokens[ROWS] = { 3, 8, 3, 0, 3, 7, 3, 3, 1, 8, 3, 2 };
static const int positions[ROWS] = { 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5 };
static const HeadsPlace place = { B, HEADS, NULL, NULL };
static const Dropout drop = { .key = 5, .p = 0.3 };

// Op has up to six operands. The op writes the first `outputs` operands. Each bit of `reals` marks
// an operand that must be reals, such as statistics and sums.
typedef struct {
    const char *name;
    size_t operands, outputs, reals;
    struct {
        size_t rows, cols;
    } shape[6];
    void (*run)(Tensor *t);
} Op;
static void add(Tensor *t) { op_add(t[0], t[1], t[2]); }
static void add_in_place(Tensor *t) { op_add(t[0], t[0], t[1]); }
static void max(Tensor *t) { op_max(t[0], t[1], t[2]); }
static void combine(Tensor *t) { op_combine(t[0], t[1], false); }
static void combine_maxima(Tensor *t) { op_combine(t[0], t[1], true); }
static void scale(Tensor *t) { op_scale(t[0], t[1], (real)0.3); }
static void multiply(Tensor *t) { op_multiply(t[0], t[1], t[2]); }
static void add_bias(Tensor *t) { op_add_bias(t[0], t[1], t[2]); }
static void sum_rows(Tensor *t) { op_sum_rows(t[0], t[1]); }
static void gelu(Tensor *t) { op_gelu(t[0], t[1]); }
static void gelu_backward(Tensor *t) { op_gelu_backward(t[0], t[1], t[2]); }
static void swiglu(Tensor *t) { op_swiglu(t[0], t[1]); }
static void swiglu_backward(Tensor *t) {
    op_swiglu_backward(t[0], t[1], tensor_col_range(t[0], 0, C));
}
static void dropout(Tensor *t) { op_dropout(t[0], t[1], drop); }
static void no_dropout(Tensor *t) { op_dropout(t[0], t[1], (Dropout){ .key = 5 }); }
static void layer_norm(Tensor *t) { op_layer_norm(t[0], t[1], t[2], t[3], t[4]); }
static void layer_norm_backward(Tensor *t) { op_layer_norm_backward(t[0], t[1], t[2], t[3], t[4]); }
static void layer_norm_grads(Tensor *t) { op_layer_norm_grads(t[0], t[1], t[2], t[3], t[4]); }
static void layer_norm_sums(Tensor *t) { op_layer_norm_sums(t[0], t[1]); }
static void layer_norm_apply(Tensor *t) {
    op_layer_norm_apply(t[0], t[1], t[2], t[3], t[4], t[5], 2 * C);
}
static void layer_norm_backward_sums(Tensor *t) {
    op_layer_norm_backward_sums(t[0], t[1], t[2], t[3], t[4]);
}
static void layer_norm_backward_apply(Tensor *t) {
    op_layer_norm_backward_apply(t[0], t[1], t[2], t[3], t[4], t[5], 2 * C);
}
static void rms_norm(Tensor *t) { op_rms_norm(t[0], t[1], t[2], t[3], 1e-5); }
static void rms_norm_backward(Tensor *t) { op_rms_norm_backward(t[0], t[1], t[2], t[3], t[4]); }
static void rms_norm_grads(Tensor *t) { op_rms_norm_grads(t[0], t[1], t[2], t[3]); }
static void rotate(Tensor *t) { op_rotate(t[0], D, NULL, T, 10000, 1); }
static void repeat_heads(Tensor *t) { op_repeat_heads(t[0], t[1], D); }
static void fold_heads(Tensor *t) { op_fold_heads(t[0], t[1], D); }
static void matmul(Tensor *t) { op_matmul(t[0], t[1], t[2]); }
static void matmul_nt(Tensor *t) { op_matmul_nt(t[0], t[1], t[2]); }
static void matmul_tn(Tensor *t) { op_matmul_tn(t[0], t[1], t[2]); }
static void heads_scores(Tensor *t) { op_heads_scores(t[0], t[1], t[2], B, HEADS); }
static void heads_mix(Tensor *t) { op_heads_mix(t[0], t[1], t[2], B, HEADS); }
static void heads_mix_t(Tensor *t) { op_heads_mix_t(t[0], t[1], t[2], B, HEADS); }
static void scores_triangle(Tensor *t) { op_heads_scores_triangle(t[0], t[1], t[2], B, HEADS); }
static void mix_triangle(Tensor *t) { op_heads_mix_triangle(t[0], t[1], t[2], B, HEADS); }
static void mix_t_triangle(Tensor *t) { op_heads_mix_t_triangle(t[0], t[1], t[2], B, HEADS); }
static void causal_softmax(Tensor *t) { op_causal_softmax(t[0], t[1], (real)0.7, place); }
static void softmax_in_place(Tensor *t) { op_causal_softmax(t[0], t[0], (real)0.7, place); }
static void softmax_backward(Tensor *t) {
    op_causal_softmax_backward(t[0], t[1], t[2], (real)0.7, place);
}
static void softmax_lse(Tensor *t) { op_causal_softmax_lse(t[0], t[1], t[2], (real)0.7, place); }
static void merge_heads(Tensor *t) { op_merge_heads(t[0], t[1], t[2], t[3]); }
static void probabilities(Tensor *t) {
    op_causal_probabilities(t[0], t[1], t[2], (real)0.7, place);
}
static void heads_dot(Tensor *t) { op_heads_dot(t[0], t[1], t[2]); }
static void scores_backward(Tensor *t) {
    op_causal_scores_backward(t[0], t[1], t[2], t[3], (real)0.7, place);
}
static void dropout_heads(Tensor *t) { op_dropout_heads(t[0], t[1], 3, 0.3, 0, 0, place); }
static const int *device_tokens, *device_positions;
static void embed(Tensor *t) { op_embed_tokens(t[0], t[1], device_tokens, 1); }
static void embed_grad(Tensor *t) { op_embed_tokens_grad(t[0], device_tokens, t[1], 0); }
static void add_positions(Tensor *t) { op_add_positions(t[0], t[1], t[2], device_positions); }
static void positions_grad(Tensor *t) { op_add_positions_grad(t[0], device_positions, t[1]); }
static void do_sgd(Tensor *t) { op_sgd(t[0], t[1], (real)0.9, (real)0.1, (real)0.01); }
static const AdamW rule = { .lr = (real)0.1,
                            .beta1 = (real)0.9,
                            .beta2 = (real)0.95,
                            .epsilon = (real)1e-5,
                            .weight_decay = (real)0.01,
                            .correction1 = (real)0.1,
                            .correction2 = (real)0.05 };
static void do_adamw(Tensor *t) { op_adamw(t[0], t[1], t[2], t[3], 1, rule); }
static void row_max(Tensor *t) { op_row_max(t[0], t[1]); }
static void pick_target(Tensor *t) { op_pick_target(t[0], t[1], device_tokens, 0); }
static void exp_sum(Tensor *t) { op_exp_sum(t[0], t[1], t[2]); }
static void token_loss(Tensor *t) { op_token_loss(t[0], t[1], t[2], t[3], device_tokens); }
static void cross_entropy(Tensor *t) {
    op_cross_entropy_backward(t[0], t[1], device_tokens, t[2], 0);
}

#define H \
    { ROWS, C }
#define X2 \
    { ROWS, 2 * C }
#define P \
    { SQUARE, T }
#define S2 \
    { ROWS, 2 }
#define S1 \
    { ROWS, 1 }
#define LSE \
    { ROWS, HEADS }
#define GAIN \
    { 1, C }
static const Op ops[] = {
    { "op_add", 3, 1, 0, { H, H, H }, add },
    { "op_add in place", 2, 1, 0, { H, H }, add_in_place },
    { "op_max", 3, 1, 0, { H, H, H }, max },
    { "op_combine, a sum", 2, 1, 0, { GAIN, H }, combine },
    { "op_combine, maxima", 2, 1, 0, { GAIN, H }, combine_maxima },
    { "op_scale", 2, 1, 0, { H, H }, scale },
    { "op_multiply", 3, 1, 0, { H, H, H }, multiply },
    { "op_add_bias", 3, 1, 0, { H, H, GAIN }, add_bias },
    { "op_sum_rows", 2, 1, 0, { GAIN, H }, sum_rows },
    { "op_gelu", 2, 1, 0, { H, H }, gelu },
    { "op_gelu_backward", 3, 1, 0, { H, H, H }, gelu_backward },
    { "op_swiglu", 2, 1, 0, { H, X2 }, swiglu },
    { "op_swiglu_backward in place", 2, 1, 0, { X2, X2 }, swiglu_backward },
    { "op_dropout", 2, 1, 0, { H, H }, dropout },
    { "op_dropout, p = 0", 2, 1, 0, { H, H }, no_dropout },
    { "op_layer_norm", 5, 2, 2, { H, S2, H, GAIN, GAIN }, layer_norm },
    { "op_layer_norm_backward", 5, 1, 4, { H, H, S2, GAIN, H }, layer_norm_backward },
    { "op_layer_norm_grads", 5, 2, 8, { GAIN, GAIN, H, S2, H }, layer_norm_grads },
    { "op_layer_norm_sums", 2, 1, 1, { S2, H }, layer_norm_sums },
    { "op_layer_norm_apply", 6, 2, 6, { H, S2, S2, H, GAIN, GAIN }, layer_norm_apply },
    { "op_layer_norm_backward_sums", 5, 1, 5, { S2, H, S2, GAIN, H }, layer_norm_backward_sums },
    { "op_layer_norm_backward_apply",
      6,
      1,
      10,
      { H, S2, H, S2, GAIN, H },
      layer_norm_backward_apply },
    { "op_rms_norm", 4, 2, 2, { H, S1, H, GAIN }, rms_norm },
    { "op_rms_norm_backward", 5, 1, 4, { H, H, S1, GAIN, H }, rms_norm_backward },
    { "op_rms_norm_grads", 4, 1, 4, { GAIN, H, S1, H }, rms_norm_grads },
    { "op_rotate", 1, 1, 0, { H }, rotate },
    { "op_repeat_heads", 2, 1, 0, { X2, H }, repeat_heads },
    { "op_fold_heads", 2, 1, 0, { H, X2 }, fold_heads },
    { "op_matmul", 3, 1, 0, { X2, H, { C, 2 * C } }, matmul },
    { "op_matmul_nt", 3, 1, 0, { H, X2, { C, 2 * C } }, matmul_nt },
    { "op_matmul_tn", 3, 1, 0, { { C, 2 * C }, H, X2 }, matmul_tn },
    { "op_heads_scores", 3, 1, 0, { P, H, H }, heads_scores },
    { "op_heads_mix", 3, 1, 0, { H, P, H }, heads_mix },
    { "op_heads_mix_t", 3, 1, 0, { H, P, H }, heads_mix_t },
    { "op_heads_scores_triangle", 3, 1, 0, { P, H, H }, scores_triangle },
    { "op_heads_mix_triangle", 3, 1, 0, { H, P, H }, mix_triangle },
    { "op_heads_mix_t_triangle", 3, 1, 0, { H, P, H }, mix_t_triangle },
    { "op_causal_softmax", 2, 1, 0, { P, P }, causal_softmax },
    { "op_causal_softmax in place", 1, 1, 0, { P }, softmax_in_place },
    { "op_causal_softmax_backward", 3, 1, 0, { P, P, P }, softmax_backward },
    { "op_causal_softmax_lse", 3, 2, 2, { P, LSE, P }, softmax_lse },
    { "op_merge_heads", 4, 2, 10, { H, LSE, H, LSE }, merge_heads },
    { "op_causal_probabilities", 3, 1, 4, { P, P, LSE }, probabilities },
    { "op_heads_dot", 3, 1, 1, { LSE, H, H }, heads_dot },
    { "op_causal_scores_backward", 4, 1, 8, { P, P, P, LSE }, scores_backward },
    { "op_dropout_heads", 2, 1, 0, { P, P }, dropout_heads },
    { "op_embed_tokens", 2, 1, 0, { H, { V, C } }, embed },
    { "op_embed_tokens_grad", 2, 1, 0, { { V, C }, H }, embed_grad },
    { "op_add_positions", 3, 1, 0, { H, H, { T, C } }, add_positions },
    { "op_add_positions_grad", 2, 1, 0, { { T, C }, H }, positions_grad },
    { "op_sgd", 2, 1, 0, { H, H }, do_sgd },
    { "op_adamw", 4, 3, 12, { H, H, H, H }, do_adamw },
    { "op_row_max", 2, 1, 3, { S1, H }, row_max },
    { "op_pick_target", 2, 1, 3, { S1, H }, pick_target },
    { "op_exp_sum", 3, 2, 7, { S1, H, S1 }, exp_sum },
    { "op_token_loss", 4, 1, 15, { S1, S1, S1, S1 }, token_loss },
    { "op_cross_entropy_backward", 3, 1, 7, { H, S1, S1 }, cross_entropy },
};
enum { OPS = sizeof ops / sizeof *ops };

static bool wants_real(const Op *o, size_t i) { return o->reals >> i & 1; }
static void upload_ids(void) {
    int *a = ints_new(&storage, ROWS), *b = ints_new(&storage, ROWS);
    ints_upload(a, tokens, ROWS);
    ints_upload(b, positions, ROWS);
    device_tokens = a;
    device_positions = b;
}
// Returns an operand. Gain and bias must be contiguous rows, so these operands are no windows.
static Tensor operand(const Op *o, size_t i, Element e) {
    Tensor t = window(o->shape[i].rows, o->shape[i].cols, e, 100 + i);
    if (o->run == do_adamw && i == 3) op_multiply(t, t, t); // v is not negative
    return t.rows == 1 ? flat(t) : t;
}

// Returns whether this op is a product on a GPU. A GPU adds the terms in its own order, which
// depends on the element type. So a sum may be rounded to either neighbour. The sum has the
// error limit of test_outputs, 32 eps sqrt(K) max|a| max|b|. This limit is less than 4e-4 for K <=
// 16 and values below 5.
static bool any_order(const Op *o) {
    return strcmp(device_name(), "cuda") == 0 &&
           (strstr(o->name, "matmul") || strstr(o->name, "_scores") || strstr(o->name, "_mix"));
}
static bool near(Tensor a, Tensor b) {
    const size_t n = tensor_count(a);
    const double last_place = a.element == BF16S ? 0x1p-7 : a.element == FP16S ? 0x1p-10 : 0;
    real *x = host_alloc(n * sizeof *x), *y = host_alloc(n * sizeof *y);
    tensor_download(x, a);
    tensor_download(y, b);
    bool all = true;
    for (size_t i = 0; i < n; i++)
        all = all && fabs((double)x[i] - (double)y[i]) <= last_place * fabs((double)y[i]) + 4e-4;
    free(x);
    free(y);
    return all;
}

// Compares the op on stored operands with the op on the same values in reals. With `odd` only every
// second operand has 16 bits.
static bool rounded_once(const Op *o, Element e, bool odd) {
    Tensor t[6], wide[6];
    upload_ids();
    for (size_t i = 0; i < o->operands; i++) {
        t[i] = operand(o, i, wants_real(o, i) || (odd && i % 2 == 0) ? REALS : e);
        wide[i] = in_reals(t[i]);
    }
    o->run(t);
    o->run(wide);
    bool all = true;
    for (size_t i = 0; i < o->operands; i++) {
        Tensor want = tensor_like(&storage, t[i]);
        tensor_copy(want, wide[i]); // also for inputs, which must not change
        all = all && (any_order(o) ? near(t[i], want) : same(t[i], want));
    }
    arena_free(&storage);
    return all;
}
static void test_ops(Element e) {
    for (size_t i = 0; i < OPS; i++) {
        if (ops[i].reals + 1 == (size_t)1 << ops[i].operands) continue; // takes reals only
        ok(rounded_once(&ops[i], e, false), "%s, %s: the result in reals, rounded once",
           ops[i].name, element_name(e));
        ok(rounded_once(&ops[i], e, true), "%s, %s and reals", ops[i].name, element_name(e));
    }
}

// Refused is an op with one operand in 16 bits that must be in reals.
typedef struct {
    const Op *op;
    size_t which;
} Refused;
static void give_halves(void *context) {
    const Refused *r = context;
    Tensor t[6];
    end_all_ranks = _exit;
    upload_ids();
    for (size_t i = 0; i < r->op->operands; i++)
        t[i] = operand(r->op, i, i == r->which ? BF16S : REALS);
    r->op->run(t);
}
static void test_refusals(void) {
    char said[1024], wanted[64];
    snprintf(wanted, sizeof wanted, "is stored in bf16, but this op reads and writes %s only",
             REAL_NAME);
    for (size_t i = 0; i < OPS; i++)
        for (size_t k = 0; k < ops[i].operands; k++) {
            Refused r = { &ops[i], k };
            if (!wants_real(&ops[i], k)) continue;
            const int status = tap_child(give_halves, &r, said, sizeof said);
            ok(status == STATUS_FAULT && strstr(said, wanted), "%s refuses operand %zu in 16 bits",
               ops[i].name, k);
        }
}

// ---- 4. A model ----

static const ModelConfig tiny = {
    .layers = 2, .width = 16, .heads = 2, .context = 8, .vocab = 11, .seed = 3
};
// Computes the loss and the gradients of two micro-batches of the same tokens.
static double gradients(Model *m, double token_weight) {
    Arena a = arena(MEM_WORKSPACE);
    int host[8] = { 1, 2, 3, 3, 3, 1, 0, 10 }, at[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    int *ids = ints_new(&a, 8), *where = ints_new(&a, 8);
    ints_upload(ids, host, 8);
    ints_upload(where, at, 8);
    Batch b = { .B = 1,
                .T = 8,
                .tokens = ids,
                .targets = ids,
                .position = where,
                .token_weight = token_weight,
                .training = true };
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) + model_forward_backward(m, &b);
    model_fold_tied(m);
    arena_free(&a);
    return loss;
}
static double one_step(Model *m, Optimizer *o) {
    double loss = gradients(m, 1.0 / 16);
    optimizer_step(o, m, 1);
    return loss;
}
static void test_model(Element e, bool main_gradients) {
    ModelConfig c = tiny;
    c.storage = e;
    c.main_gradients = main_gradients;
    Model *m = model_describe(&c, model_layers(&c)),
          *reals = model_describe(&tiny, model_layers(&tiny));
    Optimizer o = adamw(0.01), p = adamw(0.01);
    model_allocate(m);
    model_allocate(reals);
    const size_t n = m->size, wte = model_wte(m)->size;
    ok(memory_now(MEM_PARAMETERS) == 2 * n + sizeof(real) * n &&
           memory_now(MEM_GRADIENTS) ==
               (main_gradients ? sizeof(real) : 2) * (n + wte) + sizeof(real) * (n + wte),
       "%s: bytes of weights and %s", element_name(e),
       main_gradients ? "main gradients" : "gradients");
    tensor_fill(m->w, (real)0.5); // the weights of a rank before the broadcast
    optimizer_allocate(&o, m);
    ok(memory_now(MEM_OPTIMIZER) == 3 * sizeof(real) * n, "%s: master, m and v are reals",
       element_name(e));
    Tensor rounded = tensor_like(&storage, m->w);
    tensor_copy(m->w, reals->w); // the broadcast
    optimizer_allocate(&p, reals);
    double first = one_step(m, &o), want = one_step(reals, &p);
    ok(fabs(first - want) < (e == BF16S ? 2e-2 : 2e-3) * want, "%s: a loss of %.4f, in reals %.4f",
       element_name(e), first, want);
    bool masters = true;
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        Tensor t = tensor_like(&storage, u->own_w);
        tensor_copy(t, unit_own(u, UNIT_MASTER));
        masters = masters && tensor_equal(t, u->own_w);
    }
    ok(masters, "%s: every weight is its master, rounded", element_name(e));
    Tensor change = in_reals(m->w);
    op_scale(rounded, reals->w, -1);
    op_add(change, change, rounded);
    ok(tensor_sum_of_squares(change) < 1e-3 * tensor_sum_of_squares(reals->w),
       "%s: the weights after a step are near those in reals: %.1e of their squares differs",
       element_name(e), tensor_sum_of_squares(change) / tensor_sum_of_squares(reals->w));
    for (int i = 0; i < 40; i++) {
        first = one_step(m, &o);
        want = one_step(reals, &p);
    }
    ok(first < 0.2 * 16 && fabs(first - want) < 0.2, "%s, %s: learns as reals do, %.4f and %.4f",
       element_name(e), main_gradients ? "main gradients" : "gradients as stored", first, want);
    arena_free(&storage);
    model_free(m);
    model_free(reals);
}
// A batch of 4 million tokens gives each token's loss the weight 2^-22.
static void test_large_batch(void) {
    static const double tokens = 0x1p22, factor[] = { 1, 0x1p16 };
    ModelConfig c = tiny;
    double lost[2];
    c.storage = FP16S;
    c.main_gradients = true;
    Model *m = model_describe(&c, model_layers(&c));
    model_allocate(m);
    gradients(m, 1);
    const double whole = tensor_sum_of_squares(m->g);
    Tensor minus = tensor_like(&storage, m->g);
    op_scale(minus, m->g, -1);
    for (size_t i = 0; i < 2; i++) {
        gradients(m, factor[i] / tokens);
        op_scale(m->g, m->g, (real)(tokens / factor[i]));
        op_add(m->g, m->g, minus);
        lost[i] = sqrt(tensor_sum_of_squares(m->g) / whole);
    }
    ok(lost[0] > 0.1,
       "fp16, 4 million tokens: without a loss scale %.0f %% of the gradient is lost",
       100 * lost[0]);
    ok(lost[1] < 1e-3, "fp16, 4 million tokens: with the loss scale 2^16 %.2f %% is lost",
       100 * lost[1]);
    arena_free(&storage);
    model_free(m);
}
static void no_master(void) {
    ModelConfig c = tiny;
    c.storage = BF16S;
    Model *m = model_describe(&c, model_layers(&c));
    Optimizer o = sgd(0.1);
    model_allocate(m);
    one_step(m, &o);
}

// SUMMA on 2 x 2 ranks must add the products of its turns in reals and round the sum once. The
// factors are whole numbers, so the sum in reals is exact. The sum has too many digits for 16 bits.
static void grid_product(Comm *world, void *element) {
    enum { M = 4, K = 6, N = 8 };
    const Element e = *(const Element *)element;
    CommGrid g = comm_grid(world, 2, 2, 1);
    Arena a = arena(MEM_WORKSPACE);
    Tensor factor[2] = { tensor_new(&a, M, K), tensor_new(&a, K, N) }, part[2];
    Tensor y = tensor_shaped(&a, tensor_shape(M / 2, N / 2, e)), rounded = tensor_like(&a, y);
    Tensor whole = tensor_new(&a, M, N);
    real number[K * N];
    for (size_t i = 0; i < 2; i++) {
        const size_t rows = factor[i].rows / 2, cols = factor[i].cols / 2;
        for (size_t k = 0; k < K * N; k++) number[k] = (real)(random_key(i, k) % 119) - 59;
        tensor_upload(factor[i], number);
        part[i] = tensor_shaped(&a, tensor_shape(rows, cols, e));
        Tensor row = tensor_row_range(factor[i], g.row * rows, (g.row + 1) * rows);
        tensor_copy(part[i], tensor_col_range(row, g.col * cols, (g.col + 1) * cols));
    }
    op_matmul(whole, factor[0], factor[1]);
    Tensor row = tensor_row_range(whole, g.row * y.rows, (g.row + 1) * y.rows);
    tensor_copy(rounded, tensor_col_range(row, g.col * y.cols, (g.col + 1) * y.cols));
    summa_product(&g, y, part[0], part[1], (SummaCut){ K, 1 });
    double wrong = !tensor_equal(y, rounded);
    comm_all_reduce_doubles(world, &wrong, 1);
    if (world->rank == 0) ok(wrong == 0, "%s: SUMMA rounds a product once", element_name(e));
    arena_free(&a);
    comm_grid_free(&g);
}

int main(void) {
    memory_rank_begin();
    // Runs first, because a process that has used a GPU cannot fork a process that uses the GPU.
    test_refusals();
    ends(no_master, STATUS_FAULT, "is stored in bf16 and has no master");
    device_init();
    for (size_t i = 0; i < 2; i++) {
        test_values(HALVES[i]);
        test_ties(HALVES[i]);
        test_special(HALVES[i]);
        test_tensors(HALVES[i]);
        test_ops(HALVES[i]);
        test_model(HALVES[i], true);
        test_model(HALVES[i], false);
    }
    test_large_batch();
    memory_rank_end();
    for (size_t i = 0; i < 2; i++) {
        Element e = HALVES[i];
        Launch launch = { .ranks = 4, .timeout = 60 };
        comm_run(&launch, grid_product, &e);
    }
    return tap_end();
}
