// device_cuda.c: implements device.h on a GPU, with CUDA's runtime and cuBLAS. The file is plain C
// and has no kernels; for_each_cuda.h makes the kernels.
//
// A rank has one stream and one cuBLAS handle. The rank's ops, copies and products run on the
// stream, in the order of the calls. Only after device_divert(), ops and copies run on another
// stream. make_ready() creates the stream and the handle when a rank first uses the GPU. A virtual
// rank is a thread, and CUDA gives a new thread GPU 0, so make_ready() also chooses the rank's GPU.
//
// Sections: 1 errors, 2 the GPU of a process, 3 stream and handle of a rank, 4 kernels, 5 memory, 6
// products, 7 marks.
#include "common/device/device_cuda.h"
#include <cublas_v2.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"
#include "common/base/util.h"

static struct {
    int gpu;
    bool tf32;
} chosen; // set before the ranks start
static _Thread_local struct {
    bool ready;
    cudaStream_t stream, other; // ops and copies go to `other` if it is not NULL
    cublasHandle_t blas;
    int math;          // the handle's cublasMath_t
    const char *last;  // the op launched last; a late error comes from this or an earlier op
    cudaEvent_t *mark; // [made] events on `stream`; `marks` of them are in use
    size_t made, marks;
    bool marked; // nothing was queued since the last mark
} rank_gpu;

// ---- 1. Errors ----

static const char *advice(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "; the GPU is full: take fewer ranks, a smaller batch or a smaller model";
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
        return "; nvidia-smi shows the GPUs and the driver; without them, build without "
               "BACKEND=cuda";
    case cudaErrorNoKernelImageForDevice:
        return "; the program was built for other GPUs: make clean, then make BACKEND=cuda "
               "ARCH=all-major";
    case cudaErrorDevicesUnavailable:
        return "; another process uses the GPU exclusively: choose another GPU, or change the mode "
               "(nvidia-smi -q -d COMPUTE shows it)";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
        return "; an op failed before this call: set CUDA_LAUNCH_BLOCKING=1 (not under nccl) to "
               "see its name, or run compute-sanitizer to see the line";
    default: return "";
    }
}

void check_cuda(cudaError_t error, const char *call) {
    if (error == cudaSuccess) return;
    bool later =
        rank_gpu.last && (error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure);
    fault("%.*s failed: %s (%s)%s%s%s", (int)strcspn(call, "("), call, cudaGetErrorString(error),
          cudaGetErrorName(error), later ? "; the last op launched is " : "",
          later ? rank_gpu.last : "", advice(error));
}

static void check_cublas(cublasStatus_t status, const char *call) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    fault("%.*s failed: %s%s", (int)strcspn(call, "("), call, cublasGetStatusString(status),
          status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED
              ? "; if the GPU is full, choose fewer ranks on it"
              : "");
}
#define CUBLAS(call) check_cublas(call, #call)

// ---- 2. The GPU of a process ----

#ifdef CUDA_STANDIN
const char *device_name(void) { return "standin"; }
#else
const char *device_name(void) { return "cuda"; }
#endif
bool device_is_gpu(void) { return true; }
void (*device_meanwhile)(double waited);
int device_threads = 1;
void device_set_threads(size_t threads) {
    REQUIRE(threads == 1, "--threads %zu: on a GPU a rank has one thread; leave --threads out",
            threads);
}

size_t device_gpus(void) {
    int gpus = 0, driver = 0, runtime = 0;
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error == cudaSuccess && gpus > 0) return (size_t)gpus;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    REQUIRE(driver == 0 || error != cudaErrorInsufficientDriver,
            "the GPU's driver knows CUDA up to %d.%d, but this program was built with CUDA %d.%d: "
            "update the driver, or build with an older toolkit (make clean, then make BACKEND=cuda "
            "CUDA_HOME=/its/folder)",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    usage_error("this program was built for GPUs, and there is none here (%s): run it on a machine "
                "with an NVIDIA GPU and its driver, or leave BACKEND=cuda out",
                driver == 0 ? "there is no NVIDIA driver"
                : error == cudaSuccess || error == cudaErrorNoDevice
                    ? "the driver shows none; CUDA_VISIBLE_DEVICES may hide them"
                    : cudaGetErrorString(error));
}

void device_choose(size_t local_rank) { chosen.gpu = (int)(local_rank % device_gpus()); }
void device_id(char id[32]) { CUDA(cudaDeviceGetPCIBusId(id, 32, chosen.gpu)); }
void device_allow_tf32(void) { chosen.tf32 = true; }
void device_init(void) { device_gpus(); }

// Sets CUDA's environment. EAGER overrides a user's choice. With lazy loading the first launch of a
// kernel also loads the kernel, and loading may wait for all work on the GPU. This work may be a
// message whose receiver waits for this rank, and then the ranks deadlock. CUDA's default of 8
// connections is too small, because further streams would share queues and wait for each other.
void device_prepare(void) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

// ---- 3. Stream and handle of a rank ----

static void make_ready(void) {
    if (rank_gpu.ready) return;
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;
    CUDA(cudaSetDevice(chosen.gpu));
    // The pool keeps freed memory for later requests. By default the pool returns memory to the
    // system at every wait.
    CUDA(cudaDeviceGetDefaultMemPool(&pool, chosen.gpu));
    CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    CUDA(cudaStreamCreateWithFlags(&rank_gpu.stream, cudaStreamNonBlocking));
    CUBLAS(cublasCreate(&rank_gpu.blas));
    rank_gpu.math = CUBLAS_DEFAULT_MATH; // a new handle has this mode
    CUBLAS(cublasSetStream(rank_gpu.blas, rank_gpu.stream));
    rank_gpu.ready = true;
}

void device_rank_end(void) {
    if (!rank_gpu.ready) return;
    device_synchronize();
    for (size_t i = 0; i < rank_gpu.made; i++) CUDA(cudaEventDestroy(rank_gpu.mark[i]));
    free(rank_gpu.mark);
    CUBLAS(cublasDestroy(rank_gpu.blas));
    CUDA(cudaStreamDestroy(rank_gpu.stream));
    memset(&rank_gpu, 0, sizeof rank_gpu);
}

static cudaStream_t current_stream(void) {
    make_ready();
    return rank_gpu.other ? rank_gpu.other : rank_gpu.stream;
}

cudaStream_t device_stream(void) {
    rank_gpu.marked = false; // the caller is about to use the stream
    return current_stream();
}

void device_divert(cudaStream_t stream) { rank_gpu.other = stream; }

void device_synchronize(void) {
    cudaStream_t stream = current_stream();
    cudaError_t state = cudaErrorNotReady;
    for (double since = now(); device_meanwhile && state == cudaErrorNotReady; sched_yield()) {
        state = cudaStreamQuery(stream);
        if (state != cudaErrorNotReady) break;
        // Clear the expected error cudaErrorNotReady, so that the next launch does not report this
        // error.
        cudaGetLastError();
        device_meanwhile(now() - since);
    }
    if (state == cudaErrorNotReady) state = cudaStreamSynchronize(stream);
    check_cuda(state, "cudaStreamSynchronize");
}

// ---- 4. Kernels ----

unsigned device_blocks(const char *op, size_t n) {
    size_t blocks = ceil_div(n, THREADS);
    if (blocks > 0x7fffffff) fault("%s: %zu items are more than one launch can have", op, n);
    return (unsigned)blocks;
}

void device_launched(const char *op, cudaError_t error) {
    rank_gpu.last = op;
    check_cuda(error, op);
}

// ---- 5. Memory ----

void *device_alloc(size_t bytes) {
    void *p = NULL;
    cudaMemPool_t pool;
    make_ready();
    cudaError_t error = cudaMallocAsync(&p, bytes ? bytes : 1, rank_gpu.stream);
    // If no memory is left, let the pool return its unused memory to the system, and repeat the
    // request.
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        device_synchronize();
        CUDA(cudaDeviceGetDefaultMemPool(&pool, chosen.gpu));
        CUDA(cudaMemPoolTrimTo(pool, 0));
        error = cudaMallocAsync(&p, bytes ? bytes : 1, rank_gpu.stream);
    }
    if (error == cudaErrorMemoryAllocation) {
        // NULL tells the caller about the error, so clear the error.
        cudaGetLastError();
        return NULL;
    }
    check_cuda(error, "cudaMallocAsync");
    return p;
}

// Frees memory in the order of the stream. cudaFree() would wait for all work on the GPU, even for
// a message whose receiver waits for this rank.
void device_free(void *p) {
    if (rank_gpu.ready) CUDA(cudaFreeAsync(p, rank_gpu.stream));
    else CUDA(cudaFree(p));
}

void *device_host_alloc(size_t bytes) {
    void *p;
    make_ready();
    CUDA(cudaMallocHost(&p, bytes ? bytes : 1));
    return p;
}
void device_host_free(void *p) { CUDA(cudaFreeHost(p)); }

void device_copy(void *to, const void *from, size_t bytes) {
    if (bytes) CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_stream()));
}

// Waits for the copy, because the caller may write to `from` as soon as this call returns.
void device_upload(void *to, const void *from, size_t bytes) {
    if (bytes == 0) return;
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, device_stream()));
    device_synchronize();
}

void device_download(void *to, const void *from, size_t bytes) {
    if (bytes == 0) return;
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, device_stream()));
    device_synchronize();
}

void device_fill(void *p, int byte, size_t bytes) {
    if (bytes) CUDA(cudaMemsetAsync(p, byte, bytes, device_stream()));
}

// ---- 6. Products ----

// These values are modes of a cuBLAS handle. EXACT keeps TF32 out of products of fp32 factors.
// Nobody has tested EXACT with NVIDIA_TF32_OVERRIDE=1. WIDE_SUMS is for factors of 16 bits.
// Products of such factors are exact in fp32, so tensor cores may compute the products. WIDE_SUMS
// also forbids cuBLAS to add parts of a sum in the 16 bits of the result, which would round more
// than once.
enum {
    EXACT = CUBLAS_PEDANTIC_MATH,
    TF32 = CUBLAS_TF32_TENSOR_OP_MATH,
    WIDE_SUMS = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
};
static cublasHandle_t blas_in(int math) {
    device_stream();
    if (rank_gpu.math != math) CUBLAS(cublasSetMathMode(rank_gpu.blas, (cublasMath_t)math));
    rank_gpu.math = math;
    return rank_gpu.blas;
}
static cublasHandle_t blas_of_reals(void) { return blas_in(chosen.tf32 ? TF32 : EXACT); }

static cublasOperation_t operation(int transposed) {
    return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

#ifdef REAL_IS_DOUBLE
#define CUBLAS_GEMM cublasDgemm
#else
#define CUBLAS_GEMM cublasSgemm
#endif

// cuBLAS stores matrices by columns, so cuBLAS sees a row-major matrix as its transpose. cuBLAS
// computes c^T = op(b)^T op(a)^T, so a and b change places. No further transposition is needed.
void device_gemm(int a_transposed, int b_transposed, int m, int n, int k, const real *a, int lda,
                 const real *b, int ldb, real *c, int ldc) {
    const real one = 1, zero = 0;
    CUBLAS(CUBLAS_GEMM(blas_of_reals(), operation(b_transposed), operation(a_transposed), n, m, k,
                       &one, b, ldb, a, lda, &zero, c, ldc));
}

#ifdef REAL_IS_DOUBLE
#define CUBLAS_GEMM_BATCH cublasDgemmStridedBatched
#else
#define CUBLAS_GEMM_BATCH cublasSgemmStridedBatched
#endif

// A call of cuBLAS takes one step per matrix, but BatchSteps has two. So one call computes the
// products (i, j) of all j for one i.
void device_gemm_batch(int a_transposed, int b_transposed, int m, int n, int k,
                       const size_t count[2], const real *a, int lda, BatchSteps a_steps,
                       const real *b, int ldb, BatchSteps b_steps, real *c, int ldc,
                       BatchSteps c_steps) {
    const real one = 1, zero = 0;
    cublasHandle_t blas = blas_of_reals();
    for (size_t i = 0; i < count[0]; i++)
        CUBLAS(CUBLAS_GEMM_BATCH(blas, operation(b_transposed), operation(a_transposed), n, m, k,
                                 &one, b + i * b_steps.step[0], ldb, (long long)b_steps.step[1],
                                 a + i * a_steps.step[0], lda, (long long)a_steps.step[1], &zero,
                                 c + i * c_steps.step[0], ldc, (long long)c_steps.step[1],
                                 (int)count[1]));
}

// cuBLAS multiplies two factors of the same 16-bit type, and writes c in this type or in fp32.
// cuBLAS has no product of such factors with sums in fp64, so a build in fp64 widens the factors.
bool device_multiplies(Element a, Element b, Element c) {
    if (a == REALS && b == REALS && c == REALS) return true;
    return sizeof(real) == sizeof(float) && (a == BF16S || a == FP16S) && a == b &&
           (c == a || c == REALS);
}

static cudaDataType data_type(Element e) {
    return e == BF16S ? CUDA_R_16BF : e == FP16S ? CUDA_R_16F : CUDA_R_32F;
}
void device_multiply_halves(const HalfProducts *p) {
    const float one = 1, zero = 0;
    const cudaDataType factors = data_type(p->factors), result = data_type(p->result);
    const cublasOperation_t op_a = operation(p->a_transposed), op_b = operation(p->b_transposed);
    const size_t size = p->result == REALS ? sizeof(real) : sizeof(uint16_t);
    cublasHandle_t blas = blas_in(WIDE_SUMS);
    if (p->count[0] * p->count[1] == 1) {
        CUBLAS(cublasGemmEx(blas, op_b, op_a, p->n, p->m, p->k, &one, p->b, factors, p->ldb, p->a,
                            factors, p->lda, &zero, p->c, result, p->ldc, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT));
        return;
    }
    for (size_t i = 0; i < p->count[0]; i++)
        CUBLAS(cublasGemmStridedBatchedEx(
            blas, op_b, op_a, p->n, p->m, p->k, &one, p->b + i * p->b_steps.step[0], factors,
            p->ldb, (long long)p->b_steps.step[1], p->a + i * p->a_steps.step[0], factors, p->lda,
            (long long)p->a_steps.step[1], &zero, (char *)p->c + i * p->c_steps.step[0] * size,
            result, p->ldc, (long long)p->c_steps.step[1], (int)p->count[1], CUBLAS_COMPUTE_32F,
            CUBLAS_GEMM_DEFAULT));
}

// ---- 7. Marks ----

size_t device_mark(void) {
    make_ready();
    if (rank_gpu.marked) return rank_gpu.marks - 1;
    if (rank_gpu.marks == rank_gpu.made) {
        size_t more = rank_gpu.made ? 2 * rank_gpu.made : 256;
        cudaEvent_t *all = realloc(rank_gpu.mark, more * sizeof *all);
        if (!all)
            fault("out of memory while recording: leave --svg and --trace out, or run fewer steps");
        for (rank_gpu.mark = all; rank_gpu.made < more; rank_gpu.made++)
            CUDA(cudaEventCreate(&rank_gpu.mark[rank_gpu.made]));
    }
    CUDA(cudaEventRecord(rank_gpu.mark[rank_gpu.marks], rank_gpu.stream));
    rank_gpu.marked = true;
    return rank_gpu.marks++;
}

void device_mark_start(void) {
    device_synchronize();
    rank_gpu.marks = 0;
    rank_gpu.marked = false;
    device_mark();
}

double device_mark_seconds(size_t mark) {
    float milliseconds;
    CUDA(cudaEventSynchronize(rank_gpu.mark[mark]));
    CUDA(cudaEventElapsedTime(&milliseconds, rank_gpu.mark[0], rank_gpu.mark[mark]));
    return milliseconds * 1e-3;
}
