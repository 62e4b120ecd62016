// nan_product.c: a preloaded library (LD_PRELOAD) that spoils one matrix product. The calls of
// cblas_sgemm in a process are counted from 0. In call NAN_CALL the first element of the result
// becomes NaN. Under mpirun only the rank NAN_RANK gets a NaN; without NAN_RANK no rank gets a NaN.
// A program outside mpirun gets a NaN if NAN_RANK is not set. At its end a process writes the
// number of its products to the file that PRODUCTS names. NAN_CALL, NAN_RANK and PRODUCTS are
// environment variables.
#define _GNU_SOURCE
#include <cblas.h>
#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef void Product(enum CBLAS_ORDER, enum CBLAS_TRANSPOSE, enum CBLAS_TRANSPOSE, blasint, blasint,
                     blasint, float, const float *, blasint, const float *, blasint, float, float *,
                     blasint);
static atomic_long calls;

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE of_a, enum CBLAS_TRANSPOSE of_b,
                 blasint m, blasint n, blasint k, float alpha, const float *a, blasint lda,
                 const float *b, blasint ldb, float beta, float *c, blasint ldc) {
    Product *product = (Product *)dlsym(RTLD_NEXT, "cblas_sgemm");
    product(order, of_a, of_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (atomic_fetch_add(&calls, 1) != number("NAN_CALL", -1)) return;
    if (number("NAN_RANK", -1) == number("OMPI_COMM_WORLD_RANK", -1)) c[0] = NAN;
}

__attribute__((destructor)) static void tell(void) {
    // The launcher's shells load this library, too. They compute no products and must not overwrite
    // the file.
    const char *file = atomic_load(&calls) > 0 ? getenv("PRODUCTS") : NULL;
    FILE *f = file ? fopen(file, "w") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", atomic_load(&calls));
    fclose(f);
}
