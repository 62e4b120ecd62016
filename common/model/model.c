// model.c: describes and allocates GPT-2 or Llama as a list of layers, runs one micro-batch, and
// computes the gradient norm.
#include "common/model/model.h"
#include "common/model/block.h"
#include "common/model/costs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- description ----

// With these limits the number of elements of all blocks fits into a size_t.
enum { MOST_LAYERS = 1 << 16, MOST_WIDTH = 1 << 20, MOST_CONTEXT = 1 << 20 };

void config_require(const ModelConfig *c) {
    REQUIRE(c->layers && c->width && c->heads && c->context && c->vocab,
            "a model needs at least one layer, head, column, position and vocabulary entry");
    REQUIRE(c->layers <= MOST_LAYERS && c->width <= MOST_WIDTH && c->context <= MOST_CONTEXT,
            "a model has at most %d layers, %d columns and %d positions, not %zu, %zu and %zu",
            MOST_LAYERS, MOST_WIDTH, MOST_CONTEXT, c->layers, c->width, c->context);
    REQUIRE(c->width % c->heads == 0,
            "width %zu does not divide into %zu heads: choose --width as a multiple of --heads",
            c->width, c->heads);
    REQUIRE(c->dropout >= 0 && c->dropout < 1, "dropout must be at least 0 and less than 1, not %g",
            c->dropout);
    REQUIRE(c->heads % config_kv_heads(c) == 0,
            "%zu heads do not share %zu heads of key and value: choose --heads as a multiple of "
            "--kv-heads",
            c->heads, config_kv_heads(c));
    REQUIRE(c->positions == POSITIONS_LEARNED || c->width / c->heads % 2 == 0,
            "rotary positions turn pairs of columns, but a head has %zu: choose --width as an even "
            "multiple of --heads",
            c->width / c->heads);
    REQUIRE(c->ffn <= MOST_WIDTH,
            "the MLP has at most %d features, not %zu: choose a smaller --ffn", MOST_WIDTH, c->ffn);
}
void config_family(ModelConfig *c, Family family) {
    const bool llama = family == FAMILY_LLAMA;
    c->norm = llama ? NORM_RMS : NORM_LAYER;
    c->positions = llama ? POSITIONS_ROTARY : POSITIONS_LEARNED;
    c->activation = llama ? ACTIVATION_SWIGLU : ACTIVATION_GELU;
    c->biases = llama ? BIASES_NONE : BIASES_ALL;
}
bool config_is_gpt2(const ModelConfig *c) {
    return c->norm == NORM_LAYER && c->positions == POSITIONS_LEARNED &&
           c->activation == ACTIVATION_GELU && c->biases == BIASES_ALL &&
           config_kv_heads(c) == c->heads && (c->ffn == 0 || c->ffn == 4 * c->width) && !c->untied;
}
size_t config_parameters(const ModelConfig *c) {
    CutSizes whole = cut_sizes(c, 1, 0);
    return elements_stage(&whole);
}
size_t config_tensors(const ModelConfig *c) { return 2 + BLOCK_PARAMS * c->layers + 2 + c->untied; }

static Unit unit_new(size_t n_params) {
    return (Unit){ .params = host_alloc(n_params * sizeof(Param)), .n_params = n_params };
}
// Sets p's number and the mean and deviation of its initial values. `deviation` is the deviation at
// GPT-2's width, 768. At width C the deviation is proportional to 1/sqrt(C), so that activations of
// small models are not tiny. Biases are not zero and gains not one, so that a fault in their
// handling shows in the first step.
static Param model_param(const ModelConfig *c, size_t number, Param p, double mean,
                         double deviation) {
    p.number = number;
    p.mean = mean;
    p.deviation = deviation * sqrt(768.0 / (double)c->width);
    return p;
}
static Unit unit_table(const ModelConfig *c, size_t number, const char *name, size_t rows,
                       size_t cols) {
    Unit u = unit_new(1);
    u.params[0] = model_param(c, number, param_describe(name, rows, cols, 1), 0, 0.02);
    return u;
}
static Unit unit_vocabulary(const ModelConfig *c, size_t number, const char *name) {
    Unit u = unit_table(c, number, name, c->vocab, c->width);
    u.table = true;
    return u;
}
static Unit unit_last_norm(const ModelConfig *c) {
    Unit u = unit_new(2);
    size_t first = 2 + BLOCK_PARAMS * c->layers, bias = c->norm == NORM_LAYER ? c->width : 0;
    u.params[0] = model_param(c, first, param_describe("ln_f.weight", 0, c->width, 1), 1, 0.02);
    u.params[1] = model_param(c, first + 1, param_describe("ln_f.bias", 0, bias, 1), 0, 0.02);
    return u;
}
static Unit unit_block(const ModelConfig *c, size_t block) {
    BlockTensor tensor[BLOCK_PARAMS];
    block_tensors(c, tensor);
    Unit u = unit_new(BLOCK_PARAMS);
    for (size_t i = 0; i < BLOCK_PARAMS; i++) {
        const BlockTensor *t = &tensor[i];
        double deviation = t->into_residual ? 0.02 / sqrt(2.0 * (double)c->layers) : 0.02;
        char name[sizeof u.params[i].name];
        snprintf(name, sizeof name, "h.%zu.%s", block, t->name);
        Param p = param_describe_grouped(name, t->rows, t->cols, t->blocks, t->ratio);
        u.params[i] = model_param(c, 2 + BLOCK_PARAMS * block + i, p, t->gain ? 1 : 0, deviation);
    }
    return u;
}

Model *model_describe(const ModelConfig *c, Range layers) {
    return model_describe_chunks(c, &layers, 1);
}

Model *model_describe_chunks(const ModelConfig *c, const Range *chunks, size_t n_chunks) {
    Model *m = host_alloc(sizeof *m);
    size_t L = c->layers;
    m->config = *c;
    m->parameters = arena(MEM_PARAMETERS);
    m->gradients = arena(MEM_GRADIENTS);
    m->optimizer = arena(MEM_OPTIMIZER);
    m->gathered = arena(MEM_COMMUNICATION);
    m->buffers = arena(MEM_COMMUNICATION);
    for (size_t i = 0; i < n_chunks; i++) {
        if (!range_size(chunks[i])) fault("model_describe_chunks(): chunk %zu has no layer", i);
        m->n_layers += range_size(chunks[i]);
    }
    m->layers = host_alloc(m->n_layers * sizeof(Layer));
    // The embedding brings two units, and so does the head.
    m->units = host_alloc((m->n_layers + 3) * sizeof(Unit));
    m->units_of_layers = host_alloc((m->n_layers + 3) * sizeof *m->units_of_layers);
    for (size_t i = 0, chunk = 0, n = chunks[0].lo; i < m->n_layers; i++, n++) {
        if (n == chunks[chunk].hi) n = chunks[++chunk].lo;
        Layer *l = &m->layers[i];
        *l = (Layer){ .config = &m->config,
                      .number = n,
                      .chunk = chunk,
                      .heads = { 0, c->heads },
                      .vocab = { 0, c->vocab } };
        l->kind = n == 0       ? &layer_embedding
                  : n <= L     ? &layer_block
                  : n == L + 1 ? &layer_head
                               : &layer_loss;
        Unit *u = &m->units[m->n_units];
        if (n == 0) {
            size_t learned = c->positions == POSITIONS_LEARNED ? c->width : 0;
            u[0] = unit_vocabulary(c, 0, "wte.weight");
            u[1] = unit_table(c, 1, "wpe.weight", c->context, learned);
        } else if (n == L + 1) {
            u[0] = unit_last_norm(c);
            u[1] = c->untied ? unit_vocabulary(c, config_tensors(c) - 1, "lm_head.weight")
                             : unit_vocabulary(c, 0, "wte.weight");
        } else if (n <= L) {
            u[0] = unit_block(c, n - 1);
        }
        if (n <= L) l->n_units = 1;
        if (n == 0 || n == L + 1) l->n_units = 2;
        l->units = &m->units_of_layers[m->n_units];
        for (size_t k = 0; k < l->n_units; k++) l->units[k] = &u[k];
        m->n_units += l->n_units;
    }
    for (size_t i = 0; i < m->n_units; i++) {
        m->units[i].w_element = c->storage;
        m->units[i].g_element = config_gradient_element(c);
    }
    Unit *first = model_wte(m), *last = model_wte_head(m);
    // The tied uses have the same weights, and a gradient each.
    if (first && last) {
        first->tied_use = last;
        last->tied_to = first;
    } else if (last) last->tied_copy = true; // the other copy is on the first stage
    return m;
}

size_t model_chunks(const Model *m) { return m->layers[m->n_layers - 1].chunk + 1; }
Range model_chunk(const Model *m, size_t chunk) {
    Range r = { 0, 0 };
    while (r.lo < m->n_layers && m->layers[r.lo].chunk < chunk) r.lo++;
    for (r.hi = r.lo; r.hi < m->n_layers && m->layers[r.hi].chunk == chunk;) r.hi++;
    return r;
}

Layer *model_wrap_range(Model *m, size_t lo, size_t n, const LayerKind *kind, Comm *comm) {
    if (n == 0 || lo + n > m->n_layers || m->layers[lo].chunk != m->layers[lo + n - 1].chunk)
        fault("%s around layers %zu to %zu of %zu: they must be neighbours in one chunk",
              kind->name, lo, lo + n - 1, m->n_layers);
    Layer *l = &m->layers[lo], *inner = host_alloc(n * sizeof *inner);
    memcpy(inner, l, n * sizeof *inner);
    *l = (Layer){ .kind = kind,
                  .config = &m->config,
                  .number = l->number,
                  .chunk = l->chunk,
                  .units = inner[0].units,
                  .heads = inner[0].heads,
                  .vocab = inner[0].vocab,
                  .comm = comm,
                  .inner = inner,
                  .n_inner = n };
    // The inner layers are neighbours, so their units follow one another.
    for (size_t i = 0; i < n; i++) l->n_units += inner[i].n_units;
    memmove(l + 1, l + n, (m->n_layers - lo - n) * sizeof *l);
    m->n_layers -= n - 1;
    return l;
}

// With the embedding among the layers, wte is the first unit. With a tied head among the layers,
// the head's use of wte is the last unit.
Unit *model_wte(Model *m) { return m->units[0].params[0].number == 0 ? &m->units[0] : NULL; }
Unit *model_wte_head(Model *m) {
    Unit *last = &m->units[m->n_units - 1];
    return last->params[0].number == 0 && last->n_params == 1 ? last : NULL;
}
Unit *model_unit(Model *m, const char *first_param) {
    for (size_t i = 0; i < m->n_units; i++)
        if (!strcmp(m->units[i].params[0].name, first_param)) return &m->units[i];
    return NULL;
}

// ---- allocation ----

static void unit_measure(Unit *u) {
    u->size = 0;
    for (size_t i = 0; i < u->n_params; i++) {
        u->params[i].offset = u->size;
        u->size += param_local_rows(&u->params[i]) * param_local_cols(&u->params[i]);
    }
    u->own = (Range){ 0, u->size };
}

void model_measure(Model *m) {
    m->size = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        unit_measure(&m->units[i]);
        if (!m->units[i].tied_to) m->size += m->units[i].size;
    }
}

void model_replicas(Model *m, Comm *dp) {
    for (size_t i = 0; i < m->n_units; i++)
        if (!m->units[i].replicas) m->units[i].replicas = dp;
}

void model_attach_weights(Model *m, Tensor w) {
    size_t offset = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue; // unit_attach_weights() of the first use also attaches this use
        unit_attach_weights(u, tensor_flat_range(w, offset, offset + u->size));
        offset += u->size;
    }
}

void model_allocate_weights(Model *m) {
    model_measure(m);
    m->w = tensor_shaped(&m->parameters, tensor_shape(1, m->size, m->config.storage));
    model_attach_weights(m, m->w);
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        unit_initialize(u, u->w, u->own, m->config.seed);
        u->own_w = u->w;
    }
}

void model_allocate(Model *m) {
    model_allocate_weights(m);
    Element element = config_gradient_element(&m->config);
    m->g = tensor_shaped(&m->gradients, tensor_shape(1, m->size, element));
    for (size_t i = 0, offset = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to) continue;
        unit_attach_gradients(u, tensor_flat_range(m->g, offset, offset + u->size));
        u->own_g = u->g;
        offset += u->size;
    }
    Unit *wte = model_wte(m);
    if (wte && wte->tied_use)
        unit_attach_gradients(wte->tied_use, tensor_like(&m->gradients, wte->g));
    model_zero_gradients(m);
}

static void free_inner(Layer *l) {
    for (size_t i = 0; i < l->n_inner; i++) free_inner(&l->inner[i]);
    free(l->inner);
}
void model_free(Model *m) {
    arena_free(&m->parameters);
    arena_free(&m->gradients);
    arena_free(&m->optimizer);
    arena_free(&m->gathered);
    arena_free(&m->buffers);
    for (size_t i = 0; i < m->n_units; i++) free(m->units[i].params);
    for (size_t i = 0; i < m->n_layers; i++) free_inner(&m->layers[i]);
    free(m->units);
    free(m->units_of_layers);
    free(m->layers);
    free(m);
}

// ---- one micro-batch ----

void model_zero_gradients(Model *m) {
    for (size_t i = 0; i < m->n_units; i++) unit_zero_gradients(&m->units[i]);
}

double model_forward_backward(Model *m, const Batch *b) {
    Arena outside = arena(MEM_WORKSPACE);
    Shape losses = layer_output(&m->layers[m->n_layers - 1], b);
    Tensor y = tensor_shaped(&outside, losses), dy = tensor_shaped(&outside, losses), none = { 0 };
    ActivationStash *f = walk_forward(m->layers, m->n_layers, b, none, y);
    double loss = tensor_sum(y);
    tensor_fill(dy, (real)b->token_weight);
    walk_backward(m->layers, m->n_layers, b, f, dy, none);
    arena_free(&outside);
    return loss;
}

double model_loss(Model *m, const Batch *b) {
    Arena outside = arena(MEM_WORKSPACE);
    Tensor y = tensor_shaped(&outside, layer_output(&m->layers[m->n_layers - 1], b)), none = { 0 };
    walk_forward_only(m->layers, m->n_layers, b, none, y);
    double loss = tensor_sum(y);
    arena_free(&outside);
    return loss;
}

void model_partial_sums(Model *m) {
    for (size_t i = 0; i < m->n_units; i++)
        if (m->units[i].g.data) unit_partial_sums(&m->units[i]);
}

void model_fold_tied(Model *m) {
    Unit *wte = model_wte(m);
    if (wte && wte->tied_use) op_add(wte->g, wte->tied_use->g, wte->g);
}

// ---- norm, clipping ----

Range param_owned(const Unit *u, const Param *p) {
    size_t lo = p->offset, hi = lo + param_local_rows(p) * param_local_cols(p);
    if (lo < u->own.lo) lo = u->own.lo;
    if (hi > u->own.hi) hi = u->own.hi;
    return (Range){ lo, hi < lo ? lo : hi };
}
Tensor param_owned_part(const Unit *u, Tensor own, Range r) {
    return tensor_flat_range(own, r.lo - u->own.lo, r.hi - u->own.lo);
}

void model_grad_squares(const Model *m, double *squares) {
    memset(squares, 0, config_tensors(&m->config) * sizeof *squares);
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to || u->tied_copy) continue; // the embedding's unit counts wte
        for (size_t k = 0; k < u->n_params; k++) {
            const Param *p = &u->params[k];
            Range r = param_owned(u, p);
            if (!p->in_norm || !range_size(r)) continue;
            squares[p->number] = tensor_sum_of_squares(param_owned_part(u, u->own_g, r));
        }
    }
}
double norm_of_squares(const double *squares, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += squares[i];
    return sqrt(sum);
}
double model_grad_norm(const Model *m, Comm *ranks) {
    size_t n = config_tensors(&m->config);
    double *squares = host_alloc(n * sizeof *squares);
    model_grad_squares(m, squares);
    if (ranks) comm_all_reduce_doubles(ranks, squares, n);
    double norm = norm_of_squares(squares, n);
    free(squares);
    return norm;
}
double clip_factor(double norm, double max_norm) {
    double factor = max_norm / (norm + 1e-6);
    return max_norm > 0 && factor < 1 ? factor : 1;
}
