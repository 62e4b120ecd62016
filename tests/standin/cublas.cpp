// cublas.cpp: cuBLAS without a GPU: products by plain loops, queued on the handle's stream.
#include "include/cublas_v2.h"
#include <cstring>
#include <memory>
#include "standin.h"

using namespace standin;
struct cublasContext {
    cudaStream_t stream;
    int device;
    cublasMath_t mode;
};

// TF32 keeps 10 bits of the fraction of each factor.
static float tf32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & ~uint32_t(0x1fff);
    memcpy(&x, &bits, sizeof x);
    return x;
}
static double tf32(double x) { return x; }

template <class Real> struct Product {
    bool a_transposed, b_transposed, rounded;
    size_t m, n, k, lda, ldb, ldc;
    Real alpha, beta;
    const Real *a, *b;
    Real *c;

    Real factor(const Real *x, size_t i, size_t j, size_t ld, bool transposed) const {
        const Real value = transposed ? x[j + i * ld] : x[i + j * ld];
        return rounded ? tf32(value) : value;
    }
    // Computes c column by column. beta = 0 overwrites c, even NaN.
    void run() const {
        const std::unique_ptr<Real[]> left(new Real[m * k]), sum(new Real[m]);
        for (size_t l = 0; l < k; l++)
            for (size_t i = 0; i < m; i++) left[i + l * m] = factor(a, i, l, lda, a_transposed);
        for (size_t j = 0; j < n; j++) {
            for (size_t i = 0; i < m; i++) sum[i] = 0;
            for (size_t l = 0; l < k; l++) {
                const Real right = factor(b, l, j, ldb, b_transposed), *column = &left[l * m];
                for (size_t i = 0; i < m; i++) sum[i] += column[i] * right;
            }
            for (size_t i = 0; i < m; i++) {
                Real &out = c[i + j * ldc];
                out = beta == 0 ? alpha * sum[i] : alpha * sum[i] + beta * out;
            }
        }
    }
};

template <class Real>
static cublasStatus_t product(const char *name, cublasHandle_t handle, cublasOperation_t op_a,
                              cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                              const Real *alpha, const Real *a, int64_t lda, const Real *b,
                              int64_t ldb, const Real *beta, Real *c, int64_t ldc) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    const bool at = op_a != CUBLAS_OP_N, bt = op_b != CUBLAS_OP_N;
    const int64_t rows_a = at ? k : m, rows_b = bt ? n : k;
    if (m < 0 || n < 0 || k < 0 || lda < std::max<int64_t>(rows_a, 1) ||
        ldb < std::max<int64_t>(rows_b, 1) || ldc < std::max<int64_t>(m, 1) || !alpha || !beta)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
    StreamEntry on(handle->stream);
    if (on.error) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (on.s->device != handle->device) return CUBLAS_STATUS_INVALID_VALUE;
    auto matrix = [&](const Real *x, int64_t rows, int64_t columns, int64_t ld, bool write) {
        return use(name, x, size_t(rows) * sizeof *x, size_t(ld) * sizeof *x, size_t(columns),
                   write, handle->device);
    };
    Op op = { name, {}, {} };
    op.uses.push_back(matrix(a, rows_a, at ? m : k, lda, false));
    op.uses.push_back(matrix(b, rows_b, bt ? k : n, ldb, false));
    op.uses.push_back(matrix(c, m, n, ldc, true));
    for (size_t i = 0; i < 2; i++)
        if (overlap(op.uses[i].range, op.uses[2].range))
            fault("%s: the result lies on a factor", name);
    const Product<Real> p = { at,
                              bt,
                              handle->mode == CUBLAS_TF32_TENSOR_OP_MATH,
                              size_t(m),
                              size_t(n),
                              size_t(k),
                              size_t(lda),
                              size_t(ldb),
                              size_t(ldc),
                              *alpha,
                              *beta,
                              reinterpret_cast<const Real *>(reach(a)),
                              reinterpret_cast<const Real *>(reach(b)),
                              reinterpret_cast<Real *>(reach(c)) };
    op.run = [p] { return p.run(), true; };
    issue(on.s, std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}
#define PRODUCT(name, real, integer) \
    STANDIN_GEMM(name, real, integer) { \
        return product<real>(#name, handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, \
                             ldc); \
    }
PRODUCT(cublasSgemm, float, int)
PRODUCT(cublasDgemm, double, int)
PRODUCT(cublasSgemm_64, float, int64_t)
PRODUCT(cublasDgemm_64, double, int64_t)

#define BATCH(name, real) \
    STANDIN_GEMM_BATCH(name, real) { \
        if (count < 0) return CUBLAS_STATUS_INVALID_VALUE; \
        for (int i = 0; i < count; i++) { \
            const cublasStatus_t status = \
                product<real>(#name, handle, op_a, op_b, m, n, k, alpha, a + i * a_step, lda, \
                              b + i * b_step, ldb, beta, c + i * c_step, ldc); \
            if (status != CUBLAS_STATUS_SUCCESS) return status; \
        } \
        return CUBLAS_STATUS_SUCCESS; \
    }
BATCH(cublasSgemmStridedBatched, float)
BATCH(cublasDgemmStridedBatched, double)

cublasStatus_t cublasCreate(cublasHandle_t *handle) {
    int device;
    if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = new cublasContext{ nullptr, device, CUBLAS_DEFAULT_MATH };
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetVersion(cublasHandle_t, int *version) {
    return *version = 130100, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *, size_t) {
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t) {
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}
const char *cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "another status of cuBLAS";
    }
}
const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }
