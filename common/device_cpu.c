// device_cpu.c: the device is the host. Memory is aligned_alloc's, GEMM is CBLAS's.
#include "device.h"
#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include "util.h"

// OpenBLAS only; weak, so that any other CBLAS links too.
void openblas_set_num_threads(int threads) __attribute__((weak));

#ifdef REAL_IS_DOUBLE
#define CBLAS_GEMM cblas_dgemm
#else
#define CBLAS_GEMM cblas_sgemm
#endif

enum { ALIGNMENT = 64 };      // a cache line, and the widest vector

const char *device_name(void) { return "cpu"; }

// Ranks are the parallelism here. A BLAS with threads of its own would fight them for the cores, and its bits would
// depend on how many it found.
void device_init(void) {
    if (openblas_set_num_threads) openblas_set_num_threads(1);
}

void device_prepare(void) { }
void device_rank_end(void) { }

bool device_is_gpu(void) { return false; }
size_t device_gpus(void) { return 0; }
void device_choose(size_t local_rank) { (void)local_rank; }
void device_id(char id[32]) { id[0] = 0; }
void device_allow_tf32(void) { }

void *device_alloc(size_t bytes) {
    size_t rounded = bytes ? ceil_div(bytes, ALIGNMENT) * ALIGNMENT : ALIGNMENT;
    return aligned_alloc(ALIGNMENT, rounded);
}

void device_free(void *p) { free(p); }

void *device_host_alloc(size_t bytes) { return host_alloc(bytes); }
void device_host_free(void *p) { free(p); }

void device_copy(void *to, const void *from, size_t bytes) {
    if (bytes) memmove(to, from, bytes);
}
void device_upload(void *to, const void *from, size_t bytes) { device_copy(to, from, bytes); }
void device_download(void *to, const void *from, size_t bytes) { device_copy(to, from, bytes); }

void device_fill(void *p, int byte, size_t bytes) {
    if (bytes) memset(p, byte, bytes);
}
void device_synchronize(void) { }

// The host's clock will do: nothing is queued here.
void device_mark_start(void) { }
size_t device_mark(void) { return 0; }
double device_mark_seconds(size_t mark) { (void)mark; return 0; }

void device_gemm(int a_transposed, int b_transposed, int m, int n, int k,
                 const real *a, int lda, const real *b, int ldb, real *c, int ldc) {
    CBLAS_GEMM(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans,
               m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
}
