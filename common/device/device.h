// device.h: declares the functions that a backend must provide. device_cpu.c uses malloc and CBLAS;
// device_cuda.c uses the CUDA runtime and cuBLAS. In common/, only memory.c, tensor.c, ops.c and
// the files of comm/ call these functions.
//
// On a GPU, a copy on the device, a fill or a product is only queued, on this rank's own stream.
// The queued work runs in order. An error of the queued work appears at a later call that waits,
// such as a download.
#ifndef DEVICE_H
#define DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/real.h"

// Returns "cpu", "cuda", or "standin" (CUDA's calls without a GPU, for tests).
const char *device_name(void);
void device_init(void); // prepares the device; called once per process
// device_threads is the number of threads per rank, for products and row-wise ops. At the start
// device_threads is 1. Call device_set_threads() before the ranks start, or on all ranks with the
// same number. A program built for GPUs or without OpenMP allows only 1, and calls usage_error()
// for another number. The bits of a product may depend on the number of threads.
extern int device_threads;
void device_set_threads(size_t threads);
void device_prepare(void);  // sets CUDA's environment; called before MPI starts
void device_rank_end(void); // frees this rank's stream and BLAS handle

// --- GPUs ---
bool device_is_gpu(void);
// Returns the number of GPUs that this process sees, or 0 in a CPU build. A build for GPUs calls
// usage_error() if there is no GPU.
size_t device_gpus(void);
// Chooses GPU local_rank modulo the number of GPUs. local_rank is the number of this process on its
// host. Call this function before the ranks start.
void device_choose(size_t local_rank);
// Writes the id of the chosen GPU. Two processes that share a GPU get the same id.
void device_id(char id[32]);
// Allows the GPU to round the factors of products to 10 bits of fraction (TF32). Call this function
// before the ranks start.
void device_allow_tf32(void);

// A transport sets device_meanwhile, so that messages progress while a rank works. NULL means that
// messages progress without calls. ops.c calls the function at each product, with waited = 0.
// device_synchronize() on a GPU calls the function while this rank waits, with the seconds of the
// wait so far.
extern void (*device_meanwhile)(double waited);

// --- memory ---
// Returns device memory aligned to 64 bytes, or NULL if no memory is left.
void *device_alloc(size_t bytes);
void device_free(void *p);
// Returns host memory from which the device copies fast.
void *device_host_alloc(size_t bytes);
void device_host_free(void *p);
void device_copy(void *to, const void *from, size_t bytes);   // device to device
void device_upload(void *to, const void *from, size_t bytes); // host to device; waits
// Copies from device to host, after all queued ops, and waits for the copy.
void device_download(void *to, const void *from, size_t bytes);
void device_fill(void *p, int byte, size_t bytes);
void device_synchronize(void); // waits for everything that this rank has queued

// --- time on a GPU: marks in the queue of work ---
// Waits for all queued work, deletes all marks and sets mark 0. device_mark() does not wait.
void device_mark_start(void);
// Sets a mark after all work queued so far, and returns its number. If nothing was queued since the
// last mark, returns the number of the last mark.
size_t device_mark(void);
// Returns the time from mark 0 to this mark. Waits for the mark.
double device_mark_seconds(size_t mark);

// Computes the row-major GEMM c[m,n] = op(a)[m,k] op(b)[k,n]. The product overwrites c, even
// elements that hold NaN. op transposes a matrix if its flag (a_transposed, b_transposed) is set.
// lda, ldb and ldc are the numbers of elements from row to row. m, n, k > 0.
void device_gemm(int a_transposed, int b_transposed, int m, int n, int k, const real *a, int lda,
                 const real *b, int ldb, real *c, int ldc);
// A batch has count[0] * count[1] products of one shape. The matrices of product (i, j) begin i *
// step[0] + j * step[1] elements after the first matrices.
typedef struct {
    size_t step[2];
} BatchSteps;
void device_gemm_batch(int a_transposed, int b_transposed, int m, int n, int k,
                       const size_t count[2], const real *a, int lda, BatchSteps a_steps,
                       const real *b, int ldb, BatchSteps b_steps, real *c, int ldc,
                       BatchSteps c_steps);
// Returns whether the device multiplies matrices of these element types, c = a b. Every device
// multiplies reals. If the function returns false, the caller first widens the factors to reals.
bool device_multiplies(Element a, Element b, Element c);
// device_multiply_halves() computes products of 16-bit factors, like device_gemm_batch(). The
// device multiplies and adds in real, and rounds each element of c once. device_multiplies() must
// return true for the types of a, b and c.
typedef struct {
    int a_transposed, b_transposed, m, n, k;
    Element factors, result; // `factors` is the type of a and b, `result` the type of c
    const uint16_t *a, *b;
    void *c;
    int lda, ldb, ldc;
    size_t count[2];
    BatchSteps a_steps, b_steps, c_steps;
} HalfProducts;
void device_multiply_halves(const HalfProducts *p);
#endif
