// tensor.h: declares a tensor, which is a row-major matrix or a rectangle of a larger matrix. The
// `cols` elements of a row are adjacent in memory. The next row begins `ld` elements after the
// beginning of a row. Tensors with more axes are stored as matrices: [B*T, C] is B sequences of T
// positions with C features.
#ifndef TENSOR_H
#define TENSOR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/tensor/memory.h"
#include "common/base/real.h"

// `data` may point to device memory, so lessons read the elements only in ops and in FOR_EACH
// loops. tensor_download() copies the elements to host memory.
typedef struct {
    size_t rows, cols, ld;
    Element element;
    union {
        real *data;     // if element is REALS
        uint16_t *half; // if element is BF16S or FP16S
    };
} Tensor;
typedef struct {
    size_t rows, cols;
    Element element;
} Shape;

size_t element_size(Element e);      // returns bytes
const char *element_name(Element e); // returns "fp32", "fp64", "bf16", "fp16", ...
static inline bool element_is_half(Element e) { return e == BF16S || e == FP16S; }
static inline Shape tensor_shape(size_t rows, size_t cols, Element element) {
    const Shape s = { rows, cols, element };
    return s;
}

// tensor_new(), tensor_shaped() and tensor_like() do not zero a new tensor. While memory_poison()
// is true, a new tensor holds NaN. tensor_new() makes a tensor of reals.
Tensor tensor_new(Arena *a, size_t rows, size_t cols);
Tensor tensor_shaped(Arena *a, Shape s);
// Returns a new tensor with the shape and the element type of t.
Tensor tensor_like(Arena *a, Tensor t);
static inline size_t tensor_bytes(Tensor t) { return t.rows * t.cols * element_size(t.element); }
// Calls fault() if the elements of t are not reals. `op` and `name` are the op and its operand, for
// the message.
void tensor_need_reals(const char *op, const char *name, Tensor t);
static inline size_t tensor_count(Tensor t) { return t.rows * t.cols; }
static inline bool tensor_contiguous(Tensor t) { return t.ld == t.cols || t.rows <= 1; }

// The tensor_*_range functions and tensor_reshape() return a view, which shares the memory of t. A
// range outside of t is a fault().
Tensor tensor_row_range(Tensor t, size_t lo, size_t hi); // returns rows lo <= r < hi
Tensor tensor_col_range(Tensor t, size_t lo, size_t hi); // returns columns lo <= c < hi
// Returns elements lo <= i < hi of a contiguous tensor, as [1, hi-lo].
Tensor tensor_flat_range(Tensor t, size_t lo, size_t hi);
// Returns the same elements in another shape. t must be contiguous.
Tensor tensor_reshape(Tensor t, size_t rows, size_t cols);

void tensor_fill(Tensor t, real value);
// Copies to a tensor of the same shape. Converts if the element types differ.
void tensor_copy(Tensor to, Tensor from);
// Copies rows*cols reals from contiguous host memory to a tensor.
void tensor_upload(Tensor to, const real *from);
// Copies a tensor to rows*cols reals of host memory.
void tensor_download(real *to, Tensor from);
// Fills t with normally distributed values of mean 0 and this deviation. Element (r, c) is a
// function of key, deviation and r*cols + c.
void tensor_randomize(Tensor t, uint64_t key, double deviation);
// Returns the sum of all elements in double. Adds the elements of each row as ROW_SUM does
// (real_math.h), then the sums of the rows in order.
double tensor_sum(Tensor t);
double tensor_sum_of_squares(Tensor t); // adds in the order of tensor_sum()
// Returns whether all bits of a and b are equal. Calls fault() if a tensor is not contiguous, or if
// the counts of elements or the element types differ.
bool tensor_equal(Tensor a, Tensor b);

int *ints_new(Arena *a, size_t n); // returns device memory for n ints, such as tokens
void ints_upload(int *to, const int *from, size_t n);
#endif
