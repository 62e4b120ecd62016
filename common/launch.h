// launch.h: the one place that knows which compiler runs. An op is written once, as a function of one item; FOR_EACH
// runs it for every item: a loop in C, a kernel in CUDA C++ (launch_cuda.h). Bodies stay in the common subset of C and
// C++. They see the variables around them as they are at the launch, and must not change them: a kernel has copies.
#ifndef LAUNCH_H
#define LAUNCH_H
#ifdef __cplusplus
#include "launch_cuda.h"
#else
#define ITEM static inline
// Before a loop whose turns do not depend on each other, though their pointers may be equal (an op in place): the
// compiler need not fear that a store changes a later load.
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"    // where flags or the target forbid it, the plain loop is right too
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
// FOR_EACH(i, n, body): body for every i in [0, n). Items must not depend on each other. The body is the last argument
// and may contain commas, but no continue or return.
#define FOR_EACH(i, n, ...) for (size_t i = 0, i##_end = (n); i < i##_end; i++) __VA_ARGS__
// FOR_EACH_PART(r, lo, hi, rows, cols, body): every element of a matrix; the body does columns lo <= c < hi of row r.
// On a CPU a part is a whole row, so that what a row shares is worked out once and the loop vectorises; on a GPU it is
// one element.
#define FOR_EACH_PART(r, lo, hi, rows, cols, ...) \
    for (size_t r = 0, r##_end = (rows), lo = 0, hi = (cols); r < r##_end; r++) __VA_ARGS__
// Column sums walk down a strip of neighbouring columns: wide enough to vectorise on a CPU, one on a GPU. A column's
// sum is added in row order whatever the width, so the width does not change a bit.
enum { STRIP = 64 };
#endif
#endif
