// speed.c: prints the name of the BLAS kernels, the speed of one core with these kernels, and the
// core's limit. The output has two lines; the first line is empty if the BLAS does not name its
// kernels.
// make doctor compiles this program for this processor and runs it.
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "common/device/blas_kernels.h"

// A multiply-add takes about 4 cycles, and 2 start in each cycle, so the loop needs at least 8
// independent chains. CHAINS is smaller than the number of vector registers, because the factors
// need registers, too. Other processors than x86 are assumed to have vectors of 16 bytes, 32
// registers and 4 pipes.
#if defined __AVX512F__
enum { WIDTH = 64, CHAINS = 16 }; // bytes
#elif defined __AVX__
enum { WIDTH = 32, CHAINS = 12 };
#elif defined __x86_64__
enum { WIDTH = 16, CHAINS = 12 };
#else
enum { WIDTH = 16, CHAINS = 16 };
#endif
typedef float Vector __attribute__((vector_size(WIDTH)));
enum { STEPS = 500000, N = 1024 };  // STEPS take some milliseconds; a product has N x N matrices
static const double PATIENCE = 0.8; // seconds

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double multiply_adds(void) {                // FLOP/s
    volatile float factor = 0.999f, term = 0.001f; // volatile: the compiler knows no value
    const Vector a = factor - (Vector){ 0 }, b = term - (Vector){ 0 };
    Vector x[CHAINS], sum = { 0 };
    for (int c = 0; c < CHAINS; c++) x[c] = b * (float)c;
    const double start = now();
    for (int step = 0; step < STEPS; step++)
        for (int c = 0; c < CHAINS; c++) x[c] = x[c] * a + b;
    const double seconds = now() - start;
    for (int c = 0; c < CHAINS; c++) sum += x[c];
    term = sum[0]; // the sum is used, so the compiler cannot leave out the loop
    return 2.0 * STEPS * CHAINS * (WIDTH / sizeof(float)) / seconds;
}

static double product(float *c, const float *a, const float *b) {
    const double start = now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, b, N, 0, c, N);
    return 2.0 * N * N * N / (now() - start);
}

static void print_kernels(void) {
    const char *core = kernels_in_use(), *better = kernels_advised();
    if (core) printf("kernels for %s", core);
    if (core && getenv("OPENBLAS_CORETYPE")) printf(", as OPENBLAS_CORETYPE demands");
    if (better)
        printf("; they are older than this processor, which could use the kernels for %s", better);
    printf("\n");
}

int main(void) {
    print_kernels();
    float *a = malloc(N * N * sizeof *a), *b = malloc(N * N * sizeof *b),
          *c = malloc(N * N * sizeof *c);
    if (!a || !b || !c) return 1;
    for (int i = 0; i < N * N; i++) a[i] = b[i] = 1.0f / (float)(1 + i % 97);
    double does = 0, could = 0; // the best of each, because other programs may use this core
    for (const double start = now(); now() - start < PATIENCE;) {
        const double rate = product(c, a, b), limit = multiply_adds();
        if (does < rate) does = rate;
        if (could < limit) could = limit;
    }
    printf("%.0f GFLOP/s in a product of 1024 x 1024 fp32 matrices, %.0f %% of its %.0f in "
           "multiply-adds alone\n",
           1e-9 * does, 100 * does / could, 1e-9 * could);
}
