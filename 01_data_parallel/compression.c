// compression.c: the loop over the buckets, and the state that is kept between steps.
#include "01_data_parallel/compression.h"
#include <stdlib.h>
#include "common/tensor/random.h"

static Matrix *matrices_of(Arena *a, const CompressionPlan *plan, const Unit *u, uint64_t seed) {
    Matrix *list = (Matrix *)host_alloc(u->n_params * sizeof *list);
    for (size_t i = 0; i < u->n_params; i++) {
        const Param *p = &u->params[i];
        Matrix *m = &list[i];
        m->offset = p->offset;
        m->rows = param_local_rows(p);
        m->cols = param_local_cols(p);
        const size_t full = m->rows < m->cols ? m->rows : m->cols;
        m->rank = plan->rank < full ? plan->rank : full;
        m->low_rank = plan->method == POWER_SGD && !p->vector &&
                      (m->rows + m->cols) * m->rank * plan->min_rate < m->rows * m->cols;
        if (!m->low_rank) continue;
        m->q = tensor_new(a, m->cols, m->rank);
        // All ranks of dp use the same key, so they start with the same q.
        tensor_randomize(m->q, random_key(random_key(seed, 0x51), p->number), 1);
    }
    return list;
}

CompressedBucket *compressed_buckets_new(Arena *a, const CompressionPlan *plan, const Model *m,
                                         uint64_t seed, size_t *n) {
    CompressedBucket *list = (CompressedBucket *)host_alloc(m->n_units * sizeof *list);
    size_t at = 0;
    *n = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        if (u->tied_to) continue;   // model_fold_tied() has added the head's gradient to wte's
        if (u->size == 0) continue; // a model with rotary positions has no wpe
        CompressedBucket *b = &list[*n];
        b->range.lo = at;
        b->range.hi = at + u->size;
        at += u->size;
        *n += 1;
        b->params = matrices_of(a, plan, u, seed);
        b->n_params = u->n_params;
    }
    return list;
}

void compressed_buckets_free(CompressedBucket *b, size_t n) {
    for (size_t i = 0; i < n; i++) free(b[i].params);
    free(b);
}

Compression *compression_new(Comm *dp, const CompressionPlan *plan, const Model *m, uint64_t seed) {
    tensor_need_reals("compression", "the gradient", m->g);
    Compression *c = (Compression *)host_alloc(sizeof *c);
    c->dp = dp;
    c->plan = *plan;
    c->gradients = arena(MEM_GRADIENTS);
    c->state = arena(MEM_COMMUNICATION);
    c->buckets = compressed_buckets_new(&c->state, plan, m, seed, &c->n_buckets);
    if (plan->method == HALF) return c;
    c->error = tensor_new(&c->gradients, 1, m->size);
    tensor_fill(c->error, 0);
    for (size_t i = 0; i < c->n_buckets && plan->method == ONE_BIT; i++) {
        CompressedBucket *b = &c->buckets[i];
        Range own = elements_of_part(range_size(b->range), 1, dp->size, dp->rank);
        b->server_error = tensor_new(&c->gradients, 1, range_size(own));
        tensor_fill(b->server_error, 0);
    }
    return c;
}

size_t compressed_factors(const CompressedBucket *b, size_t n, EachState what, real *host) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < b[i].n_params; k++) {
            const Matrix *m = &b[i].params[k];
            if (!m->low_rank) continue;
            if (what) what(m->q, host + at);
            at += tensor_count(m->q);
        }
    return at;
}
// Calls what(t, place of t in host) for each tensor t that is kept between steps, unless `what` is
// NULL. Returns the number of elements of all these tensors.
static size_t each_state(const Compression *c, EachState what, real *host) {
    size_t at = tensor_count(c->error);
    if (at && what) what(c->error, host);
    for (size_t i = 0; i < c->n_buckets; i++) {
        const CompressedBucket *b = &c->buckets[i];
        if (b->server_error.data && what) what(b->server_error, host + at);
        at += tensor_count(b->server_error);
    }
    return at + compressed_factors(c->buckets, c->n_buckets, what, host ? host + at : NULL);
}
static void read_state(Tensor t, real *host) { tensor_download(host, t); }
static void write_state(Tensor t, real *host) { tensor_upload(t, host); }
size_t compression_state_count(const Compression *c) { return each_state(c, NULL, NULL); }
void compression_state_read(const Compression *c, real *state) { each_state(c, read_state, state); }
void compression_state_write(Compression *c, const real *state) {
    each_state(c, write_state, (real *)state);
}

// Takes the last bucket first, which is the order in which backward finishes the buckets. Here
// backward has ended, so any order that all ranks share would do.
void compression_all_reduce(Compression *c, Tensor g) {
    static Compress *const compress[METHODS] = { compress_half, compress_top_k, compress_one_bit,
                                                 compress_power_sgd };
    for (size_t i = c->n_buckets; i-- > 0;) {
        CompressedBucket *b = &c->buckets[i];
        Tensor e = c->error;
        if (e.data) e = tensor_flat_range(c->error, b->range.lo, b->range.hi);
        compress[c->plan.method](c, b, tensor_flat_range(g, b->range.lo, b->range.hi), e);
    }
}

void compression_free(Compression *c) {
    compressed_buckets_free(c->buckets, c->n_buckets);
    arena_free(&c->gradients);
    arena_free(&c->state);
    free(c);
}
