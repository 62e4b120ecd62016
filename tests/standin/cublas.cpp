// cublas.cpp: cuBLAS without a GPU. Products are plain loops, queued on the handle's stream. The
// file also converts between float and 16-bit numbers.
#include "include/cublas_v2.h"
#include <cmath>
#include <cstring>
#include <memory>
#include "standin.h"

using namespace standin;

// ---- numbers of 16 bits ----

float standin::widened(Format f, uint16_t h) {
    const int ones = (1 << (15 - f.fraction)) - 1, exponent = h >> f.fraction & ones,
              fraction = h & ((1 << f.fraction) - 1);
    const float sign = h & 0x8000 ? -1 : 1;
    if (exponent == ones) return fraction ? NAN : sign * INFINITY;
    const int whole = exponent ? fraction + (1 << f.fraction) : fraction;
    return sign * ldexpf(float(whole), f.least - f.fraction + (exponent ? exponent - 1 : 0));
}
uint16_t standin::rounded(Format f, float x) {
    const int ones = (1 << (15 - f.fraction)) - 1, sign = std::signbit(x) ? 0x8000 : 0;
    if (std::isnan(x)) return uint16_t(sign | ones << f.fraction | 1 << (f.fraction - 1));
    const double size = std::fabs(double(x));
    if (size > 1e39) return uint16_t(sign | ones << f.fraction);
    const int exponent = size > 0 ? std::max(std::ilogb(size), f.least) : f.least;
    // `units` counts units in the last place. If `units` carries, the exponent grows by 1.
    const int units = int(std::nearbyint(std::ldexp(size, f.fraction - exponent)));
    const int bits = units + ((exponent - f.least) << f.fraction);
    return uint16_t(sign | std::min(bits, ones << f.fraction));
}

// ---- cuBLAS ----

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

// Reals, Bf16 and Fp16 describe the elements of a matrix. Element is the type of an element in
// memory. read() and write() convert between Element and the type of the sums.
template <class Real> struct Reals {
    using Element = Real;
    static Real read(Real x) { return x; }
    static Real write(Real x) { return x; }
};
struct Bf16 {
    using Element = uint16_t;
    static float read(uint16_t h) { return widened(BF16, h); }
    static uint16_t write(float x) { return rounded(BF16, x); }
};
struct Fp16 {
    using Element = uint16_t;
    static float read(uint16_t h) { return widened(FP16, h); }
    static uint16_t write(float x) { return rounded(FP16, x); }
};

// Real is the type of products and sums. `In` describes the elements of the factors. `Out`
// describes the elements of the result.
template <class Real, class In, class Out> struct Product {
    using Factor = typename In::Element;
    using Result = typename Out::Element;
    bool a_transposed, b_transposed, to_tf32, narrow_sums;
    size_t m, n, k, lda, ldb, ldc;
    Real alpha, beta;
    const Factor *a, *b;
    Result *c;

    Real factor(const Factor *x, size_t i, size_t j, size_t ld, bool transposed) const {
        const Real value = In::read(transposed ? x[j + i * ld] : x[i + j * ld]);
        return to_tf32 ? tf32(value) : value;
    }
    // Computes c column by column. beta = 0 overwrites c, even NaN. If sums may be narrow, each
    // half of a sum is rounded to the type of c, and then the halves are added. On a GPU two blocks
    // may compute the halves.
    void run() const {
        const std::unique_ptr<Real[]> left(new Real[m * k]), sum(new Real[m]), half(new Real[m]);
        for (size_t l = 0; l < k; l++)
            for (size_t i = 0; i < m; i++) left[i + l * m] = factor(a, i, l, lda, a_transposed);
        for (size_t j = 0; j < n; j++) {
            for (size_t i = 0; i < m; i++) sum[i] = half[i] = 0;
            for (size_t l = 0; l < k; l++) {
                const Real right = factor(b, l, j, ldb, b_transposed), *column = &left[l * m];
                if (narrow_sums && l == k / 2)
                    for (size_t i = 0; i < m; i++) {
                        half[i] = Out::read(Out::write(sum[i]));
                        sum[i] = 0;
                    }
                for (size_t i = 0; i < m; i++) sum[i] += column[i] * right;
            }
            for (size_t i = 0; i < m; i++) {
                Result &out = c[i + j * ldc];
                if (narrow_sums) sum[i] = half[i] + Out::read(Out::write(sum[i]));
                out =
                    Out::write(beta == 0 ? alpha * sum[i] : alpha * sum[i] + beta * Out::read(out));
            }
        }
    }
};

// Returns whether fp32 factors are rounded to TF32. The mode or the environment may allow the
// rounding. A pedantic mode never rounds.
static bool tf32_allowed(const cublasContext *handle) {
    static const bool environment = number("NVIDIA_TF32_OVERRIDE", 0) == 1;
    const int mode = handle->mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    return mode == CUBLAS_TF32_TENSOR_OP_MATH || (environment && mode != CUBLAS_PEDANTIC_MATH);
}

template <class Real, class In, class Out>
static cublasStatus_t product(const char *name, cublasHandle_t handle, cublasOperation_t op_a,
                              cublasOperation_t op_b, int64_t m, int64_t n, int64_t k,
                              const Real *alpha, const typename In::Element *a, int64_t lda,
                              const typename In::Element *b, int64_t ldb, const Real *beta,
                              typename Out::Element *c, int64_t ldc) {
    using P = Product<Real, In, Out>;
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
    auto matrix = [&](const auto *x, int64_t rows, int64_t columns, int64_t ld, bool write) {
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
    const P p = { at,
                  bt,
                  sizeof(typename In::Element) == sizeof(float) && tf32_allowed(handle),
                  sizeof(typename Out::Element) == sizeof(uint16_t) &&
                      !(handle->mode & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION),
                  size_t(m),
                  size_t(n),
                  size_t(k),
                  size_t(lda),
                  size_t(ldb),
                  size_t(ldc),
                  *alpha,
                  *beta,
                  reinterpret_cast<const typename P::Factor *>(reach(a)),
                  reinterpret_cast<const typename P::Factor *>(reach(b)),
                  reinterpret_cast<typename P::Result *>(reach(c)) };
    op.run = [p] { return p.run(), true; };
    issue(on.s, std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}
#define PRODUCT(name, real, integer) \
    STANDIN_GEMM(name, real, integer) { \
        return product<real, Reals<real>, Reals<real>>(#name, handle, op_a, op_b, m, n, k, alpha, \
                                                       a, lda, b, ldb, beta, c, ldc); \
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
                product<real, Reals<real>, Reals<real>>(#name, handle, op_a, op_b, m, n, k, alpha, \
                                                        a + i * a_step, lda, b + i * b_step, ldb, \
                                                        beta, c + i * c_step, ldc); \
            if (status != CUBLAS_STATUS_SUCCESS) return status; \
        } \
        return CUBLAS_STATUS_SUCCESS; \
    }
BATCH(cublasSgemmStridedBatched, float)
BATCH(cublasDgemmStridedBatched, double)

// The factors have one 16-bit type, the sums are fp32, and the result has that type or fp32. The
// real library has more products; Unsplit needs no others.
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int lda, long long int a_step, const void *b,
                                          cudaDataType b_type, int ldb, long long int b_step,
                                          const void *beta, void *c, cudaDataType c_type, int ldc,
                                          long long int c_step, int count,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
    const bool wide = c_type == CUDA_R_32F, bf16 = a_type == CUDA_R_16BF;
    if (count < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (a_type != b_type || (a_type != CUDA_R_16BF && a_type != CUDA_R_16F) ||
        (c_type != a_type && !wide) ||
        (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < count; i++) {
        const uint16_t *x = static_cast<const uint16_t *>(a) + i * a_step,
                       *y = static_cast<const uint16_t *>(b) + i * b_step;
        uint16_t *half = static_cast<uint16_t *>(c) + i * c_step;
        float *full = static_cast<float *>(c) + i * c_step;
        const float *alpha_value = static_cast<const float *>(alpha),
                    *beta_value = static_cast<const float *>(beta);
        const char *name = "cublasGemmEx";
        const auto multiply = [&](auto in, auto out, auto *to) {
            return product<float, decltype(in), decltype(out)>(name, handle, op_a, op_b, m, n, k,
                                                               alpha_value, x, lda, y, ldb,
                                                               beta_value, to, ldc);
        };
        const cublasStatus_t status = bf16 && wide ? multiply(Bf16(), Reals<float>(), full)
                                      : bf16       ? multiply(Bf16(), Bf16(), half)
                                      : wide       ? multiply(Fp16(), Reals<float>(), full)
                                                   : multiply(Fp16(), Fp16(), half);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int lda, const void *b, cudaDataType b_type,
                            int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, 0, b,
                                      b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute,
                                      algorithm);
}

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
