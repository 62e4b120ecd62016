// compression_pack.c: packs and chooses elements, and makes columns orthonormal, for
// 06_compression.c and 08_power_sgd.c. No function sends. This file is written in the common subset
// of C and C++, because a GPU build compiles it as C++.
#include "01_data_parallel/compression.h"
#include <stdlib.h>
#include "01_data_parallel/compression_items.h"

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
    frexp(largest * (double)n, &exponent); // largest * n < 2^exponent
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
