// for_each_cuda.h: defines the macros of for_each.h for CUDA C++. FOR_EACH turns its body into a
// lambda, which has copies of the variables that the body uses. FOR_EACH launches the lambda as a
// kernel on this rank's stream, with one thread per item. The launch does not wait. The next
// download waits for the kernel.
//
// With CUDA_STANDIN a plain C++ compiler compiles the file that includes this header. A kernel is
// then a function that the stand-in for the CUDA runtime (tests/standin) queues. So the host's code
// is tested without a GPU.
//
// The Makefile puts the whole C file into extern "C" { }, so templates need extern "C++". This file
// defines the keywords of C that C++ lacks.
#ifndef FOR_EACH_CUDA_H
#define FOR_EACH_CUDA_H
#include <cuda_runtime.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define _Noreturn __attribute__((noreturn))
#define _Thread_local __thread

#ifdef CUDA_STANDIN
#define ITEM static inline
#define MEMBER
#define BODY [=]
#else
#define ITEM static inline __host__ __device__
#define MEMBER __host__ __device__ // marks a member function that kernels call
#define BODY [=] __device__
#endif
#define INDEPENDENT
enum { STRIP = 1 };

extern "C" {
#include "common/base/util.h"
#include "common/device/device_cuda.h"
}
// A kernel cannot call exercise_open() (util.h), which is a function of the host. In a kernel TODO
// does nothing. The checks still fail, because the kernel of an open exercise gives a wrong result.
#ifdef __CUDA_ARCH__
#undef TODO
#define TODO(id) ((void)0)
#endif

extern "C++" {
#ifdef CUDA_STANDIN
// Items must be independent. To find dependent items, the stand-in runs the last item first.
template <typename Body> struct EachItem {
    size_t n;
    Body body;
    void operator()() const {
        for (size_t i = n; i-- > 0;) body(i);
    }
};
template <typename Body> struct EachPart {
    size_t rows, cols;
    Body body;
    void operator()() const {
        for (size_t r = rows; r-- > 0;)
            for (size_t c = cols; c-- > 0;) body(r, c, c + 1);
    }
};
template <typename Body> void launch_items(const char *op, size_t n, Body body) {
    if (n == 0) return;
    standin_launch(device_stream(), op, EachItem<Body>{ n, body });
    device_launched(op, cudaGetLastError());
}
template <typename Body> void launch_parts(const char *op, size_t rows, size_t cols, Body body) {
    if (rows == 0 || cols == 0) return;
    standin_launch(device_stream(), op, EachPart<Body>{ rows, cols, body });
    device_launched(op, cudaGetLastError());
}
#else
template <typename Body>
__global__ void __launch_bounds__(THREADS) item_kernel(size_t n, Body body) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) body(i);
}
// Neighbouring threads compute neighbouring columns. The kernel divides 64-bit numbers only for
// large matrices, because such a division is slow.
template <typename Body>
__global__ void __launch_bounds__(THREADS) part_kernel(size_t n, size_t cols, Body body) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    const size_t r = n == cols ? 0
                     : n >> 32 ? i / cols
                               : (uint32_t)i / (uint32_t)cols,
                 c = i - r * cols;
    body(r, c, c + 1);
}
template <typename Body> void launch_items(const char *op, size_t n, Body body) {
    if (n == 0) return;
    item_kernel<<<device_blocks(op, n), THREADS, 0, device_stream()>>>(n, body);
    device_launched(op, cudaGetLastError());
}
template <typename Body> void launch_parts(const char *op, size_t rows, size_t cols, Body body) {
    if (rows == 0 || cols == 0) return;
    part_kernel<<<device_blocks(op, rows * cols), THREADS, 0, device_stream()>>>(rows * cols, cols,
                                                                                 body);
    device_launched(op, cudaGetLastError());
}
#endif
}
#define FOR_EACH(i, n, ...) launch_items(__func__, (n), BODY([[maybe_unused]] size_t i) __VA_ARGS__)
#define FOR_EACH_PART(r, lo, hi, rows, cols, ...) \
    launch_parts(__func__, (rows), (cols), \
                 BODY([[maybe_unused]] size_t r, [[maybe_unused]] size_t lo, \
                      [[maybe_unused]] size_t hi) __VA_ARGS__)
#endif
