// test_layers.c: compares backward passes with central finite differences of the forward pass.
// Covers most ops of GPT-2, every layer, recomputed blocks and the whole model. Also tests
// accumulation over micro-batches, empty micro-batches, the tied weight, blockwise attention, the
// bytes that a forward pass keeps, and layers wrapped in a wrong order.
//
// ranks: 1
// level: core
// question: Is every backward pass the derivative of its own forward pass?
#include <math.h>
#include "03_tensor_parallel/tensor_parallel.h"
#include "08_3d/zero_step.h"
#include "07_recompute/recompute.h"
#include "common/device/device.h"
#include "common/model/model.h"
#include "common/tensor/random.h"
#include "tap.h"
#include "common/model/attention.h"
#include "judge/frame/lesson.h"

// DERIVATIVE is the largest permitted error of a derivative a against its finite difference b. The
// error is max |a-b| / max(max |b|, 0.001 x the largest |b| of the test). In fp32 the difference of
// two sums has lost half its digits, so fp32 shows only large errors.
#define DERIVATIVE (sizeof(real) == 8 ? 1e-8 : 2e-2)

static Arena storage = { .category = MEM_REFERENCE }; // this file checks no peak of this category

// ---- finite differences ----

// A tensor of up to EVERY elements is tested element by element. A larger tensor is tested along
// MIXTURES random directions.
enum { EVERY = 64, MIXTURES = 8 };
typedef double Function(void); // a number computed from the tensors of static variables

// The errors of each tensor since the last judge().
static struct {
    char name[48];
    double difference, largest;
    size_t ways;
} found[64];
static size_t found_count;
static double worst_of_all;

static double *downloaded(Tensor t) {
    const size_t n = tensor_count(t);
    real *values = host_alloc(n * sizeof *values);
    double *doubles = host_alloc(n * sizeof *doubles);
    tensor_download(values, t);
    for (size_t i = 0; i < n; i++) doubles[i] = values[i];
    free(values);
    return doubles;
}
static void upload_moved(Tensor x, const double *original, const double *v, double h) {
    const size_t n = tensor_count(x);
    real *values = host_alloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = (real)(original[i] + h * v[i]);
    tensor_upload(x, values);
    free(values);
}
static double dot(Tensor a, Tensor b) {
    double *x = downloaded(a), *y = downloaded(b), sum = 0;
    for (size_t i = 0; i < tensor_count(a); i++) sum += x[i] * y[i];
    free(x);
    free(y);
    return sum;
}

// Returns the derivative of f as x moves along v, by differences of fourth order: (8 (f(h) - f(-h))
// - (f(2h) - f(-2h))) / 12h.
static double slope(Function f, Tensor x, const double *original, const double *v) {
    const double h = sizeof(real) == 8 ? 1e-3 : 5e-2, step[] = { h, -h, 2 * h, -2 * h },
                 weight[] = { 8, -8, -1, 1 };
    double sum = 0;
    for (int s = 0; s < 4; s++) {
        upload_moved(x, original, v, step[s]);
        sum += weight[s] * f() / (12 * h);
    }
    upload_moved(x, original, v, 0);
    return sum;
}

static double larger(double a, double b) {
    return isnan(a) || b <= a ? a : b;
} // fmax would forget a NaN

// Compares g, the gradient of f with respect to x that backward computed, with differences of f.
static void differentiate(const char *name, Function f, Tensor x, Tensor g) {
    const size_t n = tensor_count(x), ways = n <= EVERY ? n : MIXTURES;
    double *original = downloaded(x), *gradient = downloaded(g), *v = host_alloc(n * sizeof *v);
    if (found_count == sizeof found / sizeof *found) fault("test_layers: too many tensors");
    snprintf(found[found_count].name, sizeof found->name, "%s", name);
    found[found_count].difference = found[found_count].largest = 0;
    found[found_count].ways = ways;
    for (size_t k = 0; k < ways; k++) {
        double analytic = 0;
        for (size_t i = 0; i < n; i++) {
            v[i] = n <= EVERY ? i == k
                              : random_normal(random_key(random_key(5, k), i)) / sqrt((double)n);
            if (v[i] != 0) analytic += gradient[i] * v[i];
        }
        const double numeric = slope(f, x, original, v);
        found[found_count].difference =
            larger(found[found_count].difference, fabs(analytic - numeric));
        found[found_count].largest = larger(found[found_count].largest, fabs(numeric));
    }
    found_count++;
    free(original);
    free(gradient);
    free(v);
}

static void judge(const char *what) {
    double largest = 0;
    for (size_t i = 0; i < found_count; i++) largest = larger(largest, found[i].largest);
    for (size_t i = 0; i < found_count; i++) {
        const double scale = fmax(found[i].largest, 1e-3 * largest);
        const double error = scale > 0 ? found[i].difference / scale : found[i].difference;
        worst_of_all = larger(worst_of_all, error);
        ok(error <= DERIVATIVE, "%s: %s, %zu %s: %.1e <= %.0e", what, found[i].name, found[i].ways,
           found[i].ways == MIXTURES ? "directions" : "elements", error, DERIVATIVE);
    }
    found_count = 0;
}

static Tensor normal(size_t rows, size_t cols, uint64_t seed) {
    Tensor t = tensor_new(&storage, rows, cols);
    tensor_randomize(t, random_key(77, seed), 1);
    return t;
}
static int *ids(const int *host, size_t n) {
    int *device = ints_new(&storage, n);
    ints_upload(device, host, n);
    return device;
}

// ---- ops: y = op(in), f = sum of dy * y ----

static struct {
    Tensor in[3], y, stats, dy;
    size_t B, heads;
    HeadsPlace at;
    const int *ids;
} op;
static const Dropout mask = { .key = 3, .p = 0.3, .row0 = 2, .col0 = 1 };

static void op_begin(size_t rows, size_t cols) {
    op.y = tensor_new(&storage, rows, cols);
    op.dy = normal(rows, cols, 9);
}
// Checks the given gradients of in[0], in[1], in[2], and frees the tensors.
static void op_end(const char *name, Function f, Tensor d0, Tensor d1, Tensor d2) {
    const Tensor d[] = { d0, d1, d2 };
    const char *const which[] = { "first input", "second input", "third input" };
    for (int i = 0; i < 3; i++)
        if (d[i].data) differentiate(which[i], f, op.in[i], d[i]);
    judge(name);
    arena_free(&storage);
}
static Tensor like(Tensor t) { return tensor_new(&storage, t.rows, t.cols); }
static const Tensor none;

#define OP(name, call) \
    static double name(void) { \
        call; \
        return dot(op.dy, op.y); \
    }
OP(f_matmul, op_matmul(op.y, op.in[0], op.in[1]))
OP(f_matmul_nt, op_matmul_nt(op.y, op.in[0], op.in[1]))
OP(f_matmul_tn, op_matmul_tn(op.y, op.in[0], op.in[1]))
OP(f_add_bias, op_add_bias(op.y, op.in[0], op.in[1]))
OP(f_gelu, op_gelu(op.y, op.in[0]))
OP(f_dropout, op_dropout(op.y, op.in[0], mask))
OP(f_dropout_heads, op_dropout_heads(op.y, op.in[0], 3, 0.3, 4, 1, op.at))
OP(f_layer_norm, op_layer_norm(op.y, op.stats, op.in[0], op.in[1], op.in[2]))
OP(f_scores, op_heads_scores(op.y, op.in[0], op.in[1], op.B, op.heads))
OP(f_mix, op_heads_mix(op.y, op.in[0], op.in[1], op.B, op.heads))
OP(f_mix_t, op_heads_mix_t(op.y, op.in[0], op.in[1], op.B, op.heads))
OP(f_softmax, op_causal_softmax(op.y, op.in[0], (real)0.7, op.at))
OP(f_embed, op_embed_tokens(op.y, op.in[0], op.ids, 2))
OP(f_positions, op_add_positions(op.y, op.in[0], op.in[1], op.ids))

static void test_products(size_t M, size_t K, size_t N) {
    op.in[0] = normal(M, K, 1), op.in[1] = normal(K, N, 2), op_begin(M, N);
    Tensor d0 = like(op.in[0]), d1 = like(op.in[1]);
    op_matmul_nt(d0, op.dy, op.in[1]);
    op_matmul_tn(d1, op.in[0], op.dy);
    op_end("op_matmul", f_matmul, d0, d1, none);

    op.in[0] = normal(M, K, 1), op.in[1] = normal(N, K, 2), op_begin(M, N);
    d0 = like(op.in[0]), d1 = like(op.in[1]);
    op_matmul(d0, op.dy, op.in[1]);
    op_matmul_tn(d1, op.dy, op.in[0]);
    op_end("op_matmul_nt", f_matmul_nt, d0, d1, none);

    op.in[0] = normal(K, M, 1), op.in[1] = normal(K, N, 2), op_begin(M, N);
    d0 = like(op.in[0]), d1 = like(op.in[1]);
    op_matmul_nt(d0, op.in[1], op.dy);
    op_matmul(d1, op.in[0], op.dy);
    op_end("op_matmul_tn", f_matmul_tn, d0, d1, none);
}

static void test_elements(size_t M, size_t N) {
    op.in[0] = normal(M, N, 1), op.in[1] = normal(1, N, 2), op_begin(M, N);
    Tensor d0 = like(op.in[0]), d1 = like(op.in[1]);
    op_sum_rows(d1, op.dy);
    op_end("op_add_bias and op_sum_rows", f_add_bias, op.dy, d1, none);

    op.in[0] = normal(M, N, 1), op_begin(M, N), d0 = like(op.in[0]);
    op_gelu_backward(d0, op.in[0], op.dy);
    op_end("op_gelu_backward", f_gelu, d0, none, none);

    op.in[0] = normal(M, N, 1), op_begin(M, N), d0 = like(op.in[0]);
    op_dropout(d0, op.dy, mask);
    op_end("op_dropout", f_dropout, d0, none, none);
}

static void test_norm(size_t M, size_t N) {
    op.in[0] = normal(M, N, 1), op.in[1] = normal(1, N, 2), op.in[2] = normal(1, N, 3),
    op_begin(M, N);
    op.stats = tensor_new(&storage, M, 2);
    Tensor d0 = like(op.in[0]), d1 = like(op.in[1]), d2 = like(op.in[2]);
    op_layer_norm(op.y, op.stats, op.in[0], op.in[1], op.in[2]);
    op_layer_norm_backward(d0, op.in[0], op.stats, op.in[1], op.dy);
    op_layer_norm_grads(d1, d2, op.in[0], op.stats, op.dy);
    op_end("op_layer_norm_backward and _grads", f_layer_norm, d0, d1, d2);
}

static void test_attention(size_t B, size_t heads, size_t T, size_t D) {
    const size_t M = B * T, P = B * heads * T;
    op.B = B, op.heads = heads, op.at = (HeadsPlace){ .B = B, .heads = heads };
    op.in[0] = normal(M, heads * D, 1), op.in[1] = normal(M, heads * D, 2), op_begin(P, T);
    Tensor d0 = like(op.in[0]), d1 = like(op.in[1]);
    op_heads_mix(d0, op.dy, op.in[1], B, heads);
    op_heads_mix_t(d1, op.dy, op.in[0], B, heads);
    op_end("op_heads_scores", f_scores, d0, d1, none);

    op.in[0] = normal(P, T, 1), op.in[1] = normal(M, heads * D, 2), op_begin(M, heads * D);
    d0 = like(op.in[0]), d1 = like(op.in[1]);
    op_heads_scores(d0, op.dy, op.in[1], B, heads);
    op_heads_mix_t(d1, op.in[0], op.dy, B, heads);
    op_end("op_heads_mix", f_mix, d0, d1, none);

    op.in[0] = normal(P, T, 1), op.in[1] = normal(M, heads * D, 2), op_begin(M, heads * D);
    d0 = like(op.in[0]), d1 = like(op.in[1]);
    op_heads_scores(d0, op.in[1], op.dy, B, heads);
    op_heads_mix(d1, op.in[0], op.dy, B, heads);
    op_end("op_heads_mix_t", f_mix_t, d0, d1, none);

    op.in[0] = normal(P, T, 1), op_begin(P, T), d0 = like(op.in[0]);
    op_causal_softmax(op.y, op.in[0], (real)0.7, op.at);
    op_causal_softmax_backward(d0, op.y, op.dy, (real)0.7, op.at);
    op_end("op_causal_softmax_backward", f_softmax, d0, none, none);

    op.in[0] = normal(P, T, 1), op_begin(P, T), d0 = like(op.in[0]);
    op_dropout_heads(d0, op.dy, 3, 0.3, 4, 1, op.at);
    op_end("op_dropout_heads", f_dropout_heads, d0, none, none);
}

static void test_embedding(void) {
    // Words 2 to 7 are local. Word 5 comes three times. Words 3 and 7 never come.
    static const int tokens[] = { 2, 5, 4, 5, 0, 9, 5, 6 };
    op.in[0] = normal(6, 7, 1), op_begin(8, 7), op.ids = ids(tokens, 8);
    Tensor d0 = like(op.in[0]), d1;
    op_embed_tokens_grad(d0, op.ids, op.dy, 2);
    op_end("op_embed_tokens_grad", f_embed, d0, none, none);

    op.in[0] = normal(8, 7, 1), op.in[1] = normal(5, 7, 2), op_begin(8, 7);
    op.ids = ids((int[]){ 0, 1, 2, 4, 0, 1, 2, 4 }, 8); // row 3 of wpe is not used
    d1 = like(op.in[1]);
    op_add_positions_grad(d1, op.ids, op.dy);
    op_end("op_add_positions_grad", f_positions, op.dy, d1, none);
}

// f_cross_entropy() runs the ops of the loss in the loss layer's order. Some targets do not count.
static Tensor max_of, sum_of, picked_of, logits_of;
static double f_cross_entropy(void) {
    tensor_copy(logits_of, op.in[0]);
    op_row_max(max_of, logits_of);
    op_pick_target(picked_of, logits_of, op.ids, 0);
    op_exp_sum(sum_of, logits_of, max_of);
    op_token_loss(op.y, picked_of, max_of, sum_of, op.ids);
    return dot(op.dy, op.y);
}
static void test_cross_entropy(size_t V) {
    static const int targets[] = { 3, -1, 0, 6, -1, 3 };
    op.in[0] = normal(6, V, 1), op_begin(6, 1), op.ids = ids(targets, 6);
    max_of = like(op.y), sum_of = like(op.y), picked_of = like(op.y), logits_of = like(op.in[0]);
    f_cross_entropy();
    op_cross_entropy_backward(logits_of, sum_of, op.ids, op.dy, 0);
    Tensor d0 = like(op.in[0]);
    tensor_copy(d0, logits_of);
    op_end("op_cross_entropy_backward", f_cross_entropy, d0, none, none);
}

// ---- a model, and the most difficult micro-batches ----

static const ModelConfig small = {
    .layers = 2, .width = 8, .heads = 2, .context = 7, .vocab = 11, .dropout = 0.2, .seed = 3
};
static const ModelConfig wide = {
    .layers = 1, .width = 70, .heads = 2, .context = 40, .vocab = 70, .dropout = 0.1, .seed = 4
}; // more columns than one STRIP (for_each.h), and than a vector has lanes
// In `llama` each head of key and value serves two query heads.
static const ModelConfig llama = { .layers = 2,
                                   .width = 16,
                                   .heads = 4,
                                   .context = 7,
                                   .vocab = 11,
                                   .dropout = 0.2,
                                   .seed = 5,
                                   .norm = NORM_RMS,
                                   .positions = POSITIONS_ROTARY,
                                   .activation = ACTIVATION_SWIGLU,
                                   .biases = BIASES_NONE,
                                   .kv_heads = 2,
                                   .ffn = 10,
                                   .untied = true,
                                   .rope_theta = 100,
                                   .norm_eps = 1e-3 };
// Qwen2 is a Llama with biases of query, key and value.
static const ModelConfig qwen = { .layers = 2,
                                  .width = 8,
                                  .heads = 2,
                                  .context = 7,
                                  .vocab = 11,
                                  .dropout = 0.2,
                                  .seed = 8,
                                  .norm = NORM_RMS,
                                  .positions = POSITIONS_ROTARY,
                                  .activation = ACTIVATION_SWIGLU,
                                  .biases = BIASES_QKV };

// T is less than the context. In some sequences the targets end early, and every fourth sequence
// has no targets.
static Batch batch_of(const ModelConfig *c, size_t first, size_t B) {
    const size_t T = c->context - 2, n = B * T;
    int *tokens = host_alloc((n + 1) * sizeof *tokens),
        *targets = host_alloc((n + 1) * sizeof *targets);
    int *position = host_alloc((n + 1) * sizeof *position);
    for (size_t i = 0; i < n; i++) {
        position[i] = (int)(i % T);
        const size_t sequence = first + i / T, counted = sequence % 4 == 3 ? 0 : T - sequence % 3;
        const uint64_t key = random_key(random_key(8, sequence), i % T);
        tokens[i] = (int)(key % c->vocab);
        targets[i] = i % T < counted ? (int)(random_key(key, 1) % c->vocab) : -1;
    }
    Batch b = { .B = B,
                .T = T,
                .tokens = ids(tokens, n),
                .targets = ids(targets, n),
                .position = ids(position, n),
                .first_sequence = first,
                .step = 3,
                .token_weight = 1 / 17.0,
                .training = true };
    free(tokens);
    free(targets);
    free(position);
    return b;
}

static Model *model_of(const ModelConfig *c, Range layers, Recompute how) {
    Model *m = model_describe(c, layers);
    recompute(m, how);
    model_allocate(m);
    return m;
}
// First fills the gradients with NaN, because gradients may hold anything before they are zeroed.
static void zero(Model *m) {
    for (size_t i = 0; i < m->n_units; i++) tensor_fill(m->units[i].g, (real)NAN);
    model_zero_gradients(m);
}

// Params holds the parameters of a layer or of the whole model. A tied weight's second use counts
// as a separate parameter.
typedef struct {
    Param *of[64];
    size_t count;
} Params;
static void add_unit(Params *p, Unit *u) {
    for (size_t k = 0; k < u->n_params; k++) {
        if (p->count == 64) fault("test_layers: too many parameters");
        p->of[p->count++] = &u->params[k];
    }
}
static Params of_layer(const Layer *l) {
    Params p = { 0 };
    for (size_t i = 0; i < l->n_units; i++) add_unit(&p, l->units[i]);
    return p;
}
static Params of_model(Model *m) {
    Params p = { 0 };
    for (size_t i = 0; i < m->n_units; i++) add_unit(&p, &m->units[i]);
    return p;
}
static Tensor copied(Tensor t) {
    Tensor c = like(t);
    tensor_copy(c, t);
    return c;
}
static bool same_bits(Tensor a, Tensor b) {
    double *x = downloaded(a), *y = downloaded(b);
    const bool same =
        a.rows == b.rows && a.cols == b.cols && memcmp(x, y, tensor_count(a) * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}
static bool all_zero(Tensor t) {
    double *x = downloaded(t);
    bool zero = true;
    for (size_t i = 0; i < tensor_count(t); i++) zero = zero && x[i] == 0;
    free(x);
    return zero;
}

// ---- layers ----

static struct {
    Layer *layer;
    Model *model;
    Batch batch;
    Tensor x, y, dy, dx;
} at;

// Returns x, or for a layer that works in place a copy of x, because the layer overwrites x.
static Tensor input(Arena *a) {
    if (!layer_in_place(at.layer)) return at.x;
    Tensor x = tensor_new(a, at.x.rows, at.x.cols);
    tensor_copy(x, at.x);
    return x;
}
static double f_layer(void) {
    Saved s = saved_new();
    Arena copy = arena(MEM_REFERENCE);
    layer_forward(at.layer, &at.batch, input(&copy), at.y, &s);
    saved_free(&s);
    arena_free(&copy);
    return dot(at.dy, at.y);
}
static void backward(void) {
    Saved s = saved_new();
    Arena copy = arena(MEM_REFERENCE);
    Tensor x = input(&copy);
    layer_forward(at.layer, &at.batch, x, at.y, &s);
    layer_backward(at.layer, &at.batch, x, at.dy, at.dx, &s);
    saved_free(&s);
    arena_free(&copy);
}
static void place(Layer *l, Batch b, uint64_t seed) {
    at.layer = l;
    at.batch = b;
    const Shape in = layer_input(l, &b), out = layer_output(l, &b);
    at.x = l->number ? normal(in.rows, in.cols, seed) : none; // the embedding has no x
    at.dx = l->number ? tensor_shaped(&storage, in) : none;
    at.y = tensor_shaped(&storage, out);
    at.dy = normal(out.rows, out.cols, seed + 1);
}

static void test_layer(const char *what, const ModelConfig *c, Recompute how, size_t number,
                       size_t B, bool training) {
    char title[100];
    Model *m = model_of(c, model_layers(c), how);
    Layer *l = &m->layers[number];
    Batch b = batch_of(c, 2, B);
    b.training = training;
    place(l, b, 1);
    zero(m);
    backward();
    Params p = of_layer(l);
    if (at.x.data) differentiate("x", f_layer, at.x, at.dx);
    for (size_t i = 0; i < p.count; i++)
        differentiate(p.of[i]->name, f_layer, p.of[i]->w, p.of[i]->g);
    snprintf(title, sizeof title, "%s of width %zu, B = %zu%s", what, c->width, B,
             training ? "" : ", no dropout");
    judge(title);
    model_free(m);
    arena_free(&storage);
}

static void test_recomputed(size_t number, Recompute how, const char *what) {
    Tensor want[40];
    size_t n = 0;
    bool same = true;
    for (int run = 0; run < 2; run++) {
        Model *m = model_of(&small, model_layers(&small), run ? how : RECOMPUTE_NONE);
        place(&m->layers[number], batch_of(&small, 2, 3), 1);
        zero(m);
        backward();
        Params p = of_layer(at.layer);
        for (size_t i = 0; i < p.count + 2; i++) {
            Tensor t = i < p.count ? p.of[i]->g : i == p.count ? at.y : at.dx;
            if (run) same = same && same_bits(t, want[i]);
            else want[n++] = copied(t);
        }
        model_free(m);
    }
    ok(same, "%s: y, dx and gradients have the plain block's bits", what);
    arena_free(&storage);
}

static void test_accumulation(const char *what, Recompute how, size_t number) {
    Model *m = model_of(&small, model_layers(&small), how);
    Layer *l = &m->layers[number];
    const Batch part[] = { batch_of(&small, 2, 2), batch_of(&small, 4, 1) };
    Params p = of_layer(l);
    Tensor alone[2][BLOCK_PARAMS];
    for (size_t k = 0; k < 2; k++) {
        zero(m);
        place(l, part[k], 10 * k + 1);
        backward();
        for (size_t i = 0; i < p.count; i++) alone[k][i] = copied(p.of[i]->g);
    }
    zero(m);
    for (size_t k = 0; k < 2; k++) {
        place(l, part[k], 10 * k + 1);
        backward();
    }
    for (size_t i = 0; i < p.count; i++) {
        Tensor sum = like(p.of[i]->g);
        op_add(sum, alone[0][i], alone[1][i]);
        ok(same_bits(p.of[i]->g, sum), "%s: %s of two micro-batches is the sum in every bit", what,
           p.of[i]->name);
    }
    model_free(m);
    arena_free(&storage);
}

static bool are_close(Tensor a, Tensor b) {
    double *x = downloaded(a), *y = downloaded(b), worst = 0;
    for (size_t i = 0; i < tensor_count(a); i++) worst = larger(worst, fabs(x[i] - y[i]));
    free(x);
    free(y);
    return worst <= (sizeof(real) == 8 ? 1e-13 : 1e-5); // limits for values around 1
}

// Compares each of three sequences alone with the same sequence in a batch of three. Both have the
// same dropout masks, because the masks follow from the sequence's global number.
static void test_alone(const char *what, Recompute how, size_t number) {
    Model *m = model_of(&small, model_layers(&small), how);
    place(&m->layers[number], batch_of(&small, 2, 3), 1);
    zero(m);
    backward();
    Tensor x = at.x, y = at.y, dy = at.dy, dx = at.dx;
    bool same = true;
    for (size_t i = 0; i < 3; i++) {
        Batch b = batch_of(&small, 2 + i, 1);
        const size_t lo = i * b.T, hi = lo + b.T;
        place(at.layer, b, 1);
        if (x.data) tensor_copy(at.x, tensor_row_range(x, lo, hi));
        tensor_copy(at.dy, tensor_row_range(dy, lo, hi));
        backward();
        same = same && are_close(at.y, tensor_row_range(y, lo, hi)) &&
               (!x.data || are_close(at.dx, tensor_row_range(dx, lo, hi)));
    }
    ok(same, "%s: a sequence alone has the same y and dx as among other sequences", what);
    model_free(m);
    arena_free(&storage);
}

static void test_masks(void) {
    uint64_t key[64];
    size_t n = 0, equal = 0;
    for (size_t i = 0; i < 64; i++, n++) { // two seeds, two steps, four layers, four sites
        ModelConfig c = small;
        c.seed += i >> 5;
        Layer l = { .config = &c, .number = i >> 2 & 3 };
        key[n] =
            layer_dropout(&l, &(Batch){ .step = i >> 4 & 1, .training = true }, (int)(i & 3)).key;
        for (size_t k = 0; k < n; k++) equal += key[k] == key[n];
    }
    ok(equal == 0, "every seed, step, layer and site has its own dropout masks");
}

static void test_empty(const char *what, Recompute how, size_t number) {
    Model *m = model_of(&small, model_layers(&small), how);
    place(&m->layers[number], batch_of(&small, 2, 0), 1);
    zero(m);
    backward();
    Params p = of_layer(at.layer);
    bool zeros = true;
    for (size_t i = 0; i < p.count; i++) zeros = zeros && all_zero(p.of[i]->g);
    ok(zeros, "%s, B = 0: every gradient is 0", what);
    place(at.layer, batch_of(&small, 2, 2), 1);
    zero(m);
    backward();
    Tensor original[BLOCK_PARAMS];
    for (size_t i = 0; i < p.count; i++) original[i] = copied(p.of[i]->g);
    place(at.layer, batch_of(&small, 2, 0), 1);
    backward();
    bool same = true;
    for (size_t i = 0; i < p.count; i++) same = same && same_bits(original[i], p.of[i]->g);
    ok(same, "%s, B = 0: adds nothing to the gradients", what);
    model_free(m);
    arena_free(&storage);
}

// ---- the whole model ----

static double f_model(void) { return model_loss(at.model, &at.batch) * at.batch.token_weight; }

static void test_model(const ModelConfig *c, Recompute how, size_t B, const char *what) {
    char title[100];
    Model *m = at.model = model_of(c, model_layers(c), how);
    at.batch = batch_of(c, 1, B);
    zero(m);
    const double loss = model_forward_backward(m, &at.batch);
    ok(loss == model_loss(m, &at.batch) && isfinite(loss),
       "%s, B = %zu: model_loss is the same sum", what, B);
    Unit *use = model_wte_head(m);
    if (use) {
        Tensor wte = model_wte(m)->g, head = copied(use->g), sum = like(wte);
        op_add(sum, head, wte);
        model_fold_tied(m);
        ok(same_bits(sum, wte) && same_bits(head, use->g), "%s, B = %zu: tied gradients are added",
           what, B);
        ok(model_wte(m)->w.data == use->w.data, "%s, B = %zu: one weight", what, B);
    }
    Params p = of_model(m);
    for (size_t i = 0; i < p.count; i++)
        if (!use || p.of[i] != use->params)
            differentiate(p.of[i]->name, f_model, p.of[i]->w, p.of[i]->g);
    snprintf(title, sizeof title, "%s of width %zu, B = %zu", what, c->width, B);
    judge(title);
    model_free(m);
    arena_free(&storage);
}

// Walks a part of the model's layers, as a pipeline stage does: blocks, head and loss.
static double f_part(void) {
    walk_forward_only(at.model->layers, at.model->n_layers, &at.batch, at.x, at.y);
    return dot(at.dy, at.y);
}
static void test_part(void) {
    Model *m = at.model = model_of(&small, (Range){ 1, small.layers + 3 }, RECOMPUTE_NONE);
    place(&m->layers[m->n_layers - 1], batch_of(&small, 1, 3), 1);
    const Shape in = layer_input(m->layers, &at.batch);
    at.x = normal(in.rows, in.cols, 1), at.dx = tensor_shaped(&storage, in);
    zero(m);
    memory_reset_peaks();
    ActivationStash *f = walk_forward(m->layers, m->n_layers, &at.batch, at.x, at.y);
    const size_t kept = memory_peak(MEM_ACTIVATIONS);
    Tensor kept_y = copied(at.y);
    walk_backward(m->layers, m->n_layers, &at.batch, f, at.dy, at.dx);
    memory_reset_peaks();
    walk_forward_only(m->layers, m->n_layers, &at.batch, at.x, at.y);
    ok(same_bits(kept_y, at.y), "walk_forward_only gives walk_forward's y");
    ok(memory_peak(MEM_ACTIVATIONS) < kept && memory_now(MEM_ACTIVATIONS) == 0,
       "walk_forward_only keeps nothing: %zu of %zu bytes", memory_peak(MEM_ACTIVATIONS), kept);
    differentiate("x", f_part, at.x, at.dx);
    Params p = of_model(m);
    for (size_t i = 0; i < p.count; i++)
        differentiate(p.of[i]->name, f_part, p.of[i]->w, p.of[i]->g);
    judge("blocks, head and loss");
    model_free(m);
    arena_free(&storage);
}

static void test_model_accumulation(Recompute how, const char *what) {
    Model *m = model_of(&small, model_layers(&small), how);
    const Batch part[] = { batch_of(&small, 0, 2), batch_of(&small, 2, 1), batch_of(&small, 3, 0),
                           batch_of(&small, 3, 3) };
    Params p = of_model(m);
    Tensor sum[64];
    double losses = 0, loss = 0;
    bool same = true;
    for (size_t k = 0; k < 4; k++) {
        zero(m);
        losses += model_forward_backward(m, &part[k]);
        for (size_t i = 0; i < p.count; i++) {
            if (k == 0) sum[i] = copied(p.of[i]->g);
            else op_add(sum[i], sum[i], p.of[i]->g);
        }
    }
    zero(m);
    for (size_t k = 0; k < 4; k++) loss += model_forward_backward(m, &part[k]);
    for (size_t i = 0; i < p.count; i++) same = same && same_bits(sum[i], p.of[i]->g);
    ok(loss == losses, "%s: the loss of four micro-batches is the sum of their losses", what);
    ok(same, "%s: gradients of four micro-batches are sums of finished contributions, in every bit",
       what);
    zero(m);
    ok(model_forward_backward(m, &part[2]) == 0, "%s: the loss of no sequence is 0", what);
    model_fold_tied(m);
    bool zeros = true;
    for (size_t i = 0; i < p.count; i++) zeros = zeros && all_zero(p.of[i]->g);
    ok(zeros, "%s: the gradient of no sequence is 0", what);
    model_free(m);
    arena_free(&storage);
}

// ---- the bytes that forward keeps ----

static void is_bytes(const char *what, size_t got, size_t want) {
    ok(got == want, "%s: %zu bytes, expected %zu", what, got, want);
}
// Returns the bytes that a block keeps for M rows. Norm 1, q, k, v, the heads' mix, the middle and
// norm 2 have C columns each. The MLP has 4C columns before GELU and 4C after it. Two norms keep
// the mean and 1/deviation of each row. Each head keeps its probabilities over T keys, with dropout
// both before and after it.
static size_t block_items(const ModelConfig *c, const Batch *b, bool dropout) {
    const size_t C = c->width, M = b->B * b->T;
    const size_t dense = C + (C + C + C) + C + C + C + (4 * C + 4 * C) + 2 * 2;
    return M * (dense + c->heads * b->T * (dropout ? 2 : 1)) * sizeof(real);
}

static void test_block_memory(Recompute how, bool training, const char *what) {
    Model *m = model_of(&small, model_layers(&small), how);
    Batch b = batch_of(&small, 2, 3);
    b.training = training;
    place(&m->layers[1], b, 1);
    const size_t all = block_items(&small, &b, training), M = b.B * b.T;
    const size_t attention = M * small.heads * b.T * (training ? 2 : 1) * sizeof(real);
    const size_t kept = how == RECOMPUTE_FULL        ? 0
                        : how == RECOMPUTE_SELECTIVE ? all - attention
                                                     : all;
    const size_t gradients = memory_now(MEM_GRADIENTS);
    memory_reset_peaks();
    Saved s = saved_new();
    layer_forward(at.layer, &b, at.x, at.y, &s);
    is_bytes(what, memory_now(MEM_ACTIVATIONS), kept);
    is_bytes("peak of the block while forward runs", memory_peak(MEM_ACTIVATIONS), all);
    memory_reset_peaks();
    layer_backward(at.layer, &b, at.x, at.dy, at.dx, &s);
    is_bytes("peak of the block while backward runs", memory_peak(MEM_ACTIVATIONS), all);
    saved_free(&s);
    is_bytes("activations after backward", memory_now(MEM_ACTIVATIONS), 0);
    is_bytes("workspace after backward", memory_now(MEM_WORKSPACE), 0);
    is_bytes("gradients after backward", memory_now(MEM_GRADIENTS), gradients);
    model_free(m);
    arena_free(&storage);
}

static AttentionHeads heads_of(size_t B, size_t T, double drop, const AttentionKind *kind) {
    return (AttentionHeads){ .B = B,
                             .T = T,
                             .D = 5,
                             .heads = { 1, 4 },
                             .key = 7,
                             .drop = drop,
                             .first_sequence = 3,
                             .kind = kind,
                             .length = T };
}
typedef struct {
    Tensor mix, dqkv;
    size_t kept, workspace;
} Attended;
static Attended attended(AttentionHeads h, double deviation) {
    const size_t M = h.B * h.T, A = range_size(h.heads) * h.D;
    Saved s = saved_new();
    Attended a = { .mix = tensor_new(&storage, M, A), .dqkv = tensor_new(&storage, M, 3 * A) };
    Tensor dmix = normal(M, A, 12);
    s.t[S_QKV] = normal(M, 3 * A, 11);
    op_scale(s.t[S_QKV], s.t[S_QKV], (real)deviation);
    s.t[S_MIX] = a.mix;
    const size_t before = memory_now(MEM_ACTIVATIONS);
    memory_reset_peaks();
    attention_forward(&h, &s);
    a.kept = memory_now(MEM_ACTIVATIONS) - before;
    attention_backward(&h, a.dqkv, dmix, &s);
    a.workspace = memory_peak(MEM_WORKSPACE);
    saved_free(&s);
    return a;
}
static double apart(Tensor a, Tensor b) {
    double *x = downloaded(a), *y = downloaded(b), worst = 0, most = 0;
    for (size_t i = 0; i < tensor_count(a); i++) {
        worst = larger(worst, fabs(x[i] - y[i]));
        most = larger(most, fabs(y[i]));
    }
    free(x);
    free(y);
    return worst / most;
}
// Blockwise attention must keep only one number (lse) per head and token. Apart from positions and
// one number per head and token, the workspace must not grow for sequences longer than a tile.
static void test_blockwise(void) {
    static const double drop[] = { 0, 0.3 }, deviation[] = { 1, 12 };
    for (int d = 0; d < 2; d++)
        for (int l = 0; l < 2; l++) {
            Attended want = attended(heads_of(2, 150, drop[d], NULL), deviation[l]);
            Attended got = attended(heads_of(2, 150, drop[d], &attention_blockwise), deviation[l]);
            // Scores in the hundreds have rounding errors of 1e-7 (in fp32) of their size, which
            // become relative errors of their exp.
            const double limit = (sizeof(real) == 8 ? 1e-11 : 5e-6) * (l ? 100 : 1);
            const double e = larger(apart(got.mix, want.mix), apart(got.dqkv, want.dqkv));
            ok(e <= limit, "blockwise attention equals plain attention, %sdropout%s: %.1e",
               d ? "" : "no ", l ? ", scores of hundreds" : "", e);
            arena_free(&storage);
        }
    size_t kept[3], workspace[3];
    for (int i = 0; i < 3; i++) {
        Attended a = attended(heads_of(1, (size_t)128 << i, 0.3, &attention_blockwise), 1);
        kept[i] = a.kept,
        workspace[i] = a.workspace - ((size_t)128 << i) * (3 * sizeof(real) + sizeof(int));
        is_bytes("kept by blockwise attention: lse", kept[i],
                 ((size_t)128 << i) * 3 * sizeof(real));
        arena_free(&storage);
    }
    ok(workspace[0] == workspace[1] && workspace[1] == workspace[2],
       "blockwise attention: workspace without positions and dot: %zu, %zu, %zu bytes at T = 128, "
       "256, 512",
       workspace[0], workspace[1], workspace[2]);
}

// The list of layers keeps the items that the layers save, and the output of every layer except the
// last. The list holds most when backward starts, or when backward recomputes the last block.
static void test_model_memory(Recompute how, const char *what) {
    const ModelConfig *c = &small;
    Model *m = model_of(c, model_layers(c), how);
    const Batch b = batch_of(c, 2, 3);
    const size_t M = b.B * b.T, outputs = (1 + c->layers) * M * c->width * sizeof(real);
    const size_t head = M * (c->width + 2 + c->vocab + 1) * sizeof(real),
                 block = block_items(c, &b, true);
    const size_t attention = M * c->heads * b.T * 2 * sizeof(real);
    const size_t kept = how == RECOMPUTE_FULL        ? 0
                        : how == RECOMPUTE_SELECTIVE ? block - attention
                                                     : block;
    const size_t extra =
        head > block - kept ? head : block - kept; // the head, or a block that is recomputed
    memory_reset_peaks();
    model_forward_backward(m, &b);
    char title[60];
    snprintf(title, sizeof title, "%s keeps at most", what);
    is_bytes(title, memory_peak(MEM_ACTIVATIONS), outputs + c->layers * kept + extra);
    is_bytes("parameters of the model", memory_now(MEM_PARAMETERS),
             config_parameters(c) * sizeof(real));
    is_bytes("gradients of the model, that of the tied weight twice", memory_now(MEM_GRADIENTS),
             (config_parameters(c) + c->vocab * c->width) * sizeof(real));
    is_bytes("activations of the model in the end", memory_now(MEM_ACTIVATIONS), 0);
    model_free(m);
    arena_free(&storage);
}

// The gradient of the logits [M, V] takes the memory of the logits. So the backward of head and
// loss needs only the head's gradient of norm(x) in addition.
static void test_logits_memory(void) {
    const ModelConfig *c = &small;
    Model *m = model_of(c, (Range){ c->layers + 1, c->layers + 3 }, RECOMPUTE_NONE);
    const Batch b = batch_of(c, 2, 3);
    const size_t M = b.B * b.T, C = c->width;
    Tensor x = normal(M, C, 1), y = tensor_new(&storage, M, 1), dy = normal(M, 1, 2), dx = like(x);
    zero(m);
    ActivationStash *f = walk_forward(m->layers, m->n_layers, &b, x, y);
    is_bytes("head and loss keep", memory_now(MEM_ACTIVATIONS),
             M * (C + 2 + c->vocab + 1) * sizeof(real));
    memory_reset_peaks();
    const size_t before = memory_now(MEM_WORKSPACE);
    walk_backward(m->layers, m->n_layers, &b, f, dy, dx);
    is_bytes("the backward of head and loss also needs", memory_peak(MEM_WORKSPACE) - before,
             M * C * sizeof(real));
    model_free(m);
    arena_free(&storage);
}

// ---- all tests ----

static void test_ops(void) {
    test_products(5, 4, 3);
    test_products(9, 17, 11);
    test_elements(5, 7);
    test_elements(3, 133);
    test_norm(4, 9);
    test_norm(3, 133);
    test_attention(2, 3, 4, 2);
    test_attention(1, 2, 35, 5);
    test_embedding();
    test_cross_entropy(7);
    test_cross_entropy(70);
}

static void test_layers(void) {
    test_blockwise();
    static const struct {
        const char *what;
        Recompute how;
        size_t number;
    } layer[] = {
        { "embedding", RECOMPUTE_NONE, 0 },
        { "block", RECOMPUTE_NONE, 2 },
        { "head", RECOMPUTE_NONE, 3 },
        { "loss", RECOMPUTE_NONE, 4 },
        { "recomputed block", RECOMPUTE_FULL, 2 },
        { "selectively recomputed block", RECOMPUTE_SELECTIVE, 2 },
    };
    for (size_t i = 0; i < sizeof layer / sizeof *layer; i++) {
        test_layer(layer[i].what, &small, layer[i].how, layer[i].number, 1, true);
        test_layer(layer[i].what, &small, layer[i].how, layer[i].number, 3, true);
        test_layer(layer[i].what, &small, layer[i].how, layer[i].number, 2, false);
        test_layer(layer[i].what, &llama, layer[i].how, layer[i].number, 2, true);
        test_layer(layer[i].what, &qwen, layer[i].how, layer[i].number, 2, true);
        test_layer(layer[i].what, &wide, layer[i].how, layer[i].number - (layer[i].number > 1), 2,
                   true);
        test_accumulation(layer[i].what, layer[i].how, layer[i].number);
        test_empty(layer[i].what, layer[i].how, layer[i].number);
        test_alone(layer[i].what, layer[i].how, layer[i].number);
    }
    test_masks();
    test_recomputed(1, RECOMPUTE_FULL, "full recomputation");
    test_recomputed(1, RECOMPUTE_SELECTIVE, "selective recomputation");
}

// Gives c one of the settings in which GPT-2 and Llama differ, as in *from. For grouped heads c
// gets half as many key heads as query heads, because the two models have different numbers of
// heads.
typedef enum { NORM, POSITIONS, ACTIVATION, KEY_HEADS, TABLE, BIASES, CHANGES } Change;
static void take(ModelConfig *c, Change change, const ModelConfig *from) {
    switch (change) {
    case NORM: c->norm = from->norm; break;
    case POSITIONS: c->positions = from->positions; break;
    case ACTIVATION:
        c->activation = from->activation;
        c->ffn = from->ffn;
        break;
    case KEY_HEADS: c->kv_heads = from->kv_heads ? c->heads / 2 : 0; break;
    case TABLE: c->untied = from->untied; break;
    case BIASES: c->biases = from->biases; break;
    case CHANGES: break;
    }
}
static void test_changes(void) {
    static const char *const name[CHANGES] = { "RMS norm",      "rotary positions", "SwiGLU",
                                               "grouped heads", "an untied head",   "no biases" };
    for (Change change = 0; change < CHANGES; change++) {
        ModelConfig with = small, without = llama;
        char what[60];
        take(&with, change, &llama);
        take(&without, change, &small);
        snprintf(what, sizeof what, "GPT-2 with %s", name[change]);
        test_model(&with, RECOMPUTE_NONE, 2, what);
        snprintf(what, sizeof what, "Llama without %s", name[change]);
        test_model(&without, RECOMPUTE_NONE, 2, what);
    }
}

static void test_models(void) {
    static const struct {
        Recompute how;
        const char *what;
    } kind[] = {
        { RECOMPUTE_NONE, "model" },
        { RECOMPUTE_FULL, "recomputed model" },
        { RECOMPUTE_SELECTIVE, "selectively recomputed model" },
    };
    for (size_t i = 0; i < 3; i++) {
        test_model(&small, kind[i].how, 1, kind[i].what);
        test_model(&small, kind[i].how, 3, kind[i].what);
        test_model(&llama, kind[i].how, 2, kind[i].what);
        test_model(&qwen, kind[i].how, 2, kind[i].what);
        test_model_accumulation(kind[i].how, kind[i].what);
        test_model_memory(kind[i].how, kind[i].what);
    }
    test_changes();
    test_part();
    test_logits_memory();
    test_block_memory(RECOMPUTE_NONE, true, "a block keeps");
    test_block_memory(RECOMPUTE_NONE, false, "a block without dropout keeps");
    test_block_memory(RECOMPUTE_SELECTIVE, true, "a selectively recomputed block keeps");
    test_block_memory(RECOMPUTE_FULL, true, "a recomputed block keeps");
}

// ---- layers wrapped in a wrong order, which would lose a technique ----

static void as_rank(void (*body)(Comm *world, Model *m)) {
    Launch launch = { .ranks = 1, .timeout = 60 }; // virtual ranks
    device_init();
    comm_run(&launch, (void (*)(Comm *, void *))body, model_describe(&small, model_layers(&small)));
}
static void cut_recomputed(Comm *world, Model *m) {
    recompute(m, RECOMPUTE_FULL), tensor_parallel(m, world);
}
static void cut_pair(Comm *world, Model *m) {
    recompute_wrap_range(m, 1, 2), tensor_parallel(m, world);
}
static void cut_sharded(Comm *world, Model *m) {
    zero_allocate(m, world, 3), tensor_parallel(m, world);
}
static void pair_recomputed(Comm *world, Model *m) {
    (void)world, recompute_wrap_range(m, 1, 2), recompute(m, 1);
}
static void pair_past_end(Comm *world, Model *m) {
    (void)world, recompute_wrap_range(m, m->n_layers - 1, 2);
}
static void halves_ahead(Comm *world, Model *m) {
    prefetch_allocate(m, world, true);
    layer_backward_inputs(&m->layers[1], NULL, (Tensor){ 0 }, (Tensor){ 0 }, (Tensor){ 0 }, NULL);
}
static void cut_allocated(Comm *world, Model *m) { model_allocate(m), tensor_parallel(m, world); }
static void recomputed_sharded(Comm *world, Model *m) {
    zero_allocate(m, world, 2), recompute(m, RECOMPUTE_SELECTIVE);
}
static void recomputed_ahead(Comm *world, Model *m) {
    prefetch_allocate(m, world, true), recompute(m, RECOMPUTE_FULL);
}
static void prefetched_twice(Comm *world, Model *m) {
    zero_allocate(m, world, 3), prefetch_allocate(m, world, true);
}
static void recomputed_twice(Comm *world, Model *m) {
    (void)world, recompute(m, 1), recompute(m, 2);
}
static void allocated_twice(Comm *world, Model *m) {
    model_allocate(m), zero_allocate(m, world, 1);
}
static void right_order(Comm *world, Model *m) {
    tensor_parallel(m, world);
    recompute(m, RECOMPUTE_FULL);
    zero_allocate(m, world, 3);
    model_free(m);
}
static void right_order_ahead(Comm *world, Model *m) {
    tensor_parallel(m, world);
    recompute(m, RECOMPUTE_FULL);
    prefetch_allocate(m, world, true);
    prefetch_free(m);
    model_free(m);
}
static void right_order_ahead_(void) { as_rank(right_order_ahead); }
static void cut_recomputed_(void) { as_rank(cut_recomputed); }
static void cut_pair_(void) { as_rank(cut_pair); }
static void cut_sharded_(void) { as_rank(cut_sharded); }
static void pair_recomputed_(void) { as_rank(pair_recomputed); }
static void pair_past_end_(void) { as_rank(pair_past_end); }
static void halves_ahead_(void) { as_rank(halves_ahead); }
static void cut_allocated_(void) { as_rank(cut_allocated); }
static void recomputed_sharded_(void) { as_rank(recomputed_sharded); }
static void recomputed_ahead_(void) { as_rank(recomputed_ahead); }
static void prefetched_twice_(void) { as_rank(prefetched_twice); }
static void recomputed_twice_(void) { as_rank(recomputed_twice); }
static void allocated_twice_(void) { as_rank(allocated_twice); }
static void right_order_(void) { as_rank(right_order); }

static void test_order(void) {
    ends(cut_recomputed_, 3, "tensor_parallel() of layer 1 (recomputed): it cuts plain layers");
    ends(cut_pair_, 3, "tensor_parallel() of layer 1 (recomputed range): it cuts plain layers");
    ends(cut_sharded_, 3, "tensor_parallel() of layer 0 (ZeRO-3 layer): it cuts plain layers");
    ends(pair_recomputed_, 3, "recompute() of layer 1 (recomputed range)");
    ends(pair_past_end_, 3, "they must be neighbours in one chunk");
    ends(halves_ahead_, 3, "layer 1 (ZeRO-3 layer, prefetch): its backward has no halves");
    ends(cut_allocated_, 3, "tensor_parallel() of layer 0 (embedding, with weights)");
    ends(recomputed_sharded_, 3, "recompute() of layer 1 (ZeRO-2 layer)");
    ends(recomputed_ahead_, 3, "recompute() of layer 1 (ZeRO-3 layer, prefetch)");
    ends(prefetched_twice_, 3, "prefetch_allocate() of a model that is allocated");
    ends(recomputed_twice_, 3, "recompute() of layer 1 (");
    ends(allocated_twice_, 3, "zero_allocate() of a model that is allocated");
    ends(right_order_, 0, "");
    ends(right_order_ahead_, 0, "");
}

int main(void) {
    // Runs first, because a process that has used a GPU cannot fork a process that uses the GPU.
    test_order();
    device_init();
    memory_rank_begin();
    test_ops();
    test_layers();
    test_models();
    printf("# worst: %.1e of a derivative\n", worst_of_all);
    memory_rank_end();
    return tap_end();
}
