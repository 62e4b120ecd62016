// test_standin.cpp: checks that the stand-ins for CUDA, cuBLAS and NCCL find the mistakes that
// their README lists, and that correct programs pass. Every case has its own process.
#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <nccl.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

// ---- functions that all tests use ----

const unsigned hang = 600; // seconds; a test that takes longer hangs, even on a busy machine

#define MUST(condition) must(condition, #condition, __LINE__)
static void must(bool holds, const char *what, int line) {
    if (holds) return;
    fprintf(stderr, "line %d: not so: %s\n", line, what);
    _exit(1);
}
#define CUDA(call) cuda(call, #call, __LINE__)
static void cuda(cudaError_t e, const char *what, int line) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "line %d: %s: %s\n", line, what, cudaGetErrorName(e));
    _exit(1);
}

static int count, failed;
// Runs `body` in its own process. The process must end with this status and these words on stderr.
static void check(const char *what, int status, const char *words,
                  const std::function<void()> &body) {
    int tube[2];
    std::string said;
    fflush(stdout);
    if (pipe(tube) != 0) exit(3);
    const pid_t child = fork();
    if (child == 0) {
        dup2(tube[1], STDERR_FILENO);
        alarm(hang);
        body();
        _exit(0);
    }
    close(tube[1]);
    char some[512];
    for (ssize_t n; (n = read(tube[0], some, sizeof some)) > 0;) said.append(some, size_t(n));
    close(tube[0]);
    int how;
    waitpid(child, &how, 0);
    const int was = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    const bool holds = was == status && said.find(words) != std::string::npos;
    printf("%sok %d - %s\n", holds ? "" : "not ", ++count, what);
    if (!holds)
        printf("# status %d, not %d with \"%s\"; it said: %s\n", was, status, words, said.c_str());
    failed += !holds;
}
static void passes(const char *what, const std::function<void()> &body) {
    check(what, 0, "", body);
}
static void caught(const char *what, const char *words, const std::function<void()> &body) {
    check(what, 3, words, body);
}

static float *on_gpu(size_t n, float value = NAN) {
    float *p;
    CUDA(cudaMalloc(reinterpret_cast<void **>(&p), n * sizeof *p));
    const std::vector<float> v(n, value);
    if (!std::isnan(value)) CUDA(cudaMemcpy(p, v.data(), n * sizeof *p, cudaMemcpyHostToDevice));
    return p;
}
static float *pinned(size_t n, float value) {
    float *p;
    CUDA(cudaMallocHost(reinterpret_cast<void **>(&p), n * sizeof *p));
    for (size_t i = 0; i < n; i++) p[i] = value;
    return p;
}
static float first(const float *p) {
    float value;
    CUDA(cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}
static uint16_t *on_gpu_16(const std::vector<uint16_t> &v) {
    uint16_t *p;
    CUDA(cudaMalloc(reinterpret_cast<void **>(&p), v.size() * sizeof *p));
    CUDA(cudaMemcpy(p, v.data(), v.size() * sizeof *p, cudaMemcpyHostToDevice));
    return p;
}
static uint16_t first_16(const uint16_t *p) {
    uint16_t value;
    CUDA(cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost));
    return value;
}
static cudaStream_t stream() {
    cudaStream_t s;
    CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}
static cudaEvent_t event(cudaStream_t s) {
    cudaEvent_t e;
    CUDA(cudaEventCreateWithFlags(&e, cudaEventDefault));
    CUDA(cudaEventRecord(e, s));
    return e;
}
static void add(cudaStream_t s, float *p, size_t n, float value) {
    standin_launch(s, "add", [=] {
        for (size_t i = 0; i < n; i++) p[i] += value;
    });
    CUDA(cudaGetLastError());
}
static void down(float *to, const float *from, size_t n, cudaStream_t s) {
    CUDA(cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyDeviceToHost, s));
}
static void up(float *to, const float *from, size_t n, cudaStream_t s) {
    CUDA(cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyHostToDevice, s));
}

// ---- memory ----

static void memory() {
    passes("memory: filled, read, changed by kernels, freed", [] {
        float *p = on_gpu(100, 1);
        cudaStream_t s = stream();
        CUDA(cudaStreamSynchronize(nullptr));
        add(s, p, 100, 2);
        CUDA(cudaStreamSynchronize(s));
        MUST(first(p + 99) == 3);
        CUDA(cudaFree(p));
        CUDA(cudaStreamDestroy(s));
    });
    passes("new memory is NaN", [] { MUST(std::isnan(first(on_gpu(1)))); });
    passes("copies of rows with gaps", [] {
        float *p = on_gpu(12, 7), *q = on_gpu(4, 0), host[4];
        CUDA(cudaMemcpy2DAsync(q, 8, p, 24, 8, 2, cudaMemcpyDeviceToDevice, nullptr));
        CUDA(cudaMemcpy(host, q, sizeof host, cudaMemcpyDeviceToHost));
        MUST(host[0] == 7 && host[3] == 7);
        MUST(cudaMemcpy2DAsync(q, 4, p, 24, 8, 2, cudaMemcpyDeviceToDevice, nullptr) ==
             cudaErrorInvalidPitchValue);
    });
    caught("a copy past the end", "cudaMemcpy: 404 bytes from byte 0 of a block of 400 bytes", [] {
        std::vector<float> v(101);
        cudaMemcpy(on_gpu(100), v.data(), 404, cudaMemcpyHostToDevice);
    });
    caught("a fill past the end", "cudaMemset: 8 bytes from byte 396",
           [] { cudaMemset(on_gpu(100) + 99, 0, 8); });
    caught("a kernel that writes past the end, found when the block is freed",
           "a block of 400 bytes, at byte 400", [] {
               float *p = on_gpu(100, 0);
               add(nullptr, p, 101, 1);
               cudaFree(p);
           });
    caught("a kernel that writes before the beginning, named with STANDIN_CHECK",
           "add: somebody wrote outside", [] {
               setenv("STANDIN_CHECK", "1", 1);
               float *p = on_gpu(100, 0);
               standin_launch(nullptr, "add", [=] { p[-1] = 0; });
               CUDA(cudaDeviceSynchronize());
           });
    passes("a kernel that reads past the end gets NaN", [] {
        float *p = on_gpu(1, 0);
        standin_launch(nullptr, "read", [=] { p[0] = p[1]; });
        MUST(std::isnan(first(p)));
    });
    caught("a copy from freed memory", "of a freed block of 400 bytes", [] {
        float *p = on_gpu(100, 0);
        CUDA(cudaFree(p));
        first(p);
    });
    caught("a kernel with freed memory", "add: a kernel was given byte 0 of a freed block", [] {
        float *p = on_gpu(100, 0);
        CUDA(cudaFree(p));
        add(nullptr, p, 1, 1);
    });
    caught("freed twice", "is free already", [] {
        float *p = on_gpu(100, 0);
        CUDA(cudaFree(p));
        cudaFree(p);
    });
    passes("memory freed in the order of a stream, without a wait", [] {
        cudaStream_t s = stream();
        float *p, *q = on_gpu(100, 0), host[100];
        CUDA(cudaMallocAsync(reinterpret_cast<void **>(&p), sizeof host, s));
        CUDA(cudaMemsetAsync(p, 0, sizeof host, s));
        add(s, p, 100, 3);
        CUDA(cudaMemcpyAsync(q, p, sizeof host, cudaMemcpyDeviceToDevice, s));
        CUDA(cudaFreeAsync(p, s));
        MUST(cudaStreamQuery(s) == cudaErrorNotReady);
        CUDA(cudaStreamSynchronize(s));
        MUST(first(q) == 3);
    });
    caught("a kernel with memory that was freed on its stream",
           "add: a kernel was given byte 0 of a freed block", [] {
               cudaStream_t s = stream();
               float *p = on_gpu(100, 0);
               CUDA(cudaFreeAsync(p, s));
               add(s, p, 100, 1);
           });
    caught("memory freed on a stream without an event after its last copy", "race: cudaMemcpy", [] {
        cudaStream_t s = stream(), t = stream();
        float *p = on_gpu(100, 0), *q = on_gpu(100, 0);
        CUDA(cudaMemcpyAsync(q, p, 400, cudaMemcpyDeviceToDevice, s));
        cudaFreeAsync(p, t);
    });
    caught("given back twice", "cudaFreeAsync: ", [] {
        float *p = on_gpu(100, 0);
        CUDA(cudaFreeAsync(p, nullptr));
        cudaFreeAsync(p, nullptr);
    });
    caught("the host reads device memory",
           "the host reached into device memory, byte 8 of a block of 400 bytes", [] {
               volatile float *p = on_gpu(100, 0);
               MUST(p[2] == 0);
           });
    caught("the host reads device memory after a kernel", "the host reached into device memory",
           [] {
               float *p = on_gpu(100, 0);
               add(nullptr, p, 100, 1);
               CUDA(cudaDeviceSynchronize());
               MUST(static_cast<volatile float *>(p)[2] == 1);
           });
    caught("a kernel with an address in device memory", "not among its arguments", [] {
        float *p = on_gpu(1, 0), **table;
        CUDA(cudaMalloc(reinterpret_cast<void **>(&table), sizeof *table));
        CUDA(cudaMemcpy(table, &p, sizeof p, cudaMemcpyHostToDevice));
        standin_launch(nullptr, "table", [=] { **table = 1; });
        CUDA(cudaDeviceSynchronize());
    });
    caught("a kernel that captures by reference", "an address of the host", [] {
        float x = 1, *p = on_gpu(1, 0);
        standin_launch(nullptr, "by reference", [&] { *p = x; });
    });
    caught("a kernel with an address of the heap", "an address of the host", [] {
        float *p = on_gpu(1, 0), *host = new float[1];
        standin_launch(nullptr, "heap", [=] { *p = *host; });
    });
    passes("a copy in the wrong direction is refused", [] {
        float *p = on_gpu(1, 0), host;
        MUST(cudaMemcpy(&host, p, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
        MUST(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
        CUDA(cudaMemcpy(&host, p, 4, cudaMemcpyDefault));
    });
    passes("memory runs out, and can be allocated again after a free", [] {
        setenv("STANDIN_MEMORY", "1000", 1);
        void *p, *q;
        size_t left, whole;
        CUDA(cudaMalloc(&p, 600));
        MUST(cudaMalloc(&q, 600) == cudaErrorMemoryAllocation && !q);
        CUDA(cudaMemGetInfo(&left, &whole));
        MUST(left == 400 && whole == 1000);
        CUDA(cudaFree(p));
        CUDA(cudaMalloc(&q, 600));
    });
    caught("memory of another GPU", "memory of device 0 used on device 1", [] {
        setenv("STANDIN_GPUS", "2", 1);
        float *p = on_gpu(1, 0);
        CUDA(cudaSetDevice(1));
        cudaMemset(p, 0, 4);
    });
    passes("no GPU: every call returns an error", [] {
        setenv("STANDIN_GPUS", "0", 1);
        int n = 7;
        void *p;
        MUST(cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0);
        MUST(cudaMalloc(&p, 4) == cudaErrorNoDevice &&
             cudaStreamSynchronize(nullptr) == cudaErrorNoDevice);
    });
    passes("a forked process has no CUDA", [] {
        on_gpu(1, 0);
        const pid_t child = fork();
        if (child == 0) _exit(cudaDeviceSynchronize() == cudaErrorInitializationError ? 0 : 1);
        int how;
        waitpid(child, &how, 0);
        MUST(how == 0);
    });
}

// ---- streams and events ----

static void streams() {
    passes("no operation runs before the program waits", [] {
        float *p = on_gpu(1, 1), *h = pinned(1, 5);
        cudaStream_t s = stream();
        CUDA(cudaDeviceSynchronize());
        add(s, p, 1, 1);
        down(h, p, 1, s);
        MUST(std::isnan(*h)); // a missing wait shows poison
        CUDA(cudaStreamSynchronize(s));
        MUST(*h == 2);
    });
    passes("pinned memory that changes too early changes the copy; pageable memory does not", [] {
        float *p = on_gpu(1), *q = on_gpu(1), *h = pinned(1, 1), local = 1;
        cudaStream_t s = stream();
        up(p, h, 1, s);
        up(q, &local, 1, s);
        *h = local = 2;
        CUDA(cudaStreamSynchronize(s));
        MUST(first(p) == 2 && first(q) == 1);
    });
    passes("a download to pageable memory waits", [] {
        float *p = on_gpu(1, 1), local = 0;
        cudaStream_t s = stream();
        CUDA(cudaDeviceSynchronize());
        add(s, p, 1, 1);
        down(&local, p, 1, s);
        MUST(local == 2);
    });
    passes("one stream does not wait for another", [] {
        float *p = on_gpu(1, 1), *h = pinned(1, 0);
        cudaStream_t s = stream(), t = stream();
        CUDA(cudaDeviceSynchronize());
        add(s, p, 1, 1); // the memory of a kernel is unknown, so there is no error
        down(h, p, 1, t);
        CUDA(cudaStreamSynchronize(t));
        MUST(*h == 1);
    });
    passes("an event orders two streams", [] {
        float *p = on_gpu(1, 1), *h = pinned(1, 0);
        cudaStream_t s = stream(), t = stream();
        CUDA(cudaDeviceSynchronize());
        add(s, p, 1, 1);
        up(p, p == nullptr ? p : h, 0, s); // a copy of 0 elements
        CUDA(cudaStreamWaitEvent(t, event(s), 0));
        down(h, p, 1, t);
        CUDA(cudaStreamSynchronize(t));
        MUST(*h == 2);
    });
    passes("an event orders through a third stream", [] {
        float *p = on_gpu(1), *h = pinned(1, 0), *one = pinned(1, 1);
        cudaStream_t s = stream(), t = stream(), u = stream();
        up(p, one, 1, s);
        CUDA(cudaStreamWaitEvent(t, event(s), 0));
        CUDA(cudaStreamWaitEvent(u, event(t), 0));
        down(h, p, 1, u);
        CUDA(cudaStreamSynchronize(u));
        MUST(*h == 1);
    });
    passes("an event includes the operations before its recording", [] {
        float *p = on_gpu(1, 1), *h = pinned(1, 0);
        cudaStream_t s = stream(), t = stream();
        CUDA(cudaDeviceSynchronize());
        cudaEvent_t e = event(s);
        add(s, p, 1, 1);
        CUDA(cudaStreamWaitEvent(t, e, 0));
        down(h, p, 1, t);
        CUDA(cudaStreamSynchronize(t));
        MUST(*h == 1);
    });
    caught("a copy reads memory that a copy on another stream writes, without an event",
           "race: cudaMemcpyAsync on one stream and cudaMemcpyAsync", [] {
               float *p = on_gpu(1), *h = pinned(1, 0), *one = pinned(1, 1);
               cudaStream_t s = stream(), t = stream();
               up(p, one, 1, s);
               down(h, p, 1, t);
           });
    caught("two copies write one place", "race", [] {
        float *p = on_gpu(10), *one = pinned(10, 1);
        up(p, one, 10, stream());
        up(p + 9, one, 1, stream());
    });
    passes("two copies read one place, and write neighbours; columns of one matrix are apart", [] {
        float *p = on_gpu(10), *q = on_gpu(10), *one = pinned(1, 1);
        up(p, one, 1, stream());
        up(p + 1, one, 1, stream());
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaMemcpy2DAsync(p, 20, q, 20, 8, 2, cudaMemcpyDeviceToDevice, stream()));
        CUDA(cudaMemcpy2DAsync(p + 2, 20, q, 20, 12, 2, cudaMemcpyDeviceToDevice, stream()));
    });
    caught("overlapping columns of one matrix", "race", [] {
        float *p = on_gpu(10), *q = on_gpu(10);
        CUDA(cudaMemcpy2DAsync(p, 20, q, 20, 12, 2, cudaMemcpyDeviceToDevice, stream()));
        CUDA(cudaMemcpy2DAsync(p + 2, 20, q, 20, 12, 2, cudaMemcpyDeviceToDevice, stream()));
    });
    caught("pinned memory freed before it is copied", "cudaFreeHost: a copy", [] {
        float *p = on_gpu(1), *one = pinned(1, 1);
        up(p, one, 1, stream());
        cudaFreeHost(one);
    });
    passes("the default stream and blocking streams wait for each other", [] {
        float *p = on_gpu(1, 1);
        cudaStream_t s;
        CUDA(cudaStreamCreate(&s));
        add(s, p, 1, 1);
        MUST(first(p) == 2);
        CUDA(cudaMemsetAsync(p, 0, 4, nullptr));
        add(s, p, 1, 1);
        CUDA(cudaStreamSynchronize(s));
        MUST(first(p) == 1);
    });
    passes("queries: not ready, then ready; the error stays until it is read", [] {
        float *p = on_gpu(1, 1);
        cudaStream_t s = stream();
        CUDA(cudaDeviceSynchronize());
        MUST(cudaStreamQuery(s) == cudaSuccess);
        add(s, p, 1, 1);
        cudaEvent_t e = event(s);
        MUST(cudaEventQuery(e) == cudaErrorNotReady && cudaGetLastError() == cudaErrorNotReady);
        CUDA(cudaEventQuery(e));
        CUDA(cudaStreamQuery(s));
    });
    passes("time between events", [] {
        float ms = -1;
        cudaStream_t s = stream();
        const auto begin = std::chrono::steady_clock::now();
        cudaEvent_t a = event(s), untimed;
        standin_launch(s, "sleep", [] { usleep(2000); });
        cudaEvent_t b = event(s);
        MUST(cudaEventElapsedTime(&ms, a, b) == cudaErrorNotReady);
        CUDA(cudaEventSynchronize(b));
        CUDA(cudaEventElapsedTime(&ms, a, b));
        const std::chrono::duration<float, std::milli> all =
            std::chrono::steady_clock::now() - begin;
        MUST(ms >= 2 && ms <= all.count());
        CUDA(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
        CUDA(cudaEventRecord(untimed, s));
        CUDA(cudaDeviceSynchronize());
        MUST(cudaEventElapsedTime(&ms, a, untimed) == cudaErrorInvalidResourceHandle);
    });
    passes("a host function in a stream runs in order, and may not call CUDA", [] {
        static cudaError_t said = cudaSuccess;
        cudaStream_t s = stream();
        CUDA(cudaLaunchHostFunc(
            s, [](void *) { said = cudaDeviceSynchronize(); }, nullptr));
        MUST(said == cudaSuccess);
        CUDA(cudaStreamSynchronize(s));
        MUST(said == cudaErrorNotPermitted);
    });
    passes("a kernel that fails: every later call returns the error", [] {
        setenv("STANDIN_KERNEL_ERROR", "2", 1);
        float *p = on_gpu(1, 1);
        add(nullptr, p, 1, 1);
        CUDA(cudaDeviceSynchronize());
        add(nullptr, p, 1, 1); // the launch itself succeeds
        MUST(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
        MUST(cudaMemset(p, 0, 4) == cudaErrorLaunchFailure &&
             cudaGetLastError() == cudaErrorLaunchFailure);
        MUST(cudaGetLastError() == cudaErrorLaunchFailure);
    });
    passes("thousands of operations without a wait", [] {
        float *p = on_gpu(1, 0);
        for (int i = 0; i < 5000; i++) add(nullptr, p, 1, 1);
        MUST(first(p) == 5000);
    });
    passes("a stream that is gone", [] {
        cudaStream_t s = stream();
        CUDA(cudaStreamDestroy(s));
        MUST(cudaStreamSynchronize(s) == cudaErrorInvalidResourceHandle);
    });
}

// ---- cuBLAS ----

static void products() {
    for (int ta = 0; ta < 2; ta++)
        for (int tb = 0; tb < 2; tb++) {
            char what[80];
            snprintf(what, sizeof what, "product, op(a) = %s, op(b) = %s", ta ? "T" : "N",
                     tb ? "T" : "N");
            passes(what, [=] {
                const int m = 3, n = 4, k = 5, ld = 7;
                std::vector<double> a(ld * ld), b(ld * ld), c(ld * ld, 2);
                for (int i = 0; i < ld * ld; i++)
                    a[size_t(i)] = i % 11 - 5, b[size_t(i)] = i % 7 - 3;
                double *g[3];
                const std::vector<double> *v[] = { &a, &b, &c };
                for (int i = 0; i < 3; i++) {
                    CUDA(cudaMalloc(reinterpret_cast<void **>(&g[i]), ld * ld * sizeof(double)));
                    CUDA(cudaMemcpy(g[i], v[i]->data(), ld * ld * sizeof(double),
                                    cudaMemcpyHostToDevice));
                }
                cublasHandle_t h;
                double alpha = 2, beta = 3;
                MUST(cublasCreate(&h) == CUBLAS_STATUS_SUCCESS);
                MUST(!cublasDgemm(h, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                                  m, n, k, &alpha, g[0], ld, g[1], ld, &beta, g[2], ld));
                alpha = beta = 0; // cuBLAS has read alpha and beta during the call
                CUDA(cudaMemcpy(c.data(), g[2], ld * ld * sizeof(double), cudaMemcpyDeviceToHost));
                for (int j = 0; j < ld; j++)
                    for (int i = 0; i < ld; i++) {
                        double sum = 0;
                        for (int l = 0; l < k; l++)
                            sum += a[size_t(ta ? l + i * ld : i + l * ld)] *
                                   b[size_t(tb ? j + l * ld : l + j * ld)];
                        MUST(c[size_t(i + j * ld)] == (i < m && j < n ? 2 * sum + 6 : 2));
                    }
            });
        }
    passes("beta = 0 overwrites NaN; TF32 rounds, plain fp32 does not", [] {
        float *a = on_gpu(1, 1 + 1 / 8192.f), *b = on_gpu(1, 1), *c = on_gpu(1), one = 1, zero = 0;
        cublasHandle_t h;
        cublasCreate(&h);
        MUST(!cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, b, 1, &zero, c, 1));
        MUST(first(c) == 1 + 1 / 8192.f);
        cublasSetMathMode(h, CUBLAS_TF32_TENSOR_OP_MATH);
        MUST(!cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, b, 1, &zero, c, 1));
        MUST(first(c) == 1);
    });
    passes("TF32 from the environment rounds, unless the mode is pedantic", [] {
        setenv("NVIDIA_TF32_OVERRIDE", "1", 1);
        float *a = on_gpu(1, 1 + 1 / 8192.f), *b = on_gpu(1, 1), *c = on_gpu(1), one = 1, zero = 0;
        cublasHandle_t h;
        cublasCreate(&h);
        MUST(!cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, b, 1, &zero, c, 1));
        MUST(first(c) == 1);
        cublasSetMathMode(h, CUBLAS_PEDANTIC_MATH);
        MUST(!cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, b, 1, &zero, c, 1));
        MUST(first(c) == 1 + 1 / 8192.f);
    });
    // With p half of 1's last place, 1 + p - 1 + p is 2 p. The result is p if the first half of the
    // sum is rounded alone.
    for (const bool bf16 : { true, false })
        passes(bf16 ? "sums of bf16: in fp32, or rounded in parts" : "... of fp16", [bf16] {
            const cudaDataType type = bf16 ? CUDA_R_16BF : CUDA_R_16F,
                               other = bf16 ? CUDA_R_16F : CUDA_R_16BF;
            const uint16_t one16 = bf16 ? 0x3f80 : 0x3c00, p = bf16 ? 0x3b80 : 0x1000,
                           twice = bf16 ? 0x3c00 : 0x1400, minus = one16 | 0x8000;
            const float one = 1, zero = 0;
            uint16_t *a = on_gpu_16({ one16, p, minus, p }),
                     *b = on_gpu_16({ one16, one16, one16, one16 }), *c = on_gpu_16({ one16 });
            float *wide = on_gpu(1);
            cublasHandle_t h;
            cublasCreate(&h);
            const auto multiply = [&](void *to, cudaDataType result, cudaDataType right,
                                      cublasComputeType_t sums) {
                return cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 4, &one, a, type, 1, b,
                                    right, 4, &zero, to, result, 1, sums, CUBLAS_GEMM_DEFAULT);
            };
            MUST(!multiply(wide, CUDA_R_32F, type, CUBLAS_COMPUTE_32F));
            MUST(first(wide) == (bf16 ? 0x1p-7f : 0x1p-10f));
            MUST(!multiply(c, type, type, CUBLAS_COMPUTE_32F) && first_16(c) == p);
            cublasSetMathMode(h, cublasMath_t(CUBLAS_DEFAULT_MATH |
                                              CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
            MUST(!multiply(c, type, type, CUBLAS_COMPUTE_32F) && first_16(c) == twice);
            MUST(multiply(c, type, other, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
            MUST(multiply(c, other, type, CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
            MUST(multiply(c, type, type, CUBLAS_COMPUTE_16F) == CUBLAS_STATUS_NOT_SUPPORTED);
        });
    passes("a batch of 16-bit products has its steps", [] {
        const uint16_t one16 = 0x3f80, two16 = 0x4000;
        const float one = 1, zero = 0;
        uint16_t *a = on_gpu_16({ one16, two16, one16, two16 }), *c = on_gpu_16({ 0, 0, 0 });
        cublasHandle_t h;
        cublasCreate(&h);
        MUST(!cublasGemmStridedBatchedEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, CUDA_R_16BF,
                                         1, 1, a + 1, CUDA_R_16BF, 1, 2, &zero, c, CUDA_R_16BF, 1,
                                         2, 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
        MUST(first_16(c) == two16 && first_16(c + 1) == 0 && first_16(c + 2) == 0x4080);
    });
    passes("a leading dimension too small is refused", [] {
        float *a = on_gpu(100, 1), one = 1;
        cublasHandle_t h;
        cublasCreate(&h);
        auto status = [&](cublasOperation_t ta, cublasOperation_t tb, int lda, int ldb, int ldc) {
            return cublasSgemm(h, ta, tb, 2, 3, 4, &one, a, lda, a + 20, ldb, &one, a + 40, ldc);
        };
        MUST(status(CUBLAS_OP_N, CUBLAS_OP_N, 2, 4, 2) == CUBLAS_STATUS_SUCCESS);
        MUST(status(CUBLAS_OP_N, CUBLAS_OP_N, 1, 4, 2) == CUBLAS_STATUS_INVALID_VALUE);
        MUST(status(CUBLAS_OP_T, CUBLAS_OP_N, 3, 4, 2) == CUBLAS_STATUS_INVALID_VALUE);
        MUST(status(CUBLAS_OP_N, CUBLAS_OP_T, 2, 2, 2) == CUBLAS_STATUS_INVALID_VALUE);
        MUST(status(CUBLAS_OP_N, CUBLAS_OP_N, 2, 4, 1) == CUBLAS_STATUS_INVALID_VALUE);
    });
    caught("a product past the end of a factor",
           "cublasSgemm: 40 bytes from byte 0 of a block of 36 bytes", [] {
               float *a = on_gpu(9, 1), *c = on_gpu(100), one = 1;
               cublasHandle_t h;
               cublasCreate(&h);
               cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 3, &one, a, 4, c, 3, &one, c + 50, 2);
           });
    caught("a product on its own stream", "race: cudaMemcpyAsync on one stream and cublasSgemm",
           [] {
               float *a = on_gpu(1), *b = on_gpu(1, 1), *c = on_gpu(1), *h = pinned(1, 1), one = 1;
               cublasHandle_t handle;
               cublasCreate(&handle);
               cublasSetStream(handle, stream());
               up(a, h, 1, stream());
               cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, b, 1, &one, c, 1);
           });
}

// ---- NCCL ----

#define NCCL(call) nccl(call, #call, __LINE__)
static void nccl(ncclResult_t e, const char *what, int line) {
    if (e == ncclSuccess) return;
    fprintf(stderr, "line %d: %s: %s: %s\n", line, what, ncclGetErrorString(e),
            ncclGetLastError(nullptr));
    _exit(1);
}

// Shared is the memory that the ranks of a test share besides their communicator.
struct Shared {
    ncclUniqueId id;
    volatile bool ready;
    volatile int word[8];
};
struct Rank {
    int rank, size;
    Shared *shared;
    ncclComm_t comm;
    cudaStream_t stream;

    void wait_for(int i, int value) const {
        while (shared->word[i] != value) usleep(100);
    }
    ncclResult_t begin(int r, int n, int blocking = 1) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.commName = "dp";
        config.blocking = blocking;
        if (rank == 0) {
            NCCL(ncclGetUniqueId(&shared->id));
            shared->ready = true;
        }
        while (!shared->ready) usleep(100);
        return ncclCommInitRankConfig(&comm, n, shared->id, r, &config);
    }
    // Returns the communicator's final result, or ncclInProgress after `turns` turns.
    ncclResult_t verdict(unsigned turns = hang * 10000) const {
        for (unsigned i = 0;; i++) {
            ncclResult_t e;
            // Queries the stream before ncclCommGetAsyncError(), because that call may let the
            // operations end.
            const bool waits = cudaStreamQuery(stream) == cudaErrorNotReady;
            NCCL(ncclCommGetAsyncError(comm, &e));
            if (e || !waits) return e;
            if (i == turns) return ncclInProgress;
            usleep(100);
        }
    }
};

static Shared *share() {
    const int may = PROT_READ | PROT_WRITE, is = MAP_SHARED | MAP_ANONYMOUS;
    return static_cast<Shared *>(mmap(nullptr, sizeof(Shared), may, is, -1, 0));
}

// Returns a test that runs every rank as a process with its own GPU. The test exits with the worst
// status of a rank.
static std::function<void()> ranks_bare(int n, const std::function<void(Rank &)> &body) {
    return [=] {
        int worst = 0, how;
        Shared *shared = share();
        setenv("STANDIN_GPUS", std::to_string(n).c_str(), 1);
        setenv("CUDA_MODULE_LOADING", "EAGER", 0);
        for (int r = 0; r < n; r++)
            if (fork() == 0) {
                Rank me = { r, n, shared, nullptr, nullptr };
                alarm(hang);
                CUDA(cudaSetDevice(r));
                me.stream = stream();
                body(me);
                _exit(0);
            }
        while (wait(&how) > 0)
            worst = std::max(worst, WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how));
        if (worst) _exit(worst);
    };
}
static std::function<void()> ranks(int n, const std::function<void(Rank &)> &body) {
    return ranks_bare(n, [=](Rank &me) {
        NCCL(me.begin(me.rank, n));
        body(me);
    });
}

static void expect(const float *p, const std::vector<float> &want, int line) {
    std::vector<float> is(want.size());
    CUDA(cudaMemcpy(is.data(), p, is.size() * sizeof is[0], cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < is.size(); i++)
        if (is[i] != want[i]) {
            fprintf(stderr, "line %d: element %zu is %g, not %g\n", line, i, is[i], want[i]);
            _exit(1);
        }
}
#define EXPECT(p, ...) expect(p, __VA_ARGS__, __LINE__)

static void collectives() {
    for (int n = 1; n <= 4; n++)
        passes(("collectives of " + std::to_string(n)).c_str(), ranks(n, [](Rank &me) {
                   const float r = float(me.rank), n = float(me.size), sum = n * (n - 1) / 2;
                   const size_t size = size_t(me.size);
                   float *in = on_gpu(3, r), *out = on_gpu(3 * size), *many = on_gpu(2 * size, r);
                   std::vector<float> all;
                   for (size_t i = 0; i < 3 * size; i++) all.push_back(float(i / 3));
                   NCCL(ncclAllReduce(in, out, 3, ncclFloat, ncclSum, me.comm, me.stream));
                   CUDA(cudaStreamSynchronize(me.stream));
                   EXPECT(out, { sum, sum, sum });
                   NCCL(ncclAllReduce(in, out, 3, ncclFloat, ncclMax, me.comm, me.stream));
                   CUDA(cudaStreamSynchronize(me.stream));
                   EXPECT(out, { n - 1 });
                   NCCL(ncclAllReduce(in, out, 3, ncclFloat, ncclAvg, me.comm, me.stream));
                   CUDA(cudaStreamSynchronize(me.stream));
                   EXPECT(out, { sum / n });
                   NCCL(ncclAllGather(in, out, 3, ncclFloat, me.comm, me.stream));
                   CUDA(cudaStreamSynchronize(me.stream));
                   EXPECT(out, all);
                   NCCL(ncclReduceScatter(many, out, 2, ncclFloat, ncclSum, me.comm, me.stream));
                   NCCL(ncclBroadcast(me.rank == me.size - 1 ? in : nullptr, out + 2, 1, ncclFloat,
                                      me.size - 1, me.comm, me.stream));
                   CUDA(cudaStreamSynchronize(me.stream));
                   EXPECT(out, { sum, sum, n - 1 });
                   NCCL(ncclReduce(in, me.rank == 0 ? out : nullptr, 3, ncclFloat, ncclSum, 0,
                                   me.comm, me.stream));
                   CUDA(cudaStreamSynchronize(me.stream));
                   if (me.rank == 0) EXPECT(out, { sum });
                   NCCL(ncclAllReduce(in, in, 3, ncclFloat, ncclSum, me.comm,
                                      me.stream)); // in place
                   NCCL(ncclReduceScatter(many, many + 2 * me.rank, 2, ncclFloat, ncclSum, me.comm,
                                          me.stream));
                   NCCL(ncclAllGather(many + 2 * me.rank, many, 2, ncclFloat, me.comm, me.stream));
                   NCCL(
                       ncclAllReduce(in, in, 0, ncclFloat, ncclSum, me.comm, me.stream)); // nothing
                   CUDA(cudaStreamSynchronize(me.stream));
                   EXPECT(in, { sum, sum, sum });
                   EXPECT(many, std::vector<float>(2 * size, sum));
                   NCCL(ncclCommFinalize(me.comm));
                   NCCL(ncclCommDestroy(me.comm));
                   MUST(ncclAllReduce(in, in, 3, ncclFloat, ncclSum, me.comm, me.stream) ==
                        ncclInvalidArgument);
               }));
    passes("two ranks as threads of a process", [] {
        setenv("STANDIN_GPUS", "2", 1);
        ncclUniqueId id;
        NCCL(ncclGetUniqueId(&id));
        auto body = [&](int r) {
            ncclComm_t comm;
            CUDA(cudaSetDevice(r));
            cudaStream_t s = stream();
            float *p = on_gpu(2, float(r + 1));
            NCCL(ncclCommInitRank(&comm, 2, id, r));
            NCCL(ncclAllReduce(p, p, 2, ncclFloat, ncclSum, comm, s));
            CUDA(cudaStreamSynchronize(s));
            EXPECT(p, { 3, 3 });
            NCCL(ncclCommDestroy(comm));
        };
        std::thread other(body, 1);
        body(0);
        other.join();
    });
    // With p half of 1's last place, 1 + p is rounded to 1 before the next p comes.
    passes("a sum of 16-bit numbers is rounded at every hop", ranks(3, [](Rank &me) {
               uint16_t *bf16 = on_gpu_16({ uint16_t(me.rank == 2 ? 0x3f80 : 0x3b80) }),
                        *fp16 = on_gpu_16({ uint16_t(me.rank == 2 ? 0x3c00 : 0x1000) });
               NCCL(ncclAllReduce(bf16, bf16, 1, ncclBfloat16, ncclSum, me.comm, me.stream));
               NCCL(ncclAllReduce(fp16, fp16, 1, ncclHalf, ncclSum, me.comm, me.stream));
               CUDA(cudaStreamSynchronize(me.stream));
               MUST(first_16(bf16) == 0x3f80 && first_16(fp16) == 0x3c00);
               NCCL(ncclAllReduce(bf16, bf16, 1, ncclBfloat16, ncclMax, me.comm, me.stream));
               CUDA(cudaStreamSynchronize(me.stream));
               MUST(first_16(bf16) == 0x3f80);
           }));
    passes("32 MiB", ranks(2, [](Rank &me) {
               float *p = on_gpu(8 << 20, 1);
               NCCL(ncclAllReduce(p, p, 8 << 20, ncclFloat, ncclSum, me.comm, me.stream));
               CUDA(cudaStreamSynchronize(me.stream));
               EXPECT(p + (8 << 20) - 1, { 2 });
           }));
    passes("a result appears with the wait, not before; a changed input changes the result",
           ranks(2, [](Rank &me) {
               float *p = on_gpu(1, 1), *q = on_gpu(1, 0), *h = pinned(1, 0);
               cudaStream_t other = stream();
               NCCL(ncclAllReduce(p, q, 1, ncclFloat, ncclSum, me.comm, me.stream));
               add(other, p, 1, 1); // too early: no event orders the kernel after the all-reduce
               CUDA(cudaStreamSynchronize(other));
               down(h, q, 1, me.stream);
               MUST(std::isnan(*h));
               me.shared->word[me.rank] = 1;
               me.wait_for(1 - me.rank, 1);
               CUDA(cudaStreamSynchronize(me.stream));
               MUST(*h == 4);
           }));
    passes("a rank that waits for nothing does not delay the others", ranks(2, [](Rank &me) {
               float *p = on_gpu(1, 1);
               NCCL(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream));
               if (me.rank == 0) me.wait_for(0, 1); // rank 1 must get its sum first
               CUDA(cudaStreamSynchronize(me.stream));
               me.shared->word[0] = 1;
               EXPECT(p, { 2 });
           }));
    const struct {
        const char *what, *says;
        std::function<void(Rank &, float *)> body;
    } mismatches[] = {
        { "kinds", "all-reduce of 1 float32, sum meets broadcast of 1 float32, root 0",
          [](Rank &me, float *p) {
              if (me.rank == 0) NCCL(ncclBroadcast(p, p, 1, ncclFloat, 0, me.comm, me.stream));
              else NCCL(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream));
          } },
        { "counts", "all-reduce of 2 float32, sum meets all-reduce of 1 float32, sum",
          [](Rank &me, float *p) {
              NCCL(
                  ncclAllReduce(p, p, size_t(1 + me.rank), ncclFloat, ncclSum, me.comm, me.stream));
          } },
        { "types", "all-gather of 1 int32 meets all-gather of 1 float32",
          [](Rank &me, float *p) {
              NCCL(ncclAllGather(p, p + 2, 1, me.rank ? ncclInt : ncclFloat, me.comm, me.stream));
          } },
        { "operations", "all-reduce of 1 float32, maximum meets all-reduce of 1 float32, sum",
          [](Rank &me, float *p) {
              NCCL(ncclAllReduce(p, p, 1, ncclFloat, me.rank ? ncclMax : ncclSum, me.comm,
                                 me.stream));
          } },
        { "roots", "broadcast of 1 float32, root 1 meets broadcast of 1 float32, root 0",
          [](Rank &me, float *p) {
              NCCL(ncclBroadcast(p, p, 1, ncclFloat, me.rank, me.comm, me.stream));
          } },
        { "lengths of a message", "message of 2 float32 meets message of 1 float32",
          [](Rank &me, float *p) {
              if (me.rank == 0) NCCL(ncclSend(p, 1, ncclFloat, 1, me.comm, me.stream));
              else NCCL(ncclRecv(p, 2, ncclFloat, 0, me.comm, me.stream));
          } },
    };
    for (const auto &m : mismatches) {
        const auto body = m.body;
        const std::string says = m.says;
        const size_t meets = says.find(" meets ");
        const std::string turned = says.substr(meets + 7) + " meets " + says.substr(0, meets);
        passes(("different " + std::string(m.what) + ": every rank gets an error").c_str(),
               ranks(2, [=](Rank &me) {
                   body(me, on_gpu(4, 1));
                   MUST(me.verdict() == ncclInvalidUsage);
                   const std::string text = ncclGetLastError(me.comm);
                   if (text.find(says) == text.npos && text.find(turned) == text.npos) {
                       fprintf(stderr, "%s\n", text.c_str());
                       _exit(1);
                   }
                   NCCL(ncclCommAbort(me.comm));
                   CUDA(cudaStreamSynchronize(me.stream));
               }));
    }
    caught("a rank that never checks for errors waits for ever",
           "the host waits for ever for ncclAllReduce: ranks", ranks(2, [](Rank &me) {
               float *p = on_gpu(2, 1);
               NCCL(ncclAllReduce(p, p, size_t(1 + me.rank), ncclFloat, ncclSum, me.comm,
                                  me.stream));
               cudaStreamSynchronize(me.stream);
           }));
    caught("a rank that never comes",
           "ever for ncclAllReduce: all-reduce of 2 float32, sum, rank 0 of dp: rank 1 does", [] {
               setenv("STANDIN_PATIENCE", "1", 1);
               ranks(2, [](Rank &me) {
                   float *p = on_gpu(2, 1);
                   if (me.rank == 1) { // rank 1 stays as long as rank 0
                       while (!me.shared->word[0] || kill(me.shared->word[0], 0) == 0) usleep(100);
                       return;
                   }
                   me.shared->word[0] = getpid();
                   NCCL(ncclAllReduce(p, p, 2, ncclFloat, ncclSum, me.comm, me.stream));
                   cudaStreamSynchronize(me.stream);
               })();
           });
    caught("memory of the host", "ncclAllReduce: 0x", ranks(1, [](Rank &me) {
               float *p = pinned(2, 1);
               ncclAllReduce(p, p, 2, ncclFloat, ncclSum, me.comm, me.stream);
           }));
    caught("past the end", "ncclAllGather: 16 bytes from byte 4 of a block of 16 bytes",
           ranks(2, [](Rank &me) {
               float *p = on_gpu(4, 1), *q = on_gpu(4, 1);
               ncclAllGather(p, q + 1, 2, ncclFloat, me.comm, me.stream);
           }));
    caught("neither in place nor apart", "input and output overlap", ranks(1, [](Rank &me) {
               float *p = on_gpu(4, 1);
               ncclAllReduce(p, p + 1, 3, ncclFloat, ncclSum, me.comm, me.stream);
           }));
    caught("a copy beside a collective, and no event",
           "race: ncclAllReduce on one stream and cudaMemcpyAsync", ranks(1, [](Rank &me) {
               float *p = on_gpu(4, 1), *h = pinned(4, 0);
               NCCL(ncclAllReduce(p, p, 4, ncclFloat, ncclSum, me.comm, me.stream));
               down(h, p, 4, stream());
           }));
}

static void messages() {
    passes("a ring of messages in a group", ranks(3, [](Rank &me) {
               float *p = on_gpu(2, float(me.rank)), *q = on_gpu(2);
               NCCL(ncclGroupStart());
               NCCL(ncclSend(p, 2, ncclFloat, (me.rank + 1) % 3, me.comm, me.stream));
               NCCL(ncclRecv(q, 2, ncclFloat, (me.rank + 2) % 3, me.comm, me.stream));
               NCCL(ncclGroupEnd());
               CUDA(cudaStreamSynchronize(me.stream));
               EXPECT(q, { float((me.rank + 2) % 3) });
           }));
    passes("messages to one rank arrive in their order, and to oneself", ranks(2, [](Rank &me) {
               float *p = on_gpu(3, 1), *q = on_gpu(6);
               add(me.stream, p + 1, 1, 1);
               NCCL(ncclGroupStart());
               for (int to = 0; to < 2; to++)
                   for (int i = 0; i < 3; i++) {
                       NCCL(ncclSend(p + i, 1, ncclFloat, to, me.comm, me.stream));
                       NCCL(ncclRecv(q + 3 * to + i, 1, ncclFloat, to, me.comm, me.stream));
                   }
               NCCL(ncclGroupEnd());
               CUDA(cudaStreamSynchronize(me.stream));
               EXPECT(q, { 1, 2, 1, 1, 2, 1 });
           }));
    passes("a send waits for its receiver", ranks(2, [](Rank &me) {
               float *p = on_gpu(1, 1);
               if (me.rank == 0) {
                   NCCL(ncclSend(p, 1, ncclFloat, 1, me.comm, me.stream));
                   for (int i = 0; i < 100; i++)
                       MUST(cudaStreamQuery(me.stream) == cudaErrorNotReady);
                   me.shared->word[0] = 1;
               } else {
                   me.wait_for(0, 1);
                   NCCL(ncclRecv(p, 1, ncclFloat, 0, me.comm, me.stream));
               }
               CUDA(cudaStreamSynchronize(me.stream));
           }));
    caught("a kernel that is loaded while a message waits",
           "add: a kernel's first launch may wait for the GPU", [] {
               setenv("CUDA_MODULE_LOADING", "LAZY", 1);
               ranks(2, [](Rank &me) {
                   float *p = on_gpu(1, 1), *q = on_gpu(1, 1);
                   if (me.rank == 0) NCCL(ncclSend(p, 1, ncclFloat, 1, me.comm, me.stream));
                   add(stream(), q, 1, 1);
               })();
           });
    passes("two ranks that send first and then receive, without a group, never finish; an abort "
           "frees the stream",
           ranks(2, [](Rank &me) {
               float *p = on_gpu(1, 1), *q = on_gpu(1);
               NCCL(ncclSend(p, 1, ncclFloat, 1 - me.rank, me.comm, me.stream));
               NCCL(ncclRecv(q, 1, ncclFloat, 1 - me.rank, me.comm, me.stream));
               MUST(me.verdict(1000) == ncclInProgress);
               me.shared->word[me.rank] = 1;
               me.wait_for(1 - me.rank, 1);
               NCCL(ncclCommAbort(me.comm));
               CUDA(cudaStreamSynchronize(me.stream));
           }));
    passes("a group over two streams and two communicators", ranks(2, [](Rank &me) {
               float *p = on_gpu(1, float(me.rank)), *q = on_gpu(1), *sum = on_gpu(1, 1);
               cudaStream_t other = stream();
               ncclComm_t again;
               NCCL(ncclCommSplit(me.comm, 0, -me.rank, &again, nullptr));
               NCCL(ncclGroupStart());
               NCCL(ncclSend(p, 1, ncclFloat, 1 - me.rank, me.comm, me.stream));
               NCCL(ncclRecv(q, 1, ncclFloat, 1 - me.rank, me.comm, other));
               NCCL(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, again, me.stream));
               NCCL(ncclGroupEnd());
               CUDA(cudaStreamSynchronize(me.stream));
               CUDA(cudaStreamSynchronize(other));
               EXPECT(q, { float(1 - me.rank) });
               EXPECT(sum, { 2 });
           }));
    caught("a message into memory that the group sends",
           "two messages of a group use the same memory", ranks(2, [](Rank &me) {
               float *p = on_gpu(1, 1);
               NCCL(ncclGroupStart());
               NCCL(ncclSend(p, 1, ncclFloat, 1 - me.rank, me.comm, me.stream));
               NCCL(ncclRecv(p, 1, ncclFloat, 1 - me.rank, me.comm, me.stream));
               ncclGroupEnd();
           }));
    passes("calls that a group forbids", ranks(1, [](Rank &me) {
               float *p = on_gpu(1, 1);
               MUST(ncclGroupEnd() == ncclInvalidUsage);
               MUST(ncclSend(p, 1, ncclFloat, 0, me.comm, me.stream) == ncclInvalidUsage);
               NCCL(ncclGroupStart());
               NCCL(ncclSend(p, 1, ncclFloat, 0, me.comm, me.stream));
               MUST(ncclGroupEnd() == ncclInvalidUsage);
               MUST(ncclSend(p, 1, ncclFloat, 1, me.comm, me.stream) == ncclInvalidArgument);
           }));
}

static void communicators() {
    passes("parts of a communicator, in the order of their keys; no color, no part",
           ranks(4, [](Rank &me) {
               ncclComm_t part, none;
               int rank, size;
               float *p = on_gpu(1, float(me.rank)), *q = on_gpu(2);
               for (int turn = 0; turn < 3; turn++) {
                   NCCL(ncclCommSplit(me.comm, me.rank % 2, -me.rank, &part, nullptr));
                   NCCL(ncclCommUserRank(part, &rank));
                   NCCL(ncclCommCount(part, &size));
                   MUST(size == 2 && rank == 1 - me.rank / 2);
                   NCCL(ncclAllGather(p, q, 1, ncclFloat, part, me.stream));
                   CUDA(cudaStreamSynchronize(me.stream));
                   EXPECT(q, { float(me.rank % 2 + 2), float(me.rank % 2) });
                   NCCL(ncclCommDestroy(part));
               }
               NCCL(ncclCommSplit(me.comm, me.rank ? NCCL_SPLIT_NOCOLOR : 7, 0, &none, nullptr));
               MUST((none == nullptr) == (me.rank > 0));
           }));
    passes("no split while operations are in flight", ranks(1, [](Rank &me) {
               ncclComm_t part;
               float *p = on_gpu(1, 1);
               NCCL(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream));
               MUST(ncclCommSplit(me.comm, 0, 0, &part, nullptr) == ncclInvalidUsage);
           }));
    passes("two ranks on one GPU are refused", ranks_bare(2, [](Rank &me) {
               CUDA(cudaSetDevice(0));
               MUST(me.begin(me.rank, 2) == ncclInvalidUsage);
               MUST(strstr(ncclGetLastError(nullptr),
                           "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 0"));
           }));
    passes("two ranks on one GPU: the other gets an error, even after the first is gone",
           ranks_bare(2, [](Rank &me) {
               CUDA(cudaSetDevice(0));
               if (me.rank == 1) { // rank 1 comes last, so its call is refused at once
                   me.wait_for(0, 1);
                   me.shared->word[1] = getpid();
                   MUST(me.begin(0, 2, 0) == ncclInvalidUsage);
                   return;
               }
               ncclResult_t e;
               MUST(me.begin(1, 2, 0) == ncclInProgress);
               me.shared->word[0] = 1;
               while (!me.shared->word[1] || kill(me.shared->word[1], 0) == 0) usleep(100);
               NCCL(ncclCommGetAsyncError(me.comm, &e));
               MUST(e == ncclInvalidUsage);
           }));
    passes("two ranks on one GPU that claim to be on two hosts", ranks_bare(2, [](Rank &me) {
               setenv("NCCL_HOSTID", me.rank ? "b" : "a", 1);
               CUDA(cudaSetDevice(0));
               NCCL(me.begin(me.rank, 2));
           }));
    passes("two ranks that disagree about their number", ranks_bare(2, [](Rank &me) {
               if (me.rank == 0) {
                   MUST(me.begin(0, 2, 0) == ncclInProgress);
                   me.shared->word[0] = 1;
                   return me.wait_for(1, 1);
               }
               me.wait_for(0, 1);
               MUST(me.begin(1, 3) == ncclInvalidArgument);
               me.shared->word[1] = 1;
           }));
    passes("without blocking: nothing is launched before the communicator is asked",
           ranks_bare(2, [](Rank &me) {
               float *p = on_gpu(1, 1);
               ncclResult_t e = me.begin(me.rank, 2, 0);
               MUST(e == ncclSuccess || e == ncclInProgress);
               do NCCL(ncclCommGetAsyncError(me.comm, &e));
               while (e == ncclInProgress);
               NCCL(e);
               MUST(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream) ==
                    ncclInProgress);
               MUST(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream) ==
                    ncclInvalidArgument);
               MUST(cudaStreamQuery(me.stream) == cudaSuccess);
               EXPECT(p, { 1 });
               NCCL(ncclCommGetAsyncError(me.comm, &e));
               NCCL(e);
               CUDA(cudaStreamSynchronize(me.stream));
               EXPECT(p, { 2 });
               ncclComm_t part;
               e = ncclCommSplit(me.comm, 0, 0, &part, nullptr);
               MUST(e == ncclSuccess || e == ncclInProgress);
               do NCCL(ncclCommGetAsyncError(part, &e));
               while (e == ncclInProgress);
               do NCCL(ncclCommGetAsyncError(me.comm, &e));
               while (e == ncclInProgress);
               NCCL(e);
           }));
    passes("two ranks with one number", ranks_bare(2, [](Rank &me) {
               const ncclResult_t e = me.begin(0, 2, 0);
               MUST(e == ncclInProgress || e == ncclInvalidUsage);
               me.shared->word[me.rank] = int(e);
               while (!me.shared->word[0] || !me.shared->word[1]) usleep(100);
               MUST(me.shared->word[0] + me.shared->word[1] ==
                    int(ncclInProgress) + int(ncclInvalidUsage));
           }));
    passes("a rank that dies: the others get an error", ranks(3, [](Rank &me) {
               float *p = on_gpu(1, 1);
               // Waits until the other ranks have begun, because NCCL would refuse later calls.
               if (me.rank == 1) {
                   me.wait_for(0, 1);
                   me.wait_for(2, 1);
                   _exit(0);
               }
               NCCL(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream));
               me.shared->word[me.rank] = 1;
               MUST(me.verdict() == ncclRemoteError);
               MUST(strstr(ncclGetLastError(me.comm), "rank 1 of dp"));
               MUST(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream) ==
                    ncclRemoteError);
               NCCL(ncclCommAbort(me.comm));
               CUDA(cudaDeviceSynchronize());
           }));
    passes("a rank that aborts: the others get an error", ranks(2, [](Rank &me) {
               float *p = on_gpu(1, 1);
               NCCL(ncclAllReduce(p, p, size_t(1), ncclFloat, ncclSum, me.comm, me.stream));
               CUDA(cudaStreamSynchronize(me.stream));
               if (me.rank == 1) {
                   NCCL(ncclCommAbort(me.comm));
                   return me.wait_for(0, 1);
               }
               NCCL(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream));
               MUST(me.verdict() == ncclRemoteError);
               me.shared->word[0] = 1;
           }));
    passes("an operation made to fail", ranks_bare(2, [](Rank &me) {
               if (me.rank == 0) setenv("STANDIN_NCCL_ERROR", "2", 1);
               NCCL(me.begin(me.rank, 2));
               float *p = on_gpu(1, 1);
               NCCL(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream));
               CUDA(cudaStreamSynchronize(me.stream));
               const ncclResult_t e =
                   ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream);
               MUST(e == ncclSystemError || (e == ncclSuccess && me.verdict() == ncclSystemError));
           }));
    check("a process made to die", 128 + SIGKILL, "", ranks_bare(2, [](Rank &me) {
              if (me.rank == 0) setenv("STANDIN_NCCL_DIE", "1", 1);
              NCCL(me.begin(me.rank, 2));
              float *p = on_gpu(1, 1);
              NCCL(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, me.comm, me.stream));
              MUST(me.verdict() == ncclRemoteError);
          }));
}

int main() {
    memory();
    streams();
    products();
    collectives();
    messages();
    communicators();
    printf("1..%d\n", count);
    return failed > 0;
}
