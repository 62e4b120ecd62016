// compressed.c applies the compression rule of 01.06 or 01.08 on one device, slice by slice.
#include "08_3d/experiments/experiments.h"
#include "08_3d/unsent.h"
#include <stdlib.h>
#include <string.h>
#include "01_data_parallel/experiments/experiments.h"

// One slice of a stage. shape has the slice's units and parameters, which are described and never
// allocated.
typedef struct {
    Model shape;
    OneDevice rule;
} Slice;
struct Compressed {
    Degrees mesh;
    Slice *slice; // [pp * tp]
};

// ---------------------------------------------------------------- the parts of the slices

typedef struct {
    Param param;
    size_t unit;
} Described;

// Describes this rank's parameters, unit by unit, in the order of compression.
static Described *describe(const Model *m, size_t *n) {
    Described *list = host_alloc(config_tensors(&m->config) * sizeof *list);
    *n = 0;
    for (size_t u = 0; u < m->n_units; u++)
        for (size_t k = 0; k < m->units[u].n_params && !m->units[u].tied_to; k++)
            list[(*n)++] = (Described){ m->units[u].params[k], u };
    return list;
}
static Model model_of(const Described *list, size_t n) {
    Model m = { .units = host_alloc((n + 1) * sizeof *m.units) };
    for (size_t i = 0, before = SIZE_MAX; i < n; before = list[i++].unit) {
        if (list[i].unit != before) m.units[m.n_units++].params = host_alloc(n * sizeof(Param));
        Unit *u = &m.units[m.n_units - 1];
        const size_t size = param_local_rows(&list[i].param) * param_local_cols(&list[i].param);
        u->params[u->n_params++] = list[i].param;
        u->size += size;
        m.size += size;
    }
    return m;
}

static size_t slices(Degrees n) { return n.pp * n.tp; }
static Slice *slice_at(const Compressed *c, Coordinates at) {
    return &c->slice[at.pp * c->mesh.tp + at.tp];
}

Compressed *compressed_new(const Trainer *t) {
    const TrainerConfig *config = &t->config;
    size_t n, *sizes;
    Described *local = describe(t->model, &n), *all;
    all = side_gather(local, t->mesh.at.dp == 0 ? n * sizeof *local : 0,
                      &sizes); // replica 0 describes its parts for all replicas
    free(local);
    if (t->mesh.world->rank > 0) return NULL;
    ledger_pause();
    Compressed *c = host_alloc(sizeof *c);
    c->mesh = config->mesh;
    c->slice = host_alloc(slices(c->mesh) * sizeof *c->slice);
    const Described *next = all;
    for (size_t r = 0; r < t->mesh.world->size; r++) {
        const size_t has = sizes[r] / sizeof *next;
        if (!has) continue;
        Slice *s = slice_at(c, mesh_coordinates(c->mesh, r));
        s->shape = model_of(next, has);
        s->rule = one_device_new(&config->compression, &s->shape, c->mesh.dp, config->model.seed);
        next += has;
    }
    ledger_resume();
    free(all);
    free(sizes);
    return c;
}

void compressed_free(Compressed *c) {
    if (!c) return;
    ledger_pause();
    for (size_t i = 0; i < slices(c->mesh); i++) {
        Model *m = &c->slice[i].shape;
        one_device_free(&c->slice[i].rule);
        for (size_t u = 0; u < m->n_units; u++) free(m->units[u].params);
        free(m->units);
    }
    ledger_resume();
    free(c->slice);
    free(c);
}

// ---------------------------------------------------------------- the rule, slice by slice

// Returns the offset of each tensor in the flat gradient of the whole model: [config_tensors].
static size_t *places(const Model *m) {
    size_t *place = host_alloc(config_tensors(&m->config) * sizeof *place), at = 0;
    for (size_t u = 0; u < m->n_units; u++) {
        const Unit *unit = &m->units[u];
        if (unit->tied_to) continue;
        for (size_t k = 0; k < unit->n_params; k++)
            place[unit->params[k].number] = at + unit->params[k].offset;
        at += unit->size;
    }
    return place;
}

// Returns the list `at`: element i of the slice is element at[i] of the whole model.
static size_t *elements_of(const Model *slice, const size_t *place) {
    size_t *at = host_alloc(slice->size * sizeof *at), n = 0;
    for (size_t u = 0; u < slice->n_units; u++)
        for (size_t k = 0; k < slice->units[u].n_params; k++) {
            const Param *p = &slice->units[u].params[k];
            const size_t size = param_local_rows(p) * param_local_cols(p);
            for (size_t i = 0; i < size; i++) at[n++] = place[p->number] + param_global_index(p, i);
        }
    return at;
}

// Writes the reconstructed sum of the slice's elements to sum [size of the whole model].
// g [dp][size]: the replicas' gradients.
static void slice_sum(Slice *s, const size_t *place, real *sum, const real *g, size_t size) {
    Arena a = arena(MEM_REFERENCE);
    const size_t n = s->shape.size, dp = s->rule.error.rows;
    size_t *at = elements_of(&s->shape, place);
    real *host = host_alloc(dp * n * sizeof *host);
    Tensor gradients = tensor_new(&a, dp, n), reconstructed = tensor_new(&a, 1, n);
    for (size_t k = 0; k < dp; k++)
        for (size_t i = 0; i < n; i++) host[k * n + i] = g[k * size + at[i]];
    tensor_upload(gradients, host);
    one_device_sum(&s->rule, reconstructed, gradients);
    tensor_download(host, reconstructed);
    for (size_t i = 0; i < n; i++) sum[at[i]] = host[i];
    arena_free(&a);
    free(host);
    free(at);
}

// Computes the gradient of replica k's sequences with the loss scale `factor`, micro-batch by
// micro-batch, then divides the gradient by `factor`. Returns the replica's part of the mean loss.
static double replica_gradient(Model *m, const TrainerConfig *c, const Data *d, uint64_t step,
                               size_t k, double factor) {
    const size_t n = trainer_micro_batches(c);
    const double weight = 1 / (double)data_count(d, step, 0, c->batch);
    const Range sequences = shard_range(c->batch, c->mesh.dp, k);
    double loss = 0;
    model_zero_gradients(m);
    for (size_t i = 0; i < n; i++) {
        Arena tokens = arena(MEM_REFERENCE);
        Range r = shard_range(range_size(sequences), n, i);
        Batch b =
            data_micro_batch(d, &tokens, step, sequences.lo + r.lo, range_size(r), weight * factor);
        loss += model_forward_backward(m, &b) * weight;
        arena_free(&tokens);
    }
    model_fold_tied(m);
    op_scale(m->g, m->g, (real)(1 / factor));
    return loss;
}

StepResult compressed_gradients(Compressed *c, Model *m, const TrainerConfig *config, const Data *d,
                                uint64_t step, double factor) {
    ledger_pause();
    StepResult r = { 0 };
    real *g = host_alloc(c->mesh.dp * m->size * sizeof *g),
         *sum = host_alloc(m->size * sizeof *sum);
    size_t *place = places(m);
    for (size_t k = 0; k < c->mesh.dp; k++) {
        r.loss += replica_gradient(m, config, d, step, k, factor);
        tensor_download(g + k * m->size, m->g);
    }
    for (size_t i = 0; i < slices(c->mesh); i++) slice_sum(&c->slice[i], place, sum, g, m->size);
    tensor_upload(m->g, sum);
    r.norm = model_grad_norm(m, NULL);
    op_scale(m->g, m->g, (real)factor); // gradients of trainer_gradients() contain the factor, too
    free(g);
    free(sum);
    free(place);
    ledger_resume();
    return r;
}

// ---------------------------------------------------------------- a training that is resumed

static void take_up(Tensor q, real *state) { tensor_upload(q, state); }

// All replicas of a slice have the same PowerSGD factors, so the function loads them once per
// replica without a check.
void compressed_load(Compressed *c, const Checkpoint *from, const Trainer *t) {
    if (!c) return;
    RankState want = unsent_read(t);
    for (size_t r = 0; r < t->mesh.world->size; r++) {
        const Coordinates at = mesh_coordinates(c->mesh, r);
        const OneDevice *rule = &slice_at(c, at)->rule;
        const size_t errors = rule->error.cols;
        want.n = errors + compressed_factors(rule->buckets, rule->n_buckets, NULL, NULL);
        real *state = checkpoint_load_state(from, r, &want);
        if (!state) continue;
        tensor_upload(tensor_row_range(rule->error, at.dp, at.dp + 1), state);
        compressed_factors(rule->buckets, rule->n_buckets, take_up, state + errors);
        free(state);
    }
    unsent_free(&want);
}
