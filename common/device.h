// device.h: the few things a backend must do. device_cpu.c is malloc and CBLAS; device_cuda.c is the CUDA runtime and
// cuBLAS. Only memory.c, tensor.c and ops.c call this.
#ifndef DEVICE_H
#define DEVICE_H
#include <stddef.h>
#include "real.h"

const char *device_name(void);                 // "cpu"
void device_init(void);                        // once per process: pins the BLAS to one thread
void *device_alloc(size_t bytes);              // 64-byte aligned; NULL when there is none left
void device_free(void *p);
void device_copy(void *to, const void *from, size_t bytes);          // device to device
void device_upload(void *to, const void *from, size_t bytes);        // host to device
void device_download(void *to, const void *from, size_t bytes);      // device to host; waits for the ops before it
void device_poison(void *p, size_t bytes);     // every byte 0xff: NaN as float and as double

// Row-major GEMM: c[m,n] = op(a)[m,k] op(b)[k,n] + beta c; op transposes where the flag is set;
// ld = elements from row to row.
void device_gemm(int a_transposed, int b_transposed, size_t m, size_t n, size_t k,
                 const real *a, size_t lda, const real *b, size_t ldb, real beta, real *c, size_t ldc);
#endif
