// cublas_v2.h of the stand-in: matrix products of cuBLAS, column-major. See ../README.md.
#ifndef STANDIN_CUBLAS_V2_H
#define STANDIN_CUBLAS_V2_H
#include <stdint.h>
#include "cuda_runtime.h"

#define CUBLAS_VER_MAJOR 13

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
} cublasStatus_t;
typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;
typedef enum {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_PEDANTIC_MATH = 2,
    CUBLAS_TF32_TENSOR_OP_MATH = 3,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
} cublasMath_t;
// cudaDataType_t names the types of factors and results in the products of the Ex calls, and
// cublasComputeType_t the types of sums.
typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_16BF = 14
} cudaDataType;
typedef enum {
    CUBLAS_COMPUTE_16F = 64,
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_PEDANTIC = 69,
    CUBLAS_COMPUTE_64F = 70
} cublasComputeType_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1, CUBLAS_GEMM_DEFAULT_TENSOR_OP = 99 } cublasGemmAlgo_t;
typedef enum { CUBLAS_ATOMICS_NOT_ALLOWED = 0, CUBLAS_ATOMICS_ALLOWED = 1 } cublasAtomicsMode_t;
typedef struct cublasContext *cublasHandle_t;

#define cublasCreate cublasCreate_v2
#define cublasDestroy cublasDestroy_v2
#define cublasGetVersion cublasGetVersion_v2
#define cublasSetStream cublasSetStream_v2
#define cublasSetWorkspace cublasSetWorkspace_v2
#define cublasSgemm cublasSgemm_v2
#define cublasDgemm cublasDgemm_v2
#define cublasSgemm_64 cublasSgemm_v2_64
#define cublasDgemm_64 cublasDgemm_v2_64

cublasStatus_t cublasCreate(cublasHandle_t *handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode);
const char *cublasGetStatusName(cublasStatus_t status);
const char *cublasGetStatusString(cublasStatus_t status);

// c[m,n] = alpha op(a)[m,k] op(b)[k,n] + beta c, in column-major order. The ld of a matrix is the
// distance between two columns, in elements. The 64-bit forms take dimensions beyond the reach of
// int.
#define STANDIN_GEMM(name, real, integer) \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, \
                        integer m, integer n, integer k, const real *alpha, const real *a, \
                        integer lda, const real *b, integer ldb, const real *beta, real *c, \
                        integer ldc)
STANDIN_GEMM(cublasSgemm, float, int);
STANDIN_GEMM(cublasDgemm, double, int);
STANDIN_GEMM(cublasSgemm_64, float, int64_t);
STANDIN_GEMM(cublasDgemm_64, double, int64_t);

// Computes `count` products. A stride is the distance between two matrices, in elements.
#define STANDIN_GEMM_BATCH(name, real) \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, \
                        int m, int n, int k, const real *alpha, const real *a, int lda, \
                        long long int a_step, const real *b, int ldb, long long int b_step, \
                        const real *beta, real *c, int ldc, long long int c_step, int count)
STANDIN_GEMM_BATCH(cublasSgemmStridedBatched, float);
STANDIN_GEMM_BATCH(cublasDgemmStridedBatched, double);

// These functions compute products of 16-bit elements. alpha and beta have the type of the sums.
// Strides are in elements.
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int lda, const void *b, cudaDataType b_type,
                            int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int lda, long long int a_step, const void *b,
                                          cudaDataType b_type, int ldb, long long int b_step,
                                          const void *beta, void *c, cudaDataType c_type, int ldc,
                                          long long int c_step, int count,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm);

#ifdef __cplusplus
}
#endif
#endif
