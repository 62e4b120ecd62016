// storage.h: converts numbers of 16 bits to reals, and rounds reals to 16 bits, in the common
// subset of C and C++.
//
// bf16 has 8 bits of exponent, as float has, and 7 bits of fraction. So bf16 has the range of
// float. fp16 (IEEE binary16) has 5 bits of exponent and 10 bits of fraction. The largest fp16
// number is 65504. Below 2^-14 the fp16 numbers are the multiples of 2^-24. A real is rounded to
// the nearest number of the format. If two numbers are equally near, the result is the number whose
// last bit is 0. A result that is too large is infinite, and NaN stays NaN. Choices are conditional
// expressions instead of branches, so loops over these functions vectorise.
#ifndef STORAGE_H
#define STORAGE_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "common/device/for_each.h"
#include "common/base/real.h"

ITEM uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
ITEM float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// A double is rounded to float before it is rounded to 16 bits. If the first rounding were to the
// nearest float, its result could be a tie, and the second rounding could break the tie in the
// wrong direction. So the first rounding is to odd: an inexact result is the neighbour whose last
// bit is 1. Such a float is never a tie (Boldo and Melquiond 2008).
#ifdef REAL_IS_DOUBLE
ITEM float real_float(double x) {
    const float nearest = (float)x;
    uint32_t bits = float_bits(nearest);
    bits -= fabs((double)nearest) > fabs(x) ? 1 : 0;
    bits |= (double)nearest != x ? 1 : 0;
    return bits_float(bits);
}
#else
ITEM float real_float(float x) { return x; }
#endif

ITEM float bf16_value(uint16_t h) { return bits_float((uint32_t)h << 16); }
// Rounds to bf16. The function adds half of the last place that remains, or 1 less than half if the
// last remaining bit is 0. Then the function cuts off the lower 16 bits. A carry into the exponent
// gives the right number.
ITEM uint16_t bf16_round(float x) {
    const uint32_t bits = float_bits(x), up = 0x7fff + (bits >> 16 & 1);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return (uint16_t)(nan ? bits >> 16 | 0x40 : (bits + up) >> 16);
}

// float and fp16 differ by 112 in the bias of the exponent, and by 13 bits in the length of the
// fraction. The floats from 0.5 to 1 are multiples of 2^-24. So fp16_round() adds 0.5 to a number
// below 2^-14, and the addition rounds the number to such a multiple. fp16_value() subtracts 0.5
// again.
enum { FP16_EXPONENTS = 112 << 23, FP16_HALF = 126 << 23, FP16_NORMAL = 113 << 23 };
enum { FP16_TOO_LARGE = 143 << 23 }; // 65536
ITEM float fp16_value(uint16_t h) {
    const uint32_t size = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16;
    const uint32_t small = float_bits(bits_float(FP16_HALF + size) - 0.5f);
    const uint32_t normal = (size << 13) + FP16_EXPONENTS;
    const uint32_t special = size << 13 | 0x7f800000; // an infinity, or NaN
    return bits_float(sign | (size < 0x400 ? small : size < 0x7c00 ? normal : special));
}
ITEM uint16_t fp16_round(float x) {
    const uint32_t bits = float_bits(x), size = bits & 0x7fffffff;
    const uint32_t small = float_bits(bits_float(size) + 0.5f) - FP16_HALF;
    const uint32_t normal = (size - FP16_EXPONENTS + 0xfff + (size >> 13 & 1)) >> 13;
    const uint32_t special = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t rounded = size < FP16_NORMAL ? small : size < FP16_TOO_LARGE ? normal : special;
    return (uint16_t)((bits >> 16 & 0x8000) | rounded);
}

ITEM real stored_value(Element e, uint16_t h) {
    return e == BF16S ? (real)bf16_value(h) : (real)fp16_value(h);
}
ITEM uint16_t stored_round(Element e, real x) {
    return e == BF16S ? bf16_round(real_float(x)) : fp16_round(real_float(x));
}
// Converts elements lo <= c < hi of a row from 16 bits to reals. round_part() rounds reals to 16
// bits.
ITEM void widen_part(real *y, const uint16_t *x, Element e, size_t lo, size_t hi) {
    if (e == BF16S) {
        INDEPENDENT
        for (size_t c = lo; c < hi; c++) y[c] = (real)bf16_value(x[c]);
    } else {
        INDEPENDENT
        for (size_t c = lo; c < hi; c++) y[c] = (real)fp16_value(x[c]);
    }
}
ITEM void round_part(uint16_t *y, const real *x, Element e, size_t lo, size_t hi) {
    if (e == BF16S) {
        INDEPENDENT
        for (size_t c = lo; c < hi; c++) y[c] = bf16_round(real_float(x[c]));
    } else {
        INDEPENDENT
        for (size_t c = lo; c < hi; c++) y[c] = fp16_round(real_float(x[c]));
    }
}
#endif
