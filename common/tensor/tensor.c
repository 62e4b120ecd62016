// tensor.c: creates, views, fills, copies, sums and compares tensors, in the common subset of C and
// C++.
#include "common/tensor/tensor.h"
#include <stdlib.h>
#include "common/device/device.h"
#include "common/device/for_each.h"
#include "common/tensor/random.h"
#include "common/tensor/real_math.h"
#include "common/tensor/storage.h"
#include "common/base/util.h"

size_t element_size(Element e) {
    return e == REALS ? sizeof(real) : element_is_half(e) ? 2 : e == DOUBLES ? sizeof(double) : 1;
}
const char *element_name(Element e) {
    static const char *const name[] = { REAL_NAME, "bf16", "fp16", "doubles", "bytes" };
    return name[e];
}

Tensor tensor_shaped(Arena *a, Shape s) {
    Tensor t;
    if (s.cols && s.rows > SIZE_MAX / element_size(s.element) / s.cols)
        fault(
            "tensor_new: [%zu, %zu] has more bytes than a size_t can count; choose a smaller model",
            s.rows, s.cols);
    t.data = (real *)arena_alloc(a, s.rows * s.cols * element_size(s.element));
    t.rows = s.rows;
    t.cols = t.ld = s.cols;
    t.element = s.element;
    return t;
}
Tensor tensor_new(Arena *a, size_t rows, size_t cols) {
    return tensor_shaped(a, tensor_shape(rows, cols, REALS));
}
Tensor tensor_like(Arena *a, Tensor t) {
    return tensor_shaped(a, tensor_shape(t.rows, t.cols, t.element));
}

void tensor_need_reals(const char *op, const char *name, Tensor t) {
    if (t.element != REALS)
        fault("%s: %s is stored in %s, but this op reads and writes %s only: give it a tensor of "
              "reals",
              op, name, element_name(t.element), element_name(REALS));
}

int *ints_new(Arena *a, size_t n) { return (int *)arena_alloc(a, n * sizeof(int)); }

void ints_upload(int *to, const int *from, size_t n) { device_upload(to, from, n * sizeof(int)); }

// ---- views ----

// Returns the tensor whose first element is element n of t's memory.
static Tensor from_element(Tensor t, size_t n) {
    if (t.element == REALS) t.data += n;
    else t.half += n;
    return t;
}

Tensor tensor_row_range(Tensor t, size_t lo, size_t hi) {
    if (lo > hi || hi > t.rows)
        fault("tensor_row_range: rows %zu to %zu of [%zu, %zu]", lo, hi, t.rows, t.cols);
    t = from_element(t, lo * t.ld);
    t.rows = hi - lo;
    return t;
}

Tensor tensor_col_range(Tensor t, size_t lo, size_t hi) {
    if (lo > hi || hi > t.cols)
        fault("tensor_col_range: columns %zu to %zu of [%zu, %zu]", lo, hi, t.rows, t.cols);
    t = from_element(t, lo);
    t.cols = hi - lo;
    return t;
}

static void need_contiguous(Tensor t, const char *who) {
    if (!tensor_contiguous(t))
        fault("%s: [%zu, %zu] with %zu elements from row to row is not contiguous", who, t.rows,
              t.cols, t.ld);
}

Tensor tensor_flat_range(Tensor t, size_t lo, size_t hi) {
    need_contiguous(t, "tensor_flat_range");
    if (lo > hi || hi > tensor_count(t))
        fault("tensor_flat_range: elements %zu to %zu of [%zu, %zu]", lo, hi, t.rows, t.cols);
    t = from_element(t, lo);
    t.rows = 1;
    t.cols = t.ld = hi - lo;
    return t;
}

Tensor tensor_reshape(Tensor t, size_t rows, size_t cols) {
    need_contiguous(t, "tensor_reshape");
    if (rows * cols != tensor_count(t))
        fault("tensor_reshape: [%zu, %zu] to [%zu, %zu]", t.rows, t.cols, rows, cols);
    t.rows = rows;
    t.cols = t.ld = cols;
    return t;
}

// ---- values ----

ITEM void fill_part(real *y, real value, size_t lo, size_t hi) {
    for (size_t c = lo; c < hi; c++) y[c] = value;
}
ITEM void fill_half_part(uint16_t *y, uint16_t value, size_t lo, size_t hi) {
    for (size_t c = lo; c < hi; c++) y[c] = value;
}
void tensor_fill(Tensor t, real value) {
    if (tensor_contiguous(t)) t = tensor_reshape(t, 1, tensor_count(t));
    if (element_is_half(t.element)) {
        const uint16_t rounded = stored_round(t.element, value);
        FOR_EACH_PART(r, lo, hi, t.rows, t.cols,
                      { fill_half_part(t.half + r * t.ld, rounded, lo, hi); });
        return;
    }
    FOR_EACH_PART(r, lo, hi, t.rows, t.cols, { fill_part(t.data + r * t.ld, value, lo, hi); });
}

ITEM void copy_part(real *y, const real *x, size_t lo, size_t hi) {
    INDEPENDENT
    for (size_t c = lo; c < hi; c++) y[c] = x[c];
}
ITEM void copy_half_part(uint16_t *y, const uint16_t *x, Element to, Element from, size_t lo,
                         size_t hi) {
    for (size_t c = lo; c < hi; c++)
        y[c] = to == from ? x[c] : stored_round(to, stored_value(from, x[c]));
}
// At least one of the two tensors has 16 bits.
static void copy_stored(Tensor to, Tensor from) {
    if (from.element == REALS)
        FOR_EACH_PART(r, lo, hi, to.rows, to.cols, {
            round_part(to.half + r * to.ld, from.data + r * from.ld, to.element, lo, hi);
        });
    else if (to.element == REALS)
        FOR_EACH_PART(r, lo, hi, to.rows, to.cols, {
            widen_part(to.data + r * to.ld, from.half + r * from.ld, from.element, lo, hi);
        });
    else
        FOR_EACH_PART(r, lo, hi, to.rows, to.cols, {
            copy_half_part(to.half + r * to.ld, from.half + r * from.ld, to.element, from.element,
                           lo, hi);
        });
}
void tensor_copy(Tensor to, Tensor from) {
    if (to.rows != from.rows || to.cols != from.cols)
        fault("tensor_copy: [%zu, %zu] to [%zu, %zu]", from.rows, from.cols, to.rows, to.cols);
    if (tensor_contiguous(to) && tensor_contiguous(from)) {
        if (to.element == from.element) {
            device_copy(to.data, from.data, tensor_bytes(to));
            return;
        }
        to = tensor_reshape(to, 1, tensor_count(to));
        from = tensor_reshape(from, 1, tensor_count(from));
    }
    if (to.element != REALS || from.element != REALS) {
        copy_stored(to, from);
        return;
    }
    FOR_EACH_PART(r, lo, hi, to.rows, to.cols,
                  { copy_part(to.data + r * to.ld, from.data + r * from.ld, lo, hi); });
}

// The host converts the elements.
static void upload_halves(Tensor to, const real *from) {
    const size_t n = tensor_count(to);
    uint16_t *half = (uint16_t *)host_alloc(n * sizeof *half);
    round_part(half, from, to.element, 0, n);
    for (size_t r = 0; r < to.rows; r++)
        device_upload(to.half + r * to.ld, half + r * to.cols, to.cols * sizeof *half);
    free(half);
}
static void download_halves(real *to, Tensor from) {
    const size_t n = tensor_count(from);
    uint16_t *half = (uint16_t *)host_alloc(n * sizeof *half);
    for (size_t r = 0; r < from.rows; r++)
        device_download(half + r * from.cols, from.half + r * from.ld, from.cols * sizeof *half);
    widen_part(to, half, from.element, 0, n);
    free(half);
}

void tensor_upload(Tensor to, const real *from) {
    if (element_is_half(to.element)) {
        upload_halves(to, from);
        return;
    }
    if (tensor_contiguous(to)) {
        device_upload(to.data, from, tensor_count(to) * sizeof(real));
        return;
    }
    for (size_t r = 0; r < to.rows; r++)
        device_upload(to.data + r * to.ld, from + r * to.cols, to.cols * sizeof(real));
}

void tensor_download(real *to, Tensor from) {
    if (element_is_half(from.element)) {
        download_halves(to, from);
        return;
    }
    if (tensor_contiguous(from)) {
        device_download(to, from.data, tensor_count(from) * sizeof(real));
        return;
    }
    for (size_t r = 0; r < from.rows; r++)
        device_download(to + r * from.cols, from.data + r * from.ld, from.cols * sizeof(real));
}

ITEM void randomize_part(real *y, uint64_t key, double deviation, uint64_t first, size_t lo,
                         size_t hi) {
    for (size_t c = lo; c < hi; c++)
        y[c] = (real)(random_normal(random_key(key, first + c)) * deviation);
}
// Returns a contiguous tensor of reals with the shape of t, in this rank's scratch. The values are
// not copied; widened() copies them.
static Tensor scratch_like(Tensor t) {
    Tensor wide = t;
    wide.data = (real *)memory_scratch(tensor_count(t) * sizeof(real));
    wide.ld = t.cols;
    wide.element = REALS;
    return wide;
}
static Tensor widened(Tensor t) {
    const Tensor wide = scratch_like(t);
    tensor_copy(wide, t);
    return wide;
}

void tensor_randomize(Tensor t, uint64_t key, double deviation) {
    if (t.element != REALS) {
        const Tensor wide = scratch_like(t);
        tensor_randomize(wide, key, deviation);
        tensor_copy(t, wide);
        return;
    }
    FOR_EACH_PART(r, lo, hi, t.rows, t.cols, {
        randomize_part(t.data + r * t.ld, key, deviation, (uint64_t)r * t.cols, lo, hi);
    });
}

// ---- sums for the host ----

// Returns the sum of one block of at most BLOCK elements, as ROW_SUM computes it. Each item of
// FOR_EACH is one block, so that a long row keeps a GPU busy. The host adds the sums of the blocks
// in order, so the result has the same bits as ROW_SUM of the whole row.
ITEM double sum_block(const real *x, size_t n) {
    double sum;
    ROW_SUM(double, sum, c, n, (double)x[c]);
    return sum;
}
ITEM double sum_of_squares_block(const real *x, size_t n) {
    double sum;
    ROW_SUM(double, sum, c, n, (double)x[c] * (double)x[c]);
    return sum;
}

// The device computes the sums of CHUNK blocks at a time, and the host adds these sums. A chunk has
// many blocks, so that the host seldom fetches sums. The memory of the sums belongs to no
// technique, so this memory counts as MEM_REFERENCE.
enum { CHUNK = 8192 };
static double sum_of_rows(Tensor t, bool squares) {
    const size_t per_row = ceil_div(t.cols, BLOCK), blocks = t.rows * per_row;
    Arena scratch = arena(MEM_REFERENCE);
    double *device =
        (double *)arena_alloc(&scratch, (blocks < CHUNK ? blocks : (size_t)CHUNK) * sizeof *device);
    double sum = 0, row_sum = 0, host[CHUNK];
    for (size_t first = 0; first < blocks; first += CHUNK) {
        const size_t n = blocks - first < CHUNK ? blocks - first : (size_t)CHUNK;
        FOR_EACH(i, n, {
            const size_t r = (first + i) / per_row, lo = (first + i) % per_row * BLOCK;
            const size_t width = t.cols - lo < BLOCK ? t.cols - lo : (size_t)BLOCK;
            const real *x = t.data + r * t.ld + lo;
            device[i] = squares ? sum_of_squares_block(x, width) : sum_block(x, width);
        });
        device_download(host, device, n * sizeof *host);
        for (size_t i = 0; i < n; i++) {
            row_sum += host[i];
            if ((first + i + 1) % per_row != 0) continue;
            sum += row_sum;
            row_sum = 0;
        }
    }
    arena_free(&scratch);
    return sum;
}

static double sum_in_doubles(Tensor t, bool squares) {
    return sum_of_rows(t.element == REALS ? t : widened(t), squares);
}
double tensor_sum(Tensor t) { return sum_in_doubles(t, false); }
double tensor_sum_of_squares(Tensor t) { return sum_in_doubles(t, true); }

ITEM bool same_bits(real a, real b) {
    uint64_t x = 0, y = 0;
    memcpy(&x, &a, sizeof a);
    memcpy(&y, &b, sizeof b);
    return x == y;
}
ITEM void differ_part(int *differs, const real *a, const real *b, size_t lo, size_t hi) {
    for (size_t c = lo; c < hi; c++)
        if (!same_bits(a[c], b[c])) *differs = 1; // several threads may write, but all write 1
}
ITEM void differ_half_part(int *differs, const uint16_t *a, const uint16_t *b, size_t lo,
                           size_t hi) {
    for (size_t c = lo; c < hi; c++)
        if (a[c] != b[c]) *differs = 1;
}
bool tensor_equal(Tensor a, Tensor b) {
    need_contiguous(a, "tensor_equal");
    need_contiguous(b, "tensor_equal");
    if (tensor_count(a) != tensor_count(b))
        fault("tensor_equal: [%zu, %zu] and [%zu, %zu]", a.rows, a.cols, b.rows, b.cols);
    if (a.element != b.element)
        fault("tensor_equal: %s and %s have different bits", element_name(a.element),
              element_name(b.element));
    Arena scratch = arena(MEM_REFERENCE);
    int no = 0, answer, *differs = ints_new(&scratch, 1);
    ints_upload(differs, &no, 1);
    if (a.element == REALS)
        FOR_EACH_PART(r, lo, hi, 1, tensor_count(a),
                      { differ_part(differs + r, a.data, b.data, lo, hi); });
    else
        FOR_EACH_PART(r, lo, hi, 1, tensor_count(a),
                      { differ_half_part(differs + r, a.half, b.half, lo, hi); });
    device_download(&answer, differs, sizeof answer);
    arena_free(&scratch);
    return answer == 0;
}
