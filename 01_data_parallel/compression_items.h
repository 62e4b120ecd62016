// compression_items.h: functions that compress one element, pack 32 signs, or make the columns of a
// matrix orthonormal. The functions are written in the common subset of C and C++, because in a GPU
// build they run on the device, where the tensors are.
//
// A compressed gradient is stored in a tensor of reals. Smaller values are packed into the bytes of
// the reals. These bytes are only copied until the receiver unpacks the values.
#ifndef COMPRESSION_ITEMS_H
#define COMPRESSION_ITEMS_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "common/device/for_each.h"
#include "common/base/real.h"

// ---- IEEE binary16 (fp16): 1 sign, 5 exponent and 10 fraction bits. The largest number is 65504.
//      Numbers from 2^-14 on have 11 significant bits. Smaller numbers are multiples of 2^-24. ----

ITEM double power_of_two(int e) { // -1022 <= e <= 1023
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
// Returns the bits of x in fp16, rounded to the nearest, ties to even. The fp16 numbers near |x|
// are multiples of 2^s. So |x| is rounded to a count times 2^s, and the lower 15 bits follow from s
// and this count. If rounding makes the count the next power of two, the carry raises the exponent,
// which is right.
ITEM uint16_t half_from(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int sign = (int)(bits >> 63) << 15, exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    const double size = fabs(x);
    // Too large for fp16, infinite, or NaN.
    if (!(size < 65520)) return (uint16_t)(sign | (size >= 65520 ? 0x7c00 : 0x7e00));
    const int s = (exponent < -14 ? -14 : exponent) - 10;
    return (uint16_t)(sign | (((s + 24) << 10) + (int)rint(size * power_of_two(-s))));
}
ITEM double half_value(uint16_t h) {
    const int exponent = h >> 10 & 31, fraction = h & 0x3ff;
    const double sign = h >> 15 ? -1 : 1;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? (1024 + fraction) * power_of_two(exponent - 25)
                            : fraction * power_of_two(-24));
}
ITEM void write_half(real *packed, size_t i, double x) {
    const uint16_t h = half_from(x);
    memcpy((char *)packed + i * sizeof h, &h, sizeof h);
}
ITEM double read_half(const real *packed, size_t i) {
    uint16_t h;
    memcpy(&h, (const char *)packed + i * sizeof h, sizeof h);
    return half_value(h);
}

// ---- a message of top-k: k indices of 4 bytes each, then k values ----

ITEM uint32_t read_index(const real *message, size_t i) {
    uint32_t index;
    memcpy(&index, (const char *)message + i * sizeof index, sizeof index);
    return index;
}
ITEM void add_pair(real *y, const real *message, const real *values, size_t i) {
    y[read_index(message, i)] += values[i];
}

// ---- signs: one bit per element, 32 elements per word. Bit b of word i is 1 if element 32 i + b
//      is negative. ----

// Writes the signs of elements 32 i to 32 i + 31 of x[n]. Elements after the end of x count as
// positive.
ITEM void write_signs(real *packed, const real *x, size_t n, size_t i) {
    uint32_t bits = 0;
    for (size_t b = 0; b < 32 && 32 * i + b < n; b++) bits |= (uint32_t)(x[32 * i + b] < 0) << b;
    memcpy((char *)packed + i * sizeof bits, &bits, sizeof bits);
}
ITEM real read_sign(const real *packed, size_t i) {
    uint32_t bits;
    memcpy(&bits, (const char *)packed + i / 32 * sizeof bits, sizeof bits);
    return bits >> i % 32 & 1 ? (real)-1 : (real)1;
}

// ---- modified Gram and Schmidt, one matrix ----

ITEM double column_product(const real *a, const real *b, size_t rows, size_t ld) {
    double sum = 0;
    for (size_t i = 0; i < rows; i++) sum += (double)a[i * ld] * (double)b[i * ld];
    return sum;
}
// Makes the columns of p [rows, cols] orthonormal, from left to right. If a column is almost in the
// span of the earlier columns, mostly rounding errors remain after one pass. So each column has two
// passes. A column of zeros stays zero.
ITEM void orthonormal_columns(real *p, size_t rows, size_t cols) {
    for (size_t c = 0; c < cols; c++)
        for (int sweep = 0; sweep < 2; sweep++) {
            for (size_t b = 0; b < c; b++) {
                const double along = column_product(p + b, p + c, rows, cols);
                for (size_t i = 0; i < rows; i++)
                    p[i * cols + c] -= (real)(along * (double)p[i * cols + b]);
            }
            const double length = sqrt(column_product(p + c, p + c, rows, cols));
            for (size_t i = 0; i < rows && length > 0; i++)
                p[i * cols + c] = (real)((double)p[i * cols + c] / length);
        }
}
#endif
