// device.h: the few things a backend must do. device_cpu.c is malloc and CBLAS; device_cuda.c is
// the CUDA runtime and cuBLAS. Only memory.c, tensor.c, ops.c, the clock's recorder and the frame
// of Comm call this.
//
// On a GPU the calls that return nothing to the host are only queued, on a stream of this rank's
// own: they are done in order, and what fails is found at the next download.
#ifndef DEVICE_H
#define DEVICE_H
#include <stdbool.h>
#include <stddef.h>
#include "common/base/real.h"

const char *device_name(void); // "cpu", "cuda"; "standin": CUDA's calls without a GPU, for tests
void device_init(void);        // once per process
// Threads of a rank, for products and for row-wise ops; 1 at the start. usage_error() where this
// program has none. Before the ranks start, or by all of them alike. The bits of a product may
// depend on it.
extern int device_threads;
void device_set_threads(size_t threads);
void device_prepare(void);  // of processes that communicate, before MPI starts: CUDA's environment
void device_rank_end(void); // gives back what this rank has of the device: its stream, its BLAS

// --- GPUs ---
bool device_is_gpu(void);
size_t device_gpus(void); // that this process sees; usage_error() where there is none
// before the ranks start: this process's GPU, by its number on the host
void device_choose(size_t local_rank);
void device_id(char id[32]);  // of the chosen GPU: the same in two processes that share it
void device_allow_tf32(void); // before the ranks start: products may round their factors to 10 bits

// What else is to be moved on while this rank computes (called between products, waited 0) or waits
// for its GPU (for so many seconds now). NULL: nothing. Set by transports.
extern void (*device_meanwhile)(double waited);

// --- memory ---
void *device_alloc(size_t bytes); // 64-byte aligned; NULL when there is none left
void device_free(void *p);
void *device_host_alloc(size_t bytes); // host memory from which the device copies fast
void device_host_free(void *p);
void device_copy(void *to, const void *from, size_t bytes);   // device to device
void device_upload(void *to, const void *from, size_t bytes); // host to device
// device to host; waits for the ops before it
void device_download(void *to, const void *from, size_t bytes);
void device_fill(void *p, int byte, size_t bytes);
void device_synchronize(void); // waits for all that this rank has queued

// --- time on a GPU: marks between what this rank has queued. Nobody waits for them until they are
// read. ---
void device_mark_start(void); // waits for all that is queued; mark 0 is now, others are gone
size_t device_mark(void); // after all that was queued so far; the last mark, if nothing was since
double device_mark_seconds(size_t mark); // from mark 0 to this one; waits for it

// Row-major GEMM: c[m,n] = op(a)[m,k] op(b)[k,n], whatever (NaN) c was; op transposes where the
// flag is set; ld = elements from row to row, at least the columns of a row. m, n, k > 0.
void device_gemm(int a_transposed, int b_transposed, int m, int n, int k, const real *a, int lda,
                 const real *b, int ldb, real *c, int ldc);
// count[0] * count[1] products of one shape: that of number (i, j) has its matrices i * step[0] + j
// * step[1] elements behind the first ones.
typedef struct {
    size_t step[2];
} BatchSteps;
void device_gemm_batch(int a_transposed, int b_transposed, int m, int n, int k,
                       const size_t count[2], const real *a, int lda, BatchSteps a_steps,
                       const real *b, int ldb, BatchSteps b_steps, real *c, int ldc,
                       BatchSteps c_steps);
#endif
