// tensor.h: a tensor is a row-major matrix, or a rectangle of a larger one. The `cols` elements of
// a row are neighbours in memory; the next row begins `ld` elements later. Tensors with more axes
// are stored as matrices: [B*T, C] is B sequences of T positions with C features.
#ifndef TENSOR_H
#define TENSOR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/tensor/memory.h"
#include "common/base/real.h"

// data may be device memory, so chapters never read it.
typedef struct {
    real *data;
    size_t rows, cols, ld;
} Tensor;
typedef struct {
    size_t rows, cols;
} Shape;

Tensor tensor_new(Arena *a, size_t rows, size_t cols); // filled with NaN, not with zeros
static inline Tensor tensor_shaped(Arena *a, Shape s) { return tensor_new(a, s.rows, s.cols); }
static inline size_t tensor_count(Tensor t) { return t.rows * t.cols; }
static inline bool tensor_contiguous(Tensor t) { return t.ld == t.cols || t.rows <= 1; }

// Views do not copy; fault() if they are out of range.
Tensor tensor_row_range(Tensor t, size_t lo, size_t hi); // rows lo <= r < hi
Tensor tensor_col_range(Tensor t, size_t lo, size_t hi); // columns lo <= c < hi
// Elements lo <= i < hi of a contiguous tensor, as [1, hi-lo].
Tensor tensor_flat_range(Tensor t, size_t lo, size_t hi);
Tensor tensor_reshape(Tensor t, size_t rows, size_t cols); // same elements, contiguous

void tensor_fill(Tensor t, real value);
void tensor_copy(Tensor to, Tensor from);        // same shape
void tensor_upload(Tensor to, const real *from); // from: contiguous host memory, rows*cols
void tensor_download(real *to, Tensor from);
// Fills t with normal values. Element (r, c) is a function of key and r*cols + c.
void tensor_randomize(Tensor t, uint64_t key, double deviation);
double tensor_sum(Tensor t);            // in double: adds each row, then the rows in order
double tensor_sum_of_squares(Tensor t); // in the same order
bool tensor_equal(Tensor a, Tensor b);  // equal shape and equal bits

int *ints_new(Arena *a, size_t n); // device memory for tokens and targets
void ints_upload(int *to, const int *from, size_t n);
#endif
