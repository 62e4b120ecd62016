// for_each.h: defines the loops of the ops, and macros that depend on the compiler. The body of an
// op's loop is written once, for one item. FOR_EACH runs the body for every item, in a loop in C or
// in a kernel in CUDA C++ (for_each_cuda.h). A body must be valid C and valid C++. A body must not
// change variables that are declared outside it, because a kernel has copies of these variables.
#ifndef FOR_EACH_H
#define FOR_EACH_H
#ifdef __cplusplus
#include "common/device/for_each_cuda.h"
#else
#define ITEM static inline
// Put INDEPENDENT before a loop with independent iterations. The compiler may then vectorise the
// loop. Without INDEPENDENT the compiler must assume that a store may change a later load, because
// input and output may be the same memory (an op in place).
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" // without vectors the plain loop is correct, too
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
// device_threads is the number of threads per rank, which device_set_threads() sets (device.h). A
// single thread computes an item.
extern int device_threads;
#define PRAGMA(...) _Pragma(#__VA_ARGS__)
#ifdef _OPENMP
#define ON_THREADS(enough) \
    PRAGMA(omp parallel for schedule(static) num_threads(device_threads) if (enough))
#else
#define ON_THREADS(enough)
#endif
// FOR_EACH(i, n, body) runs body for every i in [0, n). Items must not depend on each other. The
// body is the last argument and may contain commas, but no continue or return.
#define FOR_EACH(i, n, ...) \
    do { \
        const size_t i##_end = (n); \
        ON_THREADS(device_threads > 1 && i##_end > 1) \
        for (size_t i = 0; i < i##_end; i++) __VA_ARGS__ \
    } while (0)
// FOR_EACH_PART(r, lo, hi, rows, cols, body) runs body for every part of a matrix. The body
// computes one part, which is columns lo <= c < hi of row r. On a CPU a part is usually a whole
// row, so the compiler can vectorise the loop, and the body computes values for the whole row once.
// If there are fewer rows than threads, each row is cut into one part per thread instead. On a GPU
// a part is one element.
#define FOR_EACH_PART(r, lo, hi, rows, cols, ...) \
    do { \
        const size_t r##_rows = (rows), r##_cols = (cols), r##_threads = (size_t)device_threads; \
        const size_t r##_cuts = r##_rows < r##_threads ? r##_threads : 1; \
        ON_THREADS(device_threads > 1 && r##_rows * r##_cols >= PART_MOST) \
        for (size_t r##_part = 0; r##_part < r##_rows * r##_cuts; r##_part++) { \
            const size_t r = r##_part / r##_cuts, r##_cut = r##_part % r##_cuts; \
            const size_t lo = r##_cut * r##_cols / r##_cuts, \
                         hi = (r##_cut + 1) * r##_cols / r##_cuts; \
            (void)lo, (void)hi; \
            __VA_ARGS__ \
        } \
    } while (0)
enum { PART_MOST = 4096 }; // with fewer elements a single thread is faster
// A column sum works on strips of STRIP neighbouring columns. On a CPU a strip is wide enough for
// vector instructions. On a GPU a strip is one column. Each column is summed in row order, so the
// width of a strip does not change the bits.
enum { STRIP = 64 };
#endif
#endif
