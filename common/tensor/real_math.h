// real_math.h: defines exp, sums and maxima that a compiler can vectorise without fast-math, in the
// common subset of C and C++. libm's exp is a function call per element. real_exp() has only
// arithmetic, shifts and selections, without a call or a branch.
#ifndef REAL_MATH_H
#define REAL_MATH_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include "common/device/for_each.h"
#include "common/base/real.h"

// exp(x) = 2^n e^r with n = round(x / ln 2), so |r| <= ln 2 / 2. The constant ln 2 has two parts,
// so n times the first part is exact (Cody and Waite 1980). SHIFT is 1.5 * 2^(mantissa bits) plus a
// bias. Adding SHIFT rounds x / ln 2 to the integer n and leaves n + bias in the low bits. A shift
// moves these bits into the exponent field, and the result is the number 2^(n-1). The exponent is
// n - 1 instead of n, so that the largest results need no infinite factor. The polynomial is
// doubled instead. The polynomial is e^r = 1 + r + r^2 q(r), with q fitted at Chebyshev's points.
// The error is at most 2 units in the last place. A result above the largest number is infinity.
// The result is 0 if x < LOW (results below 2.4e-38, in fp64 4.5e-308), and NaN for NaN.
#ifdef REAL_IS_DOUBLE
ITEM double real_exp(double x) {
    const double SHIFT = 0x1.8p52 + 1022, LOW = -707.7, HIGH = 709.782712893383973;
    double in = x < LOW ? LOW : x > HIGH ? HIGH : x;
    double t = in * 0x1.71547652b82fep0 + SHIFT, n = t - SHIFT, power;
    double r = (in - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double q;
    const uint64_t INFINITE = UINT64_C(0x7ff) << 52;
    uint64_t bits;
    q = 0x1.71de0d85293b8p-19 + r * (0x1.2891d4ffbb0f9p-22 + r * 0x1.af390ba7e6f47p-26);
    q = 0x1.6c16c1789d1d7p-10 + r * (0x1.a01a01a7cebcdp-13 + r * (0x1.a019b8ca26fcfp-16 + r * q));
    q = 0.5 + r * (0x1.5555555555556p-3 +
                   r * (0x1.5555555553d37p-5 + r * (0x1.11111111109a6p-7 + r * q)));
    memcpy(&bits, &t, sizeof bits);
    bits <<= 52;
    bits = x < LOW ? 0 : x > HIGH ? INFINITE : bits;
    memcpy(&power, &bits, sizeof power);
    return power * (2 + 2 * (r + r * r * q));
}
#else
ITEM float real_exp(float x) {
    const float SHIFT = 0x1.8p23f + 126, LOW = -86.64f, HIGH = 88.72283f;
    float in = x < LOW ? LOW : x > HIGH ? HIGH : x;
    float t = in * 0x1.715476p0f + SHIFT, n = t - SHIFT, power;
    float r = (in - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float q = 0x1.5554dcp-3f + r * (0x1.555518p-5f + r * (0x1.120be2p-7f + r * 0x1.6d117cp-10f));
    q = 0.5f + r * q;
    const uint32_t INFINITE = 0xffu << 23;
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits <<= 23;
    bits = x < LOW ? 0 : x > HIGH ? INFINITE : bits;
    memcpy(&power, &bits, sizeof power);
    return power * (2 + 2 * (r + r * r * q));
}
#endif
#ifdef REAL_IS_DOUBLE
ITEM double real_sqrt(double x) { return sqrt(x); }
#else
ITEM float real_sqrt(float x) { return sqrtf(x); }
#endif
ITEM real real_sigmoid(real x) { return 1 / (1 + real_exp(-x)); }

// ROW_SUM(type, total, i, n, term) sets total to the sum of term over i in [0, n), in an order that
// depends on n alone. The macro keeps LANES running sums side by side. After every BLOCK terms the
// macro adds the LANES sums together, and adds the result to `total`, a double. So the sum of a
// long row (a vocabulary) is about as accurate as that of a short row, and the sum of a row has the
// same bits on every rank.
enum { LANES = 32, BLOCK = 512 };
#define ROW_SUM(type, total, i, n, ...) \
    do { \
        total = 0; \
        for (size_t begin_ = 0; begin_ < (n); begin_ += BLOCK) { \
            const size_t end_ = (n)-begin_ < BLOCK ? (n) : begin_ + BLOCK; \
            type lane_[LANES]; \
            size_t base_ = begin_; \
            for (int l_ = 0; l_ < LANES; l_++) lane_[l_] = 0; \
            for (; base_ + LANES <= end_; base_ += LANES) \
                for (size_t l_ = 0; l_ < LANES; l_++) { \
                    const size_t i = base_ + l_; \
                    lane_[l_] += (__VA_ARGS__); \
                } \
            for (size_t i = base_; i < end_; i++) lane_[i - base_] += (__VA_ARGS__); \
            for (int half_ = LANES / 2; half_ > 0; half_ /= 2) \
                for (int l_ = 0; l_ < half_; l_++) lane_[l_] += lane_[l_ + half_]; \
            total += (double)lane_[0]; \
        } \
    } while (0)

ITEM real row_max(const real *x, size_t n) {
    real lane[LANES];
    size_t base = 0;
    for (int l = 0; l < LANES; l++) lane[l] = -(real)HUGE_VAL;
    for (; base + LANES <= n; base += LANES)
        for (size_t l = 0; l < LANES; l++) lane[l] = x[base + l] > lane[l] ? x[base + l] : lane[l];
    for (size_t i = base; i < n; i++)
        lane[i - base] = x[i] > lane[i - base] ? x[i] : lane[i - base];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] = lane[l + half] > lane[l] ? lane[l + half] : lane[l];
    return lane[0];
}
#endif
