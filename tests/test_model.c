// test_model.c: tests ranges, cuts of parameters and the map to whole tensors, initial weights,
// sizes, and the loss (against plain loops). Also tests gradient norm and clipping, the optimizer
// over shards, the order of data, and the size of a snapshot.
//
// ranks: 1
// level: core
// question: Do all parts of a model, a step and a batch add up to the whole?
#include <math.h>
#include "common/model/data.h"
#include "common/device/device.h"
#include "judge/frame/frame.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"
#include "judge/frame/training.h"
#include "common/tensor/random.h"
#include "tap.h"

static Arena storage = { .category = MEM_REFERENCE };
static const ModelConfig small = {
    .layers = 2, .width = 8, .heads = 2, .context = 7, .vocab = 11, .dropout = 0.2, .seed = 3
};

static real *downloaded(Tensor t) {
    real *values = host_alloc(tensor_count(t) * sizeof *values);
    tensor_download(values, t);
    return values;
}
static bool same_bits(Tensor a, Tensor b) {
    real *x = downloaded(a), *y = downloaded(b);
    const bool same =
        tensor_count(a) == tensor_count(b) && memcmp(x, y, tensor_count(a) * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}
static Tensor copied(Tensor t) {
    Tensor c = tensor_new(&storage, t.rows, t.cols);
    tensor_copy(c, t);
    return c;
}
static Model *whole_model(const ModelConfig *c) {
    Model *m = model_describe(c, model_layers(c));
    model_allocate(m);
    return m;
}
// Fills the gradients with random values, also those of the tied weight's second use.
static void randomize_gradients(Model *m, uint64_t seed) {
    for (size_t i = 0; i < m->n_units; i++) tensor_randomize(m->units[i].g, random_key(seed, i), 1);
}

// ---- ranges ----

static void no_such_part(void) { shard_range(10, 3, 3); }

static void test_ranges(void) {
    bool adjoin = true, even = true, larger_first = true;
    for (size_t n = 0; n <= 40; n++)
        for (size_t parts = 1; parts <= 11; parts++) {
            size_t at = 0, before = SIZE_MAX;
            for (size_t i = 0; i < parts; i++) {
                const Range r = shard_range(n, parts, i);
                adjoin = adjoin && r.lo == at && r.hi >= r.lo;
                even = even && (range_size(r) == n / parts || range_size(r) == ceil_div(n, parts));
                larger_first = larger_first && range_size(r) <= before;
                at = r.hi;
                before = range_size(r);
            }
            adjoin = adjoin && at == n;
        }
    ok(adjoin, "shard_range: parts adjoin and cover everything");
    ok(even, "shard_range: sizes differ by at most one");
    ok(larger_first, "shard_range: the larger parts come first");
    ends(no_such_part, 3, "there is no part 3 of 3");
}

// ---- the place of a local element in the whole tensor ----

// Computes the map of param_global_index again, with loops over rows, blocks and columns.
static size_t by_loops(const Param *p, size_t *index) {
    size_t n = 0;
    for (size_t r = 0; r < p->rows; r++)
        for (size_t c = 0; c < p->cols; c++) {
            const size_t narrow = p->cols / (p->blocks + p->ratio - 1);
            // The wide block has `ratio` columns for each column of a narrow block.
            const bool first = c < p->ratio * narrow;
            const size_t in_block = first ? c / p->ratio : c % narrow;
            if (r >= p->own_rows.lo && r < p->own_rows.hi && in_block >= p->own_cols.lo &&
                in_block < p->own_cols.hi)
                index[n++] = r * p->cols + c;
        }
    return n;
}

// Returns part (i, j) of a tensor that row_parts x col_parts ranks share.
static Param part_of(Param p, size_t row_parts, size_t i, size_t col_parts, size_t j) {
    p.own_rows = shard_range(p.rows, row_parts, i);
    p.own_cols = shard_range(p.cols / (p.blocks + p.ratio - 1), col_parts, j);
    p.offset = 0;
    return p;
}

static void test_cut_grouped(size_t rows, size_t cols, size_t blocks, size_t ratio,
                             size_t row_parts, size_t col_parts) {
    const Param whole = param_describe_grouped("", rows, cols, blocks, ratio);
    const size_t all = whole.rows * whole.cols;
    size_t *hits = host_alloc(all * sizeof *hits), *index = host_alloc(all * sizeof *index),
           total = 0;
    bool in_place = true, once = true;
    for (size_t part = 0; part < row_parts * col_parts; part++) {
        const Param p = part_of(whole, row_parts, part / col_parts, col_parts, part % col_parts);
        const size_t n = param_local_rows(&p) * param_local_cols(&p);
        in_place = in_place && by_loops(&p, index) == n;
        for (size_t e = 0; in_place && e < n; e++) {
            in_place = param_global_index(&p, e) == index[e];
            hits[index[e]]++;
        }
        in_place = in_place && param_is_whole(&p) == (row_parts * col_parts == 1);
        total += n;
    }
    for (size_t i = 0; i < all; i++) once = once && hits[i] == 1;
    ok(in_place && once && total == all,
       "[%zu, %zu], %zu blocks, cut in %zu x %zu: each element once, "
       "in place",
       rows, cols, blocks, row_parts, col_parts);
    free(hits);
    free(index);
}

static void test_cut(size_t rows, size_t cols, size_t blocks, size_t row_parts, size_t col_parts) {
    test_cut_grouped(rows, cols, blocks, 1, row_parts, col_parts);
}

static void test_cuts(void) {
    test_cut(5, 12, 3, 1, 1);
    for (size_t parts = 2; parts <= 5; parts++) {
        test_cut(7, 5, 1, parts, 1);
        test_cut(3, 11, 1, 1, parts);
        test_cut(4, 12, 3, 1, parts); // q | k | v, 4 columns each: with 5 parts one is empty
        test_cut(0, 21, 3, 1, parts); // the bias of q, k and v, a vector
        test_cut(7, 12, 3, 2, parts); // both directions at once
        test_cut(7, 15, 3, parts, 3);
        test_cut_grouped(4, 20, 3, 3, 1,
                         parts); // grouped heads: q is three times as wide as k and v
        test_cut_grouped(7, 24, 3, 4, 2, parts);
    }
}

static void test_add_gradient(void) {
    Param p = param_describe("", 3, 4, 1);
    Tensor ones = tensor_new(&storage, 3, 4), twos = tensor_new(&storage, 3, 4);
    p.g = tensor_new(&storage, 3, 4);
    p.gradient_empty = true;
    tensor_fill(ones, 1);
    tensor_fill(twos, 2);
    param_add_gradient(&p, twos);
    const bool first = same_bits(p.g, twos) && !p.gradient_empty;
    param_add_gradient(&p, ones);
    ok(first && tensor_sum(p.g) == 3 * 12,
       "param_add_gradient: the first contribution overwrites, others are added");
}

// ---- initial weights ----

static void test_initial_weights(void) {
    Model *m = whole_model(&small);
    Unit *u = model_unit(m, "h.1.ln_1.weight");
    bool same = true;
    for (size_t parts = 1; parts <= 7; parts += 2)
        for (size_t i = 0; i < parts; i++) {
            const Range r = shard_range(u->size, parts, i);
            Tensor part = tensor_new(&storage, 1, range_size(r));
            unit_initialize(u, part, r, small.seed);
            same = same && same_bits(part, tensor_flat_range(u->w, r.lo, r.hi));
        }
    ok(same, "unit_initialize: a range of a unit is the same range of the whole");
    real *whole = downloaded(u->params[QKV_W].w);
    for (size_t i = 0; i < 6; i++) { // 2 parts of the rows x 3 parts of the columns of q, k, v
        Param p = part_of(u->params[QKV_W], 2, i / 3, 3, i % 3);
        Unit cut = { .params = &p, .n_params = 1 };
        const size_t n = param_local_rows(&p) * param_local_cols(&p);
        Tensor t = tensor_new(&storage, 1, n);
        unit_initialize(&cut, t, (Range){ 0, n }, small.seed);
        real *values = downloaded(t);
        for (size_t e = 0; e < n; e++) same = same && values[e] == whole[param_global_index(&p, e)];
        free(values);
    }
    ok(same, "unit_initialize: a tensor cut in both directions is its part of the whole");
    free(whole);
    Tensor other = tensor_new(&storage, 1, u->size);
    unit_initialize(u, other, u->own, small.seed + 1);
    ok(!same_bits(other, u->w), "unit_initialize: another seed gives other weights");
    ok(!same_bits(model_unit(m, "h.0.ln_1.weight")->w, u->w),
       "unit_initialize: another block has other weights");
    model_free(m);
    arena_free(&storage);
}

// Initial biases are not zero, because many faults show only with nonzero biases.
static void test_distribution(void) {
    const ModelConfig c = {
        .layers = 2, .width = 48, .heads = 2, .context = 64, .vocab = 100, .seed = 1
    };
    Model *m = whole_model(&c);
    bool means = true, deviations = true, zeros = false;
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params; k++) {
            const Param *p = &m->units[i].params[k];
            const bool gain = p->vector && strstr(p->name, ".weight");
            const bool into_residual = strstr(p->name, "c_proj.weight");
            const double n = (double)tensor_count(p->w),
                         want = 0.02 * sqrt(768.0 / 48) / (into_residual ? 2 : 1);
            const double mean = tensor_sum(p->w) / n,
                         deviation = sqrt(tensor_sum_of_squares(p->w) / n - mean * mean);
            means = means && fabs(mean - gain) < 5 * want / sqrt(n);
            deviations = deviations && fabs(deviation / want - 1) < 5 / sqrt(2 * n);
            real *values = downloaded(p->w);
            for (size_t e = 0; e < tensor_count(p->w); e++) zeros = zeros || values[e] == 0;
            free(values);
        }
    ok(means, "initial weights: gains around 1, all others around 0");
    ok(deviations,
       "initial weights: deviation 0.02 sqrt(768 / C), into the residual 1 / sqrt(2 L) of that");
    ok(!zeros, "initial weights: no weight is zero, biases included");
    model_free(m);
}

// Returns the value of an element from the element's place in the whole tensor, for unit_fill().
static real its_place(void *scale, const Param *p, size_t global_index) {
    return (real)(*(double *)scale * (double)(1000 * p->number + global_index));
}
static void no_state(void) {
    Model *m = model_describe(&small, model_layers(&small));
    model_measure(m);
    unit_own(&m->units[0], UNIT_M);
}
static void test_fill(void) {
    Param p[2] = { part_of(param_describe("a", 5, 6, 3), 2, 1, 2, 0),
                   param_describe("b", 0, 4, 1) };
    p[0].number = 7, p[1].number = 8;
    p[1].offset = param_local_rows(&p[0]) * param_local_cols(&p[0]);
    const Unit u = { .params = p, .n_params = 2, .size = p[1].offset + 4 };
    Tensor t = tensor_new(&storage, 1, 5);
    double half = 0.5;
    // Parameter a is 5 x 6, with three groups of two columns. This rank's part is rows 3 and 4, and
    // one column of each group.
    unit_fill(&u, t, (Range){ 4, 9 }, its_place, &half);
    real *values = downloaded(t);
    const double want[] = { 7026, 7028, 8000, 8001, 8002 };
    bool same = true;
    for (size_t i = 0; i < 5; i++) same = same && (double)values[i] == want[i] / 2;
    ok(same, "unit_fill: each element depends on its parameter and place");
    free(values);
    arena_free(&storage);
    ends(no_state, 3, "has no m: allocate");
}

// ---- sizes ----

static void test_sizes(size_t L, size_t C, size_t heads, size_t T, size_t V, bool llama) {
    ModelConfig c = { .layers = L, .width = C, .heads = heads, .context = T, .vocab = V };
    if (llama) {
        config_family(&c, FAMILY_LLAMA);
        c.kv_heads = 1;
        c.ffn = C + 3;
        c.untied = true;
    }
    Model *m = model_describe(&c, model_layers(&c));
    model_measure(m);
    size_t *seen = host_alloc(config_tensors(&c) * sizeof *seen), elements = 0, wrong = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        size_t size = 0;
        for (size_t k = 0; k < u->n_params; k++) {
            const Param *p = &u->params[k];
            const bool matrix = strstr(p->name, ".weight") && !strstr(p->name, "ln_");
            wrong += p->number >= config_tensors(&c) || p->offset != size || p->decay != matrix ||
                     p->vector == matrix || (p->vector && p->rows != 1);
            if (!u->tied_to && p->number < config_tensors(&c)) seen[p->number]++;
            size += p->rows * p->cols;
        }
        wrong += size != u->size;
        if (!u->tied_to) elements += u->size;
    }
    for (size_t i = 0; i < config_tensors(&c); i++) wrong += seen[i] != 1;
    ok(config_is_gpt2(&c) == !llama && (model_wte_head(m) == NULL) == llama,
       "config_is_gpt2: a Llama is no GPT-2");
    ok(elements == config_parameters(&c) && elements == m->size,
       "L %zu, C %zu: %zu parameters, as config_parameters", L, C, elements);
    ok(wrong == 0, "L %zu, C %zu: %zu tensors, each number once", L, C, config_tensors(&c));
    model_free(m);
    free(seen);
}

// The last stage has the head and the loss.
static Range stage_layers(size_t stages, size_t s) {
    Range r = shard_range(small.layers + 2, stages, s);
    return (Range){ r.lo, r.hi + (s + 1 == stages) };
}
static void test_stages(size_t stages) {
    size_t elements = 0;
    for (size_t s = 0; s < stages; s++) {
        Model *m = model_describe(&small, stage_layers(stages, s));
        model_measure(m);
        elements += m->size;
        ok((s == 0) == (model_wte(m) != NULL) && (s + 1 == stages) == (model_wte_head(m) != NULL) &&
               (s + 1 < stages || model_wte_head(m)->tied_copy),
           "stage %zu of %zu: wte at the ends only", s, stages);
        model_free(m);
    }
    ok(elements == config_parameters(&small) + small.vocab * small.width,
       "%zu stages hold the model and a copy of wte", stages);
}

static void no_layer(void) {
    config_require(&(ModelConfig){ .width = 8, .heads = 2, .context = 4, .vocab = 9 });
}
static void odd_heads(void) {
    config_require(&(ModelConfig){ .layers = 1, .width = 8, .heads = 3, .context = 4, .vocab = 9 });
}
static void all_dropped(void) {
    config_require(&(ModelConfig){
        .layers = 1, .width = 8, .heads = 2, .context = 4, .vocab = 9, .dropout = 1 });
}
static void odd_pairs(void) {
    config_require(&(ModelConfig){ .layers = 1,
                                   .width = 9,
                                   .heads = 3,
                                   .context = 4,
                                   .vocab = 9,
                                   .positions = POSITIONS_ROTARY });
}
static void odd_groups(void) {
    config_require(&(ModelConfig){
        .layers = 1, .width = 12, .heads = 3, .context = 4, .vocab = 9, .kv_heads = 2 });
}
static void not_a_number(void) {
    config_require(&(ModelConfig){
        .layers = 1, .width = 8, .heads = 2, .context = 4, .vocab = 9, .dropout = NAN });
}

// ---- the model's result: GPT-2's loss computed again, in plain loops and in double ----

static const Model *plain; // the model with the weights
static double weight(const char *name, size_t i) {
    for (size_t u = 0; u < plain->n_units; u++)
        for (size_t k = 0; k < plain->units[u].n_params; k++) {
            const Param *p = &plain->units[u].params[k];
            if (strcmp(p->name, name)) continue;
            real value;
            tensor_download(&value, tensor_flat_range(tensor_reshape(p->w, 1, p->rows * p->cols), i,
                                                      i + 1));
            return value;
        }
    fault("test_model: there is no %s", name);
}
static double weight_of(size_t block, const char *name, size_t i) {
    char full[60];
    snprintf(full, sizeof full, "h.%zu.%s", block, name);
    return weight(full, i);
}
enum {
    C = 8,
    HEADS = 2,
    D = C / HEADS,
    T = 5,
    V = 11
}; // sizes of `small`; T is less than its context

static void plain_norm(double y[C], const double x[C], size_t block, const char *name) {
    char gain[40], bias[40];
    snprintf(gain, sizeof gain, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    double mean = 0, variance = 0;
    for (size_t c = 0; c < C; c++) mean += x[c] / C;
    for (size_t c = 0; c < C; c++) variance += (x[c] - mean) * (x[c] - mean) / C;
    for (size_t c = 0; c < C; c++) {
        const double g = block < 2 ? weight_of(block, gain, c) : weight(gain, c);
        y[c] = (x[c] - mean) / sqrt(variance + 1e-5) * g +
               (block < 2 ? weight_of(block, bias, c) : weight(bias, c));
    }
}
static void plain_linear(double *y, const double *x, size_t K, size_t N, size_t block,
                         const char *name) {
    char w[40], bias[40];
    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    for (size_t n = 0; n < N; n++) {
        y[n] = weight_of(block, bias, n);
        for (size_t k = 0; k < K; k++) y[n] += x[k] * weight_of(block, w, k * N + n);
    }
}
// Computes the attention's output at position t from positions 0 to t. A row holds q, then k, then
// v; in each of them the heads are side by side.
static void plain_attention(double mix[C], double qkv[T][3 * C], size_t t) {
    for (size_t h = 0; h < HEADS; h++) {
        double p[T], sum = 0;
        for (size_t s = 0; s <= t; s++) {
            double dot = 0;
            for (size_t d = 0; d < D; d++) dot += qkv[t][h * D + d] * qkv[s][C + h * D + d];
            sum += p[s] = exp(dot / sqrt(D));
        }
        for (size_t d = 0; d < D; d++) {
            mix[h * D + d] = 0;
            for (size_t s = 0; s <= t; s++)
                mix[h * D + d] += p[s] / sum * qkv[s][2 * C + h * D + d];
        }
    }
}
static void plain_block(double x[T][C], size_t block) {
    double norm[C], qkv[T][3 * C], mix[C], y[C], wide[4 * C];
    for (size_t t = 0; t < T; t++) {
        plain_norm(norm, x[t], block, "ln_1");
        plain_linear(qkv[t], norm, C, 3 * C, block, "attn.c_attn");
    }
    for (size_t t = 0; t < T; t++) {
        plain_attention(mix, qkv, t);
        plain_linear(y, mix, C, C, block, "attn.c_proj");
        for (size_t c = 0; c < C; c++) x[t][c] += y[c];
        plain_norm(norm, x[t], block, "ln_2");
        plain_linear(wide, norm, C, 4 * C, block, "mlp.c_fc");
        for (size_t c = 0; c < 4 * C; c++)
            wide[c] *= 0.5 * (1 + tanh(0.79788456080286536 *
                                       (wide[c] + 0.044715 * wide[c] * wide[c] * wide[c])));
        plain_linear(y, wide, 4 * C, C, block, "mlp.c_proj");
        for (size_t c = 0; c < C; c++) x[t][c] += y[c];
    }
}
static double plain_loss(const int *tokens, const int *targets) {
    double x[T][C], norm[C], loss = 0;
    for (size_t t = 0; t < T; t++)
        for (size_t c = 0; c < C; c++)
            x[t][c] =
                weight("wte.weight", (size_t)tokens[t] * C + c) + weight("wpe.weight", t * C + c);
    for (size_t block = 0; block < 2; block++) plain_block(x, block);
    for (size_t t = 0; t < T; t++) {
        double sum = 0, target = 0;
        plain_norm(norm, x[t], 2, "ln_f");
        for (size_t v = 0; v < V; v++) {
            double logit = 0;
            for (size_t c = 0; c < C; c++) logit += norm[c] * weight("wte.weight", v * C + c);
            sum += exp(logit);
            if ((int)v == targets[t]) target = logit;
        }
        if (targets[t] >= 0) loss += log(sum) - target;
    }
    return loss;
}

static void test_forward(void) {
    static const int tokens[2][T] = { { 3, 0, 10, 3, 7 }, { 1, 2, 2, 9, 4 } };
    static const int targets[2][T] = { { 0, 10, 3, 7, 5 }, { 2, 2, 9, -1, -1 } };
    Model *m = whole_model(&small);
    plain = m;
    static const int positions[2 * T] = { 0, 1, 2, 3, 4, 0, 1, 2, 3, 4 };
    int *on_device = ints_new(&storage, 2 * T), *their_targets = ints_new(&storage, 2 * T);
    int *their_positions = ints_new(&storage, 2 * T);
    ints_upload(their_positions, positions, 2 * T);
    ints_upload(on_device, &tokens[0][0], 2 * T);
    ints_upload(their_targets, &targets[0][0], 2 * T);
    const Batch b = { .B = 2,
                      .T = T,
                      .tokens = on_device,
                      .targets = their_targets,
                      .position = their_positions,
                      .token_weight = 1 };
    const double want = plain_loss(tokens[0], targets[0]) + plain_loss(tokens[1], targets[1]),
                 got = model_loss(m, &b);
    const double limit = sizeof(real) == 8 ? 1e-13 : 1e-6;
    ok(fabs(got / want - 1) < limit, "the loss is GPT-2's: %.9f, expected %.9f", got, want);
    model_free(m);
    arena_free(&storage);
}

static void test_logits(void) {
    Data d = data_synthetic(small.vocab, small.context, 5);
    Model *m = whole_model(&small);
    const Batch b = data_batch(&d, &storage, 1, 2, 3, 9);
    const size_t V = small.vocab, M = b.B * b.T;
    const Shape s = layer_output(&m->layers[small.layers + 1], &b);
    ok(s.rows == M && s.cols == V, "the head's output is [%zu, %zu], [B*T, V]", s.rows, s.cols);
    Tensor y = tensor_shaped(&storage, s), none = { 0 };
    walk_forward_only(m->layers, small.layers + 2, &b, none, y);
    real *logits = downloaded(y);
    int *targets = host_alloc(M * sizeof *targets);
    device_download(targets, b.targets, M * sizeof *targets);
    double want = 0, some = 0;
    for (size_t r = 0; r < M; r++) {
        double sum = 0;
        for (size_t v = 0; v < V; v++) sum += exp((double)logits[r * V + v]);
        if (targets[r] < 0) continue;
        const double p = exp((double)logits[r * V + (size_t)targets[r]]) / sum;
        want -= log(p);
        some += p != 1.0 / (double)V;
    }
    const double got = model_loss(m, &b), limit = sizeof(real) == 8 ? 1e-13 : 1e-6;
    ok(some > 0 && fabs(got / want - 1) < limit,
       "softmax of the logits gives the loss: %.9f, expected %.9f", got, want);
    free(logits);
    free(targets);
    model_free(m);
    arena_free(&storage);
    data_free(&d);
}

// ---- gradient norm ----

static double plain_squares(Tensor t) {
    real *values = downloaded(t);
    double sum = 0;
    for (size_t i = 0; i < tensor_count(t); i++) sum += (double)values[i] * (double)values[i];
    free(values);
    return sum;
}
static void own_range(Model *m, size_t parts, size_t part) {
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        u->own = shard_range(u->size, parts, part);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
        u->own_g = tensor_flat_range(u->g, u->own.lo, u->own.hi);
    }
}

static void test_norm(void) {
    Model *m = whole_model(&small);
    const size_t n = config_tensors(&small);
    double *squares = host_alloc(n * sizeof *squares), *parts = host_alloc(n * sizeof *parts);
    randomize_gradients(m, 1);
    model_grad_squares(m, squares);
    bool close = true, whole = true;
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params && !m->units[i].tied_to; k++) {
            const Param *p = &m->units[i].params[k];
            close = close && fabs(squares[p->number] / plain_squares(p->g) - 1) < 1e-12;
        }
    ok(close, "model_grad_squares: per tensor, wte by the embedding's gradient");
    for (size_t part = 0; part < 5; part++) {
        double *some = host_alloc(n * sizeof *some);
        own_range(m, 5, part);
        model_grad_squares(m, some);
        for (size_t i = 0; i < n; i++) parts[i] += some[i];
        free(some);
    }
    for (size_t i = 0; i < n; i++) whole = whole && fabs(parts[i] / squares[i] - 1) < 1e-12;
    ok(whole, "model_grad_squares: five owned parts add up to the whole");
    own_range(m, 1, 0);
    model_unit(m, "h.0.ln_1.weight")->params[QKV_B].in_norm = false;
    model_grad_squares(m, parts);
    ok(parts[2 + QKV_B] == 0 && parts[2 + QKV_W] == squares[2 + QKV_W],
       "model_grad_squares: elements that another rank counts are left out");
    Model *last = model_describe(&small, (Range){ 3, 4 });
    model_allocate(last);
    randomize_gradients(last, 1);
    model_grad_squares(last, parts);
    ok(parts[0] == 0 && parts[n - 1] > 0,
       "model_grad_squares: the last stage's copy of wte is left out");
    ok(norm_of_squares((double[]){ 9, 0, 16 }, 3) == 5, "norm_of_squares");
    ok(clip_factor(0.5, 1) == 1 && clip_factor(0, 1) == 1, "clip_factor: a short gradient stays");
    ok(clip_factor(4, 1) == 1 / (4 + 1e-6), "clip_factor: a long gradient is scaled to the limit");
    ok(clip_factor(1e9, 0) == 1, "clip_factor: 0 means no clipping");
    free(squares);
    free(parts);
    model_free(last);
    model_free(m);
}

// ---- optimizer ----

static void three_steps(Optimizer o, Model *m) {
    o.weight_decay = 0.1;
    optimizer_allocate(&o, m);
    for (uint64_t step = 1; step <= 3; step++) {
        randomize_gradients(m, step);
        optimizer_step(&o, m, 0.7);
    }
}

static void test_owned_parts(Optimizer o, const char *name, size_t parts) {
    Model *m = whole_model(&small);
    Tensor initial = copied(m->w), want_m[8], want_v[8];
    three_steps(o, m);
    Tensor want = copied(m->w);
    for (size_t i = 0; i < m->n_units && o.kind == ADAMW; i++)
        if (!m->units[i].tied_to)
            want_m[i] = copied(m->units[i].m), want_v[i] = copied(m->units[i].v);
    model_free(m);
    ok(!same_bits(want, initial), "%s: weights move", name);
    bool same = true, kept = true;
    for (size_t part = 0; part < parts; part++) {
        m = whole_model(&small);
        own_range(m, parts, part);
        three_steps(o, m);
        size_t at = 0;
        for (size_t i = 0; i < m->n_units; at += m->units[i++].size) {
            Unit *u = &m->units[i];
            if (u->tied_to) break; // only the last unit is tied
            const size_t lo = at + u->own.lo, hi = at + u->own.hi, end = at + u->size;
            same = same && same_bits(u->own_w, tensor_flat_range(want, lo, hi));
            kept = kept &&
                   same_bits(tensor_flat_range(m->w, at, lo), tensor_flat_range(initial, at, lo)) &&
                   same_bits(tensor_flat_range(m->w, hi, end), tensor_flat_range(initial, hi, end));
            if (o.kind == SGD) continue;
            same = same && same_bits(u->m, tensor_flat_range(want_m[i], u->own.lo, u->own.hi)) &&
                   same_bits(u->v, tensor_flat_range(want_v[i], u->own.lo, u->own.hi));
        }
        model_free(m);
    }
    ok(same, "%s: %zu owned parts have the whole's bits, state included", name, parts);
    ok(kept, "%s: elements of other owners stay", name);
    arena_free(&storage);
}

// Computes the update of one tensor with momentum and decay again, in doubles:
// m <- momentum m + scale g + decay w, w <- w - lr m.
static void test_momentum(void) {
    Model *m = whole_model(&small);
    Optimizer o = sgd(0.1);
    o.momentum = 0.5;
    o.weight_decay = 0.1;
    optimizer_allocate(&o, m);
    const Param *p = &m->units[0].params[0];
    size_t n = tensor_count(p->w);
    real *w = downloaded(p->w);
    double *want = host_alloc(n * sizeof *want), *moment = host_alloc(n * sizeof *moment),
           worst = 0;
    for (size_t e = 0; e < n; e++) want[e] = w[e];
    for (uint64_t step = 1; step <= 3; step++) {
        randomize_gradients(m, step);
        real *g = downloaded(p->g);
        for (size_t e = 0; e < n; e++) {
            moment[e] = 0.5 * moment[e] + 0.7 * g[e] + 0.1 * want[e];
            want[e] -= 0.1 * moment[e];
        }
        free(g);
        if (step != 2) optimizer_step(&o, m, 0.7);
        if (step == 2) o.step++;
        for (size_t i = m->n_units; step == 2 && i-- > 0;) // unit by unit, the last one first
            if (!m->units[i].tied_to) optimizer_step_unit(&o, &m->units[i], 0.7);
    }
    free(w);
    w = downloaded(p->w);
    for (size_t e = 0; e < n; e++) worst = fmax(worst, fabs(w[e] - want[e]));
    ok(worst < 1e-5, "momentum: three steps as in doubles, one of them unit by unit: error %g",
       worst);
    free(w);
    free(want);
    free(moment);
    model_free(m);
}

static void test_decay(Optimizer o, const char *name) {
    Model *m = whole_model(&small);
    o.weight_decay = 0.5;
    o.lr = 0.1;
    optimizer_allocate(&o, m);
    Tensor original = copied(m->w);
    for (size_t i = 0; i < m->n_units; i++) tensor_fill(m->units[i].g, 0);
    optimizer_step(&o, m, 1);
    bool matrices = true, vectors = true;
    size_t at = 0;
    for (size_t i = 0; i < m->n_units; at += m->units[i++].size)
        for (size_t k = 0; k < m->units[i].n_params && !m->units[i].tied_to; k++) {
            const Param *p = &m->units[i].params[k];
            Tensor before =
                tensor_flat_range(original, at + p->offset, at + p->offset + tensor_count(p->w));
            real *x = downloaded(before), *y = downloaded(p->w);
            for (size_t e = 0; p->rows > 1 && e < tensor_count(before); e++)
                matrices = matrices && fabs((double)y[e] / (double)x[e] - 0.95) < 1e-6;
            if (p->rows == 1)
                vectors = vectors && memcmp(x, y, tensor_count(before) * sizeof *x) == 0;
            free(x);
            free(y);
        }
    ok(matrices, "%s: decay takes lr * weight_decay of every matrix", name);
    ok(vectors, "%s: decay changes no gain and no bias", name);
    model_free(m);
    arena_free(&storage);
}

// ---- data ----

static int *ids_of(const int *device, size_t n) {
    int *host = host_alloc((n + 1) * sizeof *host);
    device_download(host, device, n * sizeof *host);
    return host;
}

static void test_order(const Data *d, const char *name) {
    enum { GLOBAL = 7 };
    const size_t T = d->context;
    Batch whole = data_batch(d, &storage, 5, 0, GLOBAL, GLOBAL);
    int *tokens = ids_of(whole.tokens, GLOBAL * T), *targets = ids_of(whole.targets, GLOBAL * T);
    bool same = true, counts = true, shifted = true, differ = false;
    size_t all = 0;
    for (size_t parts = 1; parts <= GLOBAL + 1; parts++)
        for (size_t i = 0; i < parts; i++) {
            const Range r = shard_range(GLOBAL, parts, i);
            const size_t n = range_size(r) * T;
            Batch b = data_batch(d, &storage, 5, r.lo, range_size(r), GLOBAL);
            int *some = ids_of(b.tokens, n), *their_targets = ids_of(b.targets, n);
            size_t counted = 0;
            for (size_t e = 0; e < n; e++) counted += their_targets[e] >= 0;
            same = same && memcmp(some, tokens + r.lo * T, n * sizeof *some) == 0 &&
                   b.first_sequence == r.lo &&
                   memcmp(their_targets, targets + r.lo * T, n * sizeof *some) == 0 &&
                   b.B == range_size(r) && b.T == T && b.step == 5 &&
                   b.token_weight == whole.token_weight && b.training;
            counts = counts && counted == data_count(d, 5, r.lo, range_size(r));
            free(some);
            free(their_targets);
        }
    for (size_t e = 0; e < GLOBAL * T; e++) {
        all += targets[e] >= 0;
        shifted = shifted && tokens[e] >= 0 && (size_t)tokens[e] < d->vocab &&
                  targets[e] < (int)d->vocab &&
                  (e % T + 1 == T || targets[e] < 0 || targets[e] == tokens[e + 1]) &&
                  (e % T + 1 == T || targets[e] >= 0 || targets[e + 1] < 0);
    }
    ok(same, "%s: a sequence is the same in every cut of the batch", name);
    ok(counts, "%s: data_count is the number of targets that count", name);
    ok(whole.token_weight == 1 / (double)all,
       "%s: token_weight is 1 / counted tokens of the global batch", name);
    ok(shifted, "%s: a target is the next token, and the counted ones come first", name);
    size_t shortest = T, longest = 0;
    for (size_t n = 0; n < 40; n++) {
        const size_t c = data_count(d, 5, n, 1);
        shortest = c < shortest ? c : shortest;
        longest = c > longest ? c : longest;
    }
    ok(d->ragged ? shortest >= T - T / 2 && shortest < T && longest == T
                 : shortest == T && longest == T,
       "%s: sequences count %zu to %zu tokens", name, shortest, longest);
    for (uint64_t step = 4; step <= 6; step += 2) {
        int *other = ids_of(data_batch(d, &storage, step, 0, GLOBAL, GLOBAL).tokens, GLOBAL * T);
        differ = memcmp(other, tokens, GLOBAL * T * sizeof *other) != 0;
        free(other);
    }
    ok(differ && memcmp(tokens, tokens + T, T * sizeof *tokens) != 0,
       "%s: steps and sequences differ", name);
    free(tokens);
    free(targets);
    arena_free(&storage);
}

// The text has bytes below 100 to train on, then different bytes that are held out. A held-out byte
// shows its place. The last 8 bytes are no window, because the window's last target would lie after
// the end of the text.
enum { TRAIN = 943, HELD_OUT = 104, FIRST_HELD_OUT = 150 };
static char text_path[] = "/tmp/unsplit-text-XXXXXX";
static void write_text(void) {
    const int file = mkstemp(text_path);
    unsigned char bytes[TRAIN + HELD_OUT];
    for (size_t i = 0; i < TRAIN + HELD_OUT; i++)
        bytes[i] = (unsigned char)(i < TRAIN ? i * i % 97 : FIRST_HELD_OUT + i - TRAIN);
    if (file < 0 || write(file, bytes, sizeof bytes) != (ssize_t)sizeof bytes || close(file) != 0)
        fault("no text");
}
// data_open() must reject this file: return false with a reason in `why`, and not end the program.
static void cannot_open(const char *path, size_t context, const char *words) {
    Data d;
    char why[DATA_WHY];
    ok(!data_open(&d, path, NULL, 0, context, 1, why) && strstr(why, words) && !d.files, "text: %s",
       words);
}
static void no_held_out(void) {
    Data d = data_synthetic(11, 4, 1);
    data_eval_windows(&d);
}

// An epoch may end within a batch.
static void test_epochs(const Data *d) {
    enum { WINDOWS = (TRAIN - 1) / 8, EPOCHS = 3 };
    int *order = host_alloc(EPOCHS * WINDOWS * sizeof *order),
        *seen = host_alloc(WINDOWS * sizeof *seen);
    bool once = true, differ = false, moved = false, same = true;
    for (size_t n = 0; n < EPOCHS * WINDOWS; n++) {
        int *tokens = ids_of(data_batch(d, &storage, n / d->batch, n % d->batch, 1, 50).tokens, 8);
        order[n] = -1;
        for (int w = 0; w < WINDOWS; w++) { // squares modulo 97: some windows have the same bytes
            bool fits = seen[w] <= (int)(n / WINDOWS);
            for (int t = 0; t < 8; t++) fits = fits && tokens[t] == (w * 8 + t) * (w * 8 + t) % 97;
            if (fits) order[n] = w;
        }
        once = once && order[n] >= 0 && seen[order[n]]++ == (int)(n / WINDOWS);
        moved = moved || order[n] != (int)(n % WINDOWS);
        differ = differ || (n >= WINDOWS && order[n] != order[n - WINDOWS]);
        free(tokens);
    }
    for (size_t n = 1; n < 300; n += 7) {
        bool *hit = host_alloc(n * sizeof *hit);
        for (size_t i = 0; i < n; i++) {
            uint64_t to = random_permute(n, i, n);
            same = same && to < n && !hit[to];
            hit[to] = true;
        }
        free(hit);
    }
    ok(once, "text: %d epochs take each of %d windows once", EPOCHS, WINDOWS);
    ok(moved && differ, "text: each epoch has its own order");
    ok(same, "random_permute: every place once, for 43 sizes");
    free(order);
    free(seen);
    arena_free(&storage);
}

static void test_text(void) {
    const size_t T = 8;
    write_text();
    Data d;
    char why[DATA_WHY];
    ok(data_open(&d, text_path, NULL, 0, T, 1, why) && !why[0], "text: the file can be opened");
    ok(d.files[0].bytes == TRAIN + HELD_OUT && d.tokens == d.files[0].bytes &&
           d.train_tokens == TRAIN && d.vocab == 256,
       "text: a tenth is held out");
    d.batch = 7;
    test_order(&d, "text");
    d.batch = 50;
    test_epochs(&d);
    bool apart = true, in_order = true;
    for (uint64_t step = 0; step < 20; step++) {
        Batch b = data_batch(&d, &storage, step, 0, 50, 50);
        int *tokens = ids_of(b.tokens, 50 * T), *targets = ids_of(b.targets, 50 * T);
        for (size_t i = 0; i < 50 * T; i++)
            apart = apart && tokens[i] < FIRST_HELD_OUT && targets[i] < FIRST_HELD_OUT;
        free(tokens);
        free(targets);
        arena_free(&storage);
    }
    ok(apart, "text: 1000 training sequences never reach the held-out part");
    const size_t windows = data_eval_windows(&d);
    ok(windows == (HELD_OUT - 1) / T, "text: %zu windows of %zu bytes and one more target", windows,
       T);
    Batch all = data_eval_batch(&d, &storage, 0, windows, windows);
    Batch last = data_eval_batch(&d, &storage, windows - 1, 1, windows),
          third = data_eval_batch(&d, &storage, 1, 2, 3);
    int *tokens = ids_of(all.tokens, windows * T), *targets = ids_of(all.targets, windows * T);
    int *of_last = ids_of(last.tokens, T), *of_third = ids_of(third.tokens, 2 * T);
    for (size_t i = 0; i < windows * T; i++)
        in_order =
            in_order && tokens[i] == (int)(FIRST_HELD_OUT + i) && targets[i] == tokens[i] + 1;
    ok(in_order, "text: held-out windows are neighbours, and none lies in the training part");
    ok(memcmp(of_last, tokens + (windows - 1) * T, T * sizeof *of_last) == 0,
       "text: the last window can be read alone");
    ok(memcmp(of_third, tokens + windows / 3 * T, T * sizeof *tokens) == 0 &&
           memcmp(of_third + T, tokens + 2 * windows / 3 * T, T * sizeof *tokens) == 0,
       "text: three windows, spread evenly");
    ok(!all.training && all.token_weight == 1 / (double)(windows * T),
       "text: an evaluation has no dropout and counts all targets");
    ok(fabs(data_entropy(&d) - log(HELD_OUT)) < 1e-12, "text: the entropy of %d different bytes",
       HELD_OUT);
    free(tokens);
    free(targets);
    free(of_last);
    free(of_third);
    data_free(&d);
    arena_free(&storage);
    ends(no_held_out, 3, "synthetic tokens have no held-out text");
    cannot_open(text_path, 104, "too few for --context 104");
    cannot_open("/no/such/text", 8, "cannot read the text /no/such/text: No such file");
    cannot_open(
        "/dev/null", 8,
        "cannot read the text /dev/null: it is a device, and only a regular file can be read");
    cannot_open("/", 8,
                "cannot read the text /: it is a folder, and only a regular file can be read");
    remove(text_path);
}

// ---- snapshots ----

// A rank sends a snapshot of the weights as one message, so the snapshot must be only a little
// larger than the weights.
static void test_snapshot_size(void) {
    ModelConfig c = small;
    c.width = 64;
    Model *m = whole_model(&c);
    Snapshot *s = snapshot_new(NULL);
    model_snapshot(m, s, UNIT_WEIGHTS, NULL);
    size_t bytes = config_parameters(&c) * sizeof(real), most = bytes + config_tensors(&c) * 256;
    ok(s->size >= bytes && s->size <= most, "a snapshot of %zu bytes of whole weights takes %zu",
       bytes, s->size);
    snapshot_free(s);
    model_free(m);
}

int main(void) {
    device_init();
    memory_rank_begin();
    test_snapshot_size();
    test_ranges();
    test_cuts();
    test_add_gradient();
    test_initial_weights();
    test_fill();
    test_distribution();
    for (int llama = 0; llama < 2; llama++) {
        test_sizes(1, 4, 1, 1, 1, llama);
        test_sizes(2, 8, 2, 7, 11, llama);
        test_sizes(5, 24, 3, 12, 257, llama);
    }
    for (size_t stages = 2; stages <= 4; stages++) test_stages(stages);
    ends(no_layer, 2, "at least one layer");
    ends(odd_heads, 2, "multiple of --heads");
    ends(all_dropped, 2, "less than 1");
    ends(odd_pairs, 2, "rotary positions turn pairs of columns");
    ends(odd_groups, 2, "choose --heads as a multiple of --kv-heads");
    ends(not_a_number, 2, "dropout must be");
    test_forward();
    test_logits();
    test_norm();
    for (size_t parts = 1; parts <= 3; parts++) {
        test_owned_parts(sgd(0.1), "SGD", parts);
        test_owned_parts((Optimizer){ .kind = SGD, .lr = 0.1, .momentum = 0.5 }, "momentum", parts);
        test_owned_parts(adamw(0.1), "AdamW", parts);
    }
    test_owned_parts(adamw(0.1), "AdamW", 200); // more parts than some units have elements
    test_momentum();
    test_decay(sgd(0.1), "SGD");
    test_decay(adamw(0.1), "AdamW");
    const Data synthetic = data_synthetic(23, 9, 4);
    test_order(&synthetic, "synthetic");
    test_text();
    memory_rank_end();
    return tap_end();
}
