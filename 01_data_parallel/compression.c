// compression.c: the loop over the buckets, the state kept between steps, and helpers that send
// nothing, for 06_compression.c and 08_power_sgd.c. The helpers pack, choose, and orthonormalise.
// This file is written in the common subset of C and C++, because a GPU build compiles it as C++.
#include "01_data_parallel/compression.h"
#include <stdlib.h>
#include "01_data_parallel/compression_items.h"
#include "common/tensor/random.h"

// ---------------------------------------------------------------- packed elements

Range elements_of_part(size_t n, size_t bits, size_t parts, size_t part) {
    const size_t per = 8 * sizeof(real) / bits;
    Range r = shard_range(packed_count(n, bits), parts, part);
    r.lo = r.lo * per < n ? r.lo * per : n;
    r.hi = r.hi * per < n ? r.hi * per : n;
    return r;
}

void compression_keep_rest(const Compression *c, Tensor e, Tensor sent) {
    const size_t n = tensor_count(e);
    if (c->plan.forgets) {
        tensor_fill(e, 0);
        return;
    }
    FOR_EACH(i, n, { e.data[i] -= sent.data[i]; });
}

// ---------------------------------------------------------------- 16 bits

double half_scale(double largest, size_t n) {
    if (!(largest > 0) || isinf(largest)) return 1;
    int exponent;
    frexp(largest * (double)n, &exponent); // largest n < 2^exponent
    return ldexp(1, 15 - exponent);
}

Tensor half_largest(Arena *a, Tensor g) {
    Tensor size = tensor_new(a, 1, tensor_count(g)), most = tensor_new(a, 1, 1);
    FOR_EACH(i, tensor_count(g), { size.data[i] = g.data[i] < 0 ? -g.data[i] : g.data[i]; });
    op_row_max(most, size);
    return most;
}

void half_write(Tensor packed, Tensor g, double scale) {
    tensor_fill(packed, 0);
    FOR_EACH(i, tensor_count(g), { write_half(packed.data, i, (double)g.data[i] * scale); });
}
void half_add(Tensor sum, Tensor packed) {
    FOR_EACH(i, tensor_count(sum), { sum.data[i] += (real)read_half(packed.data, i); });
}
void half_read(Tensor g, Tensor packed, double scale) {
    FOR_EACH(i, tensor_count(g), { g.data[i] = (real)(read_half(packed.data, i) / scale); });
}

// ---------------------------------------------------------------- top-k

// Reorders v so that v[k] is the element that sorting would put there, largest first (Hoare 1961).
// Returns v[k].
static real select_largest(real *v, size_t n, size_t k) {
    size_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const real pivot = v[lo + (hi - lo) / 2];
        size_t i = lo, j = hi;
        for (;;) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i >= j) break;
            const real swap = v[i];
            v[i++] = v[j];
            v[j--] = swap;
        }
        if (k <= j) hi = j;
        else lo = j + 1;
    }
    return v[k];
}

void largest_places(const real *x, size_t n, size_t k, uint32_t *places) {
    real *size = (real *)host_alloc(n * sizeof *size);
    for (size_t i = 0; i < n; i++) size[i] = x[i] < 0 ? -x[i] : x[i];
    const real least = select_largest(size, n, k - 1);
    size_t above = 0, found = 0;
    for (size_t i = 0; i < n; i++) above += x[i] > least || -x[i] > least;
    size_t equal = k - above; // number of chosen elements whose absolute value is `least`
    for (size_t i = 0; i < n && found < k; i++) {
        const real s = x[i] < 0 ? -x[i] : x[i];
        if (s > least || (s == least && equal > 0)) places[found++] = (uint32_t)i;
        if (s == least && equal > 0) equal--;
    }
    free(size);
}

// Chooses on the host, because a selection is a few lines there. On a GPU, a real system chooses on
// the device.
void top_k_write(Tensor message, Tensor x, size_t k) {
    const size_t n = tensor_count(x), packed = packed_count(k, 32);
    real *host = (real *)host_alloc(n * sizeof *host);
    real *out = (real *)host_alloc(tensor_count(message) * sizeof *out);
    uint32_t *places = (uint32_t *)host_alloc(k * sizeof *places);
    tensor_download(host, x);
    largest_places(host, n, k, places);
    memcpy(out, places, k * sizeof *places);
    for (size_t i = 0; i < k; i++) out[packed + i] = host[places[i]];
    tensor_upload(message, out);
    free(host);
    free(out);
    free(places);
}

void top_k_add(Tensor y, Tensor message, size_t k) {
    const real *values = message.data + packed_count(k, 32);
    // All places differ, so no two items write the same element.
    FOR_EACH(i, k, { add_pair(y.data, message.data, values, i); });
}

// ---------------------------------------------------------------- one bit

real sign_scale(Tensor x) {
    const size_t d = tensor_count(x);
    return d ? (real)sqrt(tensor_sum_of_squares(x) / (double)d) : 0;
}

Tensor one_bit_write(Arena *a, Tensor packed, Tensor scale, Tensor x) {
    const size_t n = tensor_count(x);
    const size_t of_32 = tensor_count(packed) * sizeof(real) / sizeof(uint32_t);
    const real s = sign_scale(x);
    Tensor sent = tensor_new(a, 1, n);
    tensor_upload(scale, &s);
    FOR_EACH(i, of_32, { write_signs(packed.data, x.data, n, i); });
    FOR_EACH(i, n, { sent.data[i] = s * read_sign(packed.data, i); });
    return sent;
}

void one_bit_add(Tensor sum, Tensor packed, Tensor scale) {
    FOR_EACH(i, tensor_count(sum), { sum.data[i] += scale.data[0] * read_sign(packed.data, i); });
}
void one_bit_read(Tensor x, Tensor packed, size_t first, Tensor scale) {
    FOR_EACH(i, tensor_count(x),
             { x.data[i] = scale.data[0] * read_sign(packed.data, first + i); });
}

// ---------------------------------------------------------------- PowerSGD

void orthonormalise(Tensor p) {
    FOR_EACH(one, 1, { orthonormal_columns(p.data, p.rows, p.cols); });
}

// ---------------------------------------------------------------- buckets

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
        // The key does not depend on the rank, so every rank starts with the same q.
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
// Calls what(), if given, for each tensor that is kept between steps, with its place in host.
// Returns the number of all elements.
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

// Takes the last bucket first, because backward finishes the last layers first.
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
