// device_cpu.c: implements device.h on the host. malloc allocates the memory, and CBLAS computes
// the products.
#include "common/device/device.h"
#include <cblas.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/for_each.h"
#include "common/base/util.h"

// Only OpenBLAS has this function. The symbol is weak, so that programs link with any other CBLAS,
// too.
void openblas_set_num_threads(int threads) __attribute__((weak));

#ifdef REAL_IS_DOUBLE
#define CBLAS_GEMM cblas_dgemm
#define CBLAS_GEMV cblas_dgemv
#else
#define CBLAS_GEMM cblas_sgemm
#define CBLAS_GEMV cblas_sgemv
#endif

enum { ALIGNMENT = 64 }; // a cache line, and the widest vector

const char *device_name(void) { return "cpu"; }
void (*device_meanwhile)(double waited);
int device_threads = 1;

// Gives the BLAS one thread, because more threads would compete with the ranks for the cores.
void device_init(void) {
    if (openblas_set_num_threads) openblas_set_num_threads(1);
    // All threads share one heap, because only one virtual rank runs at a time. The heap keeps
    // freed memory. By default free() would return large blocks to the system, and every step would
    // get new pages from the system.
    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
}

void device_set_threads(size_t threads) {
#ifndef _OPENMP
    REQUIRE(threads == 1,
            "--threads %zu: this program was built without OpenMP, so a rank has one thread; "
            "install it (clang: libomp-dev) and make again",
            threads);
#endif
    device_threads = (int)threads;
}

void device_prepare(void) {}
void device_rank_end(void) {}

bool device_is_gpu(void) { return false; }
size_t device_gpus(void) { return 0; }
void device_choose(size_t local_rank) { (void)local_rank; }
void device_id(char id[32]) { id[0] = 0; }
void device_allow_tf32(void) {}

// Aligns a block of malloc(). aligned_alloc() is not used, because it would leave gaps that no
// later request fits into. The word before the returned block holds the address that malloc()
// returned.
void *device_alloc(size_t bytes) {
    char *all = malloc(bytes + ALIGNMENT);
    if (!all) return NULL;
    char *p = all + ALIGNMENT - (uintptr_t)all % ALIGNMENT;
    ((char **)p)[-1] = all; // malloc aligns to 16 bytes, so the block has room for this address
    return p;
}

void device_free(void *p) {
    if (p) free(((char **)p)[-1]);
}

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
void device_synchronize(void) {}

// A CPU has no queue of work, so record.c reads clock_now() instead of marks.
void device_mark_start(void) {}
size_t device_mark(void) { return 0; }
double device_mark_seconds(size_t mark) {
    (void)mark;
    return 0;
}

static void product(int a_transposed, int b_transposed, int m, int n, int k, const real *a, int lda,
                    const real *b, int ldb, real *c, int ldc) {
    CBLAS_GEMM(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
               b_transposed ? CblasTrans : CblasNoTrans, m, n, k, 1, a, lda, b, ldb, 0, c, ldc);
}

// Computes c = a b. If a is one row and b is large, the function uses a product of a vector and a
// matrix (GEMV), which reads b once, in place. A matrix product (GEMM) would first copy b into
// panels. c is cleared and beta is 1, because BLAS libraries differ in 0 * NaN.
enum { LARGE = 1 << 14 }; // elements of b; below this size the copy costs little
static void matrix_or_row(int a_transposed, int b_transposed, int m, int n, int k, const real *a,
                          int lda, const real *b, int ldb, real *c, int ldc) {
    if (m > 1 || a_transposed || (size_t)n * (size_t)k < LARGE) {
        product(a_transposed, b_transposed, m, n, k, a, lda, b, ldb, c, ldc);
        return;
    }
    memset(c, 0, (size_t)n * sizeof *c);
    if (b_transposed) CBLAS_GEMV(CblasRowMajor, CblasNoTrans, n, k, 1, b, ldb, a, 1, 1, c, 1);
    else CBLAS_GEMV(CblasRowMajor, CblasTrans, k, n, 1, b, ldb, a, 1, 1, c, 1);
}

// With several threads, c is cut along its longer side, between pieces of PIECE_OF rows or columns,
// so that a piece of columns fills whole vectors. Each thread computes a part of c with a BLAS of
// one thread.
enum { PIECE_OF = 16 };
void device_gemm(int a_transposed, int b_transposed, int m, int n, int k, const real *a, int lda,
                 const real *b, int ldb, real *c, int ldc) {
    const bool by_rows = m >= n;
    const size_t pieces = ceil_div((size_t)(by_rows ? m : n), PIECE_OF);
    const size_t parts = pieces < (size_t)device_threads ? pieces : (size_t)device_threads;
    if (parts == 1) {
        matrix_or_row(a_transposed, b_transposed, m, n, k, a, lda, b, ldb, c, ldc);
        return;
    }
    FOR_EACH(i, parts, {
        Range r = shard_range(pieces, parts, i);
        size_t lo = r.lo * PIECE_OF, hi = r.hi * PIECE_OF, most = (size_t)(by_rows ? m : n),
               ld_a = (size_t)lda;
        int size = (int)((hi < most ? hi : most) - lo);
        if (by_rows)
            product(a_transposed, b_transposed, size, n, k, a + (a_transposed ? lo : lo * ld_a),
                    lda, b, ldb, c + lo * (size_t)ldc, ldc);
        else
            matrix_or_row(a_transposed, b_transposed, m, size, k, a, lda,
                          b + (b_transposed ? lo * (size_t)ldb : lo), ldb, c + lo, ldc);
    });
}

static size_t at(BatchSteps s, size_t i, size_t j) { return i * s.step[0] + j * s.step[1]; }

void device_gemm_batch(int a_transposed, int b_transposed, int m, int n, int k,
                       const size_t count[2], const real *a, int lda, BatchSteps a_steps,
                       const real *b, int ldb, BatchSteps b_steps, real *c, int ldc,
                       BatchSteps c_steps) {
    const size_t columns = count[1];
    FOR_EACH(number, count[0] * columns, {
        const size_t i = number / columns, j = number % columns;
        product(a_transposed, b_transposed, m, n, k, a + at(a_steps, i, j), lda,
                b + at(b_steps, i, j), ldb, c + at(c_steps, i, j), ldc);
    });
}

// CBLAS has no products of 16-bit matrices, so only reals can be multiplied.
bool device_multiplies(Element a, Element b, Element c) {
    return a == REALS && b == REALS && c == REALS;
}
void device_multiply_halves(const HalfProducts *p) {
    fault("a product of %s on the CPU: widen the factors first",
          p->factors == BF16S ? "bf16" : "fp16");
}
