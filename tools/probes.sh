# shellcheck shell=sh disable=SC2034    # the scripts that source this file use the variables
# tools/setup and tools/doctor source this file. The probes find compilers and libraries by
# compiling and running small programs, not by package names. Each probe leaves the messages of the
# failing command in $probe_dir/log.
probe_dir=$(mktemp -d "${TMPDIR:-/tmp}/unsplit-probe.XXXXXX") || exit 3
trap 'rm -rf "$probe_dir"' EXIT
PACKAGES="gcc g++ libc6-dev make libopenmpi-dev"
PACKAGES="$PACKAGES openmpi-bin libopenblas-dev libcjson-dev pkg-config perl"

probe_c() {
    printf 'int main(void) { return 0; }\n' >"$probe_dir/c.c"
    "${OMPI_CC:-gcc}" -o "$probe_dir/c" "$probe_dir/c.c" >"$probe_dir/log" 2>&1 && "$probe_dir/c"
}

# Checks the sandbox of make grade, which needs bubblewrap and user namespaces.
probe_sandbox() {
    bwrap --unshare-all --die-with-parent --uid 65534 --gid 65534 --ro-bind / / --proc /proc --dev \
        /dev true >"$probe_dir/log" 2>&1
}

probe_mpi() {
    cat >"$probe_dir/mpi.c" <<'END'
#include <mpi.h>
int main(int argc, char **argv) {
    int n;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    return MPI_Finalize() + (n != 2);
}
END
    "${CC:-mpicc}" -o "$probe_dir/mpi" "$probe_dir/mpi.c" >"$probe_dir/log" 2>&1
}

# Checks CBLAS. Sets blas_cflags and blas_libs to the first combination that compiles, links and
# runs.
probe_blas() {
    cat >"$probe_dir/blas.c" <<'END'
#include <cblas.h>
int main(void) {
    double a = 2, b = 3;
    return cblas_ddot(1, &a, 1, &b, 1) != 6;
}
END
    blas_cflags=$(pkg-config --cflags openblas 2>/dev/null) &&
        blas_libs=$(pkg-config --libs openblas 2>/dev/null) &&
        try_blas && return 0
    for blas_cflags in "" -I/usr/include/openblas; do
        blas_libs=-lopenblas
        try_blas && return 0
    done
    return 1
}
try_blas() {
    # shellcheck disable=SC2086    # several flags in one variable
    "${CC:-mpicc}" $blas_cflags -o "$probe_dir/blas" "$probe_dir/blas.c" $blas_libs \
        >"$probe_dir/log" 2>&1 &&
        "$probe_dir/blas" >>"$probe_dir/log"
}

# Checks cJSON, which the programs use to read checkpoints and to write results.
probe_json() {
    cat >"$probe_dir/json.c" <<'END'
#include <cjson/cJSON.h>
int main(void) {
    cJSON *j = cJSON_ParseWithLength("1", 1);
    int bad = !cJSON_IsNumber(j);
    cJSON_Delete(j);
    return bad;
}
END
    "${CC:-mpicc}" -o "$probe_dir/json" "$probe_dir/json.c" -lcjson >"$probe_dir/log" 2>&1 &&
        "$probe_dir/json"
}

# Checks the C++ compiler, for GPUs and for the tests with stand-ins for a GPU.
probe_cxx() {
    printf '#include <vector>\nint main() { return (int)std::vector<int>(0).size(); }\n' \
        >"$probe_dir/cxx.cpp"
    "${CXX:-g++}" -std=gnu++17 -o "$probe_dir/cxx" "$probe_dir/cxx.cpp" >"$probe_dir/log" 2>&1 &&
        "$probe_dir/cxx"
}

# Checks that nvcc of the CUDA Toolkit compiles a kernel, and that MPI's wrapper links a C program
# that calls CUDA's runtime and cuBLAS. Sets nvcc, cuda_cflags, cuda_libs and cuda_version. If
# CUDA_HOME is given, only this nvcc counts. Headers and libraries may then be in CUDA_HOME or in
# the compiler's own folders.
probe_cuda() {
    cat >"$probe_dir/kernel.cu" <<'END'
#include <cuda_runtime.h>
#if CUDART_VERSION < 12000
#error Unsplit needs CUDA 12 or newer
#endif
template <typename Body> __global__ void kernel(Body body) { body(threadIdx.x); }
extern "C" int version_of_nvcc(void) { return CUDART_VERSION; }
extern "C" void launch(int *p) { kernel<<<1, 32>>>([=] __device__ (unsigned i) { p[i] = 1; }); }
END
    cat >"$probe_dir/cuda.c" <<'END'
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
void launch(int *p);
int version_of_nvcc(void);
int main(int argc, char **argv) {
    int gpus = 0, blas_major = 0, major, minor, runtime = 0;
    struct cudaDeviceProp p;
    cublasHandle_t blas;
    if (argc > 2) { launch(NULL); cublasCreate(&blas); }
    cudaRuntimeGetVersion(&runtime);
    cublasGetProperty(MAJOR_VERSION, &blas_major);
    /* fails if nvcc, the headers and the libraries are of different toolkits */
    if (version_of_nvcc() != CUDART_VERSION || runtime / 1000 != CUDART_VERSION / 1000 ||
        blas_major != CUBLAS_VER_MAJOR)
        return fprintf(stderr,
            "CUDA %d for nvcc, %d for the C compiler; libraries: runtime %d, cuBLAS %d, wanted %d\n",
            version_of_nvcc(), CUDART_VERSION, runtime, blas_major, CUBLAS_VER_MAJOR) > 0;
    if (argc > 1 && strcmp(argv[1], "version") == 0)
        return printf("%d.%d\n", runtime / 1000, runtime % 1000 / 10) < 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return 1;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    cudaGetDeviceProperties(&p, 0);
    return printf("%d%d %d x %s\n", major, minor, gpus, p.name) < 0;
}
END
    if [ -n "$CUDA_HOME" ]; then
        nvcc=$CUDA_HOME/bin/nvcc
    else
        nvcc=$(command -v nvcc) || nvcc=/usr/local/cuda/bin/nvcc
    fi
    if [ ! -x "$nvcc" ]; then
        echo "there is no $nvcc" >"$probe_dir/log"
        return 1
    fi
    "$nvcc" -std=c++17 --extended-lambda -c -o "$probe_dir/kernel.o" "$probe_dir/kernel.cu" \
        >"$probe_dir/log" 2>&1 || return 1
    cuda_home=${CUDA_HOME:-$(dirname "$(dirname "$(readlink -f "$nvcc")")")}
    for include in "$cuda_home/include" "$cuda_home/targets/x86_64-linux/include" ""; do
        # A distribution's folder is searched anyway and must not come first.
        [ "$include" != /usr/include ] || include=
        cuda_cflags=${include:+-isystem $include}
        for lib in "$cuda_home/lib64" "$cuda_home/lib" "$cuda_home/targets/x86_64-linux/lib" ""; do
            [ -z "$lib" ] || [ -d "$lib" ] || continue
            for runtime in "-lcudart_static -lrt -ldl" -lcudart; do
                for blas in -lcublas -l:libcublas.so.13 -l:libcublas.so.12; do
                    cuda_libs="${lib:+-L$lib -Wl,-rpath,$lib }$blas $runtime"
                    try_cuda && return 0
                done
            done
        done
    done
    return 1
}
try_cuda() {
    # shellcheck disable=SC2086    # several flags in one variable
    "${CC:-mpicc}" $cuda_cflags -o "$probe_dir/cuda" "$probe_dir/cuda.c" "$probe_dir/kernel.o" \
        $cuda_libs -lstdc++ -lpthread -lm \
        >"$probe_dir/log" 2>&1 && cuda_version=$("$probe_dir/cuda" version 2>>"$probe_dir/log")
}
# Prints the GPUs of this machine: "90 1 x NVIDIA H100". Fails if there is none. Needs the program
# of probe_cuda.
probe_gpu() { "$probe_dir/cuda" 2>"$probe_dir/log"; }

# Checks NCCL of the toolkit, of the distribution, or of a Python wheel (.../nvidia/nccl), which has
# only libnccl.so.2. If NCCL_HOME is given, no other folder is searched. Needs probe_cuda. Sets
# nccl_cflags, nccl_libs and nccl_version.
probe_nccl() {
    cat >"$probe_dir/nccl.c" <<'END'
#include <nccl.h>
#include <stdio.h>
/* NCCL has this function since 2.18 */
ncclResult_t (*split)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *) = ncclCommSplit;
int main(void) {
    int v = 0;
    return !split || ncclGetVersion(&v) != ncclSuccess ||
           printf("%d.%d.%d\n", v / 10000, v % 10000 / 100, v % 100) < 0;
}
END
    if [ -n "$NCCL_HOME" ]; then
        try_nccl "$NCCL_HOME" lib || try_nccl "$NCCL_HOME" lib64
    else
        try_nccl "" "" || try_nccl "$cuda_home" lib || try_nccl "$cuda_home" lib64
    fi
}
# try_nccl FOLDER LIB: searches FOLDER/include and FOLDER/LIB. If both words are empty, the function
# searches the compiler's own folders.
try_nccl() {
    nccl_cflags=${1:+-isystem $1/include}
    nccl_libs=-lnccl
    if [ -n "$1" ]; then
        [ -e "$1/$2/libnccl.so" ] || nccl_libs=-l:libnccl.so.2
        nccl_libs="-L$1/$2 -Wl,-rpath,$1/$2 $nccl_libs"
        if ! ls "$1/include/nccl.h" "$1/$2"/libnccl.so* >"$probe_dir/log" 2>&1; then return 1; fi
    fi
    # shellcheck disable=SC2086    # several flags in one variable
    "${CC:-mpicc}" $nccl_cflags $cuda_cflags -o "$probe_dir/nccl" "$probe_dir/nccl.c" $nccl_libs \
        $cuda_libs -lstdc++ -lpthread -lm \
        >"$probe_dir/log" 2>&1 && nccl_version=$("$probe_dir/nccl" 2>>"$probe_dir/log")
}

# Checks that tools/launch starts two ranks in one MPI_COMM_WORLD. Needs the program of probe_mpi.
probe_mpirun() {
    [ -x "$probe_dir/mpi" ] && tools/launch 2 "$probe_dir/mpi" >"$probe_dir/log" 2>&1
}

probe_prove() { perl -MTAP::Harness -e 1 >"$probe_dir/log" 2>&1; }

# These two functions check the tools for make book: pandoc; and a compiler, a linker and a C
# library for WebAssembly, for the pages that run the chapters' C.
probe_pandoc() { pandoc --version >"$probe_dir/log" 2>&1; }
probe_wasm() {
    printf '#include <stdlib.h>\nvoid *some(void) { return malloc(1); }\n' >"$probe_dir/wasm.c"
    clang --target=wasm32-wasi -mexec-model=reactor -Wl,--export=some -o "$probe_dir/wasm" \
        "$probe_dir/wasm.c" >"$probe_dir/log" 2>&1
}
BOOK_PACKAGES="pandoc clang lld wasi-libc libclang-rt-dev-wasm32"

# Finds the BLAS kernels of the programs, and one core's speed with these kernels beside the core's
# limit. Sets kernels and speed, each empty if unknown. Takes about a second. Needs probe_blas.
probe_speed() {
    kernels='' speed=''
    for native in "-march=native -mprefer-vector-width=512" -march=native ""; do
        # shellcheck disable=SC2086    # several flags in one variable
        "${CC:-mpicc}" -std=gnu11 -O3 $native $blas_cflags -I. -o "$probe_dir/speed" tools/speed.c \
            common/device/blas_kernels.c $blas_libs \
            >"$probe_dir/log" 2>&1 || continue
        chosen=
        [ -n "${OPENBLAS_CORETYPE+set}" ] || chosen=$(tools/kernels "$probe_dir/speed")
        env ${chosen:+"OPENBLAS_CORETYPE=$chosen"} OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 \
            "$probe_dir/speed" \
            >"$probe_dir/said" 2>"$probe_dir/log" || return 1
        { read -r kernels; read -r speed; } <"$probe_dir/said"
        [ -z "$chosen" ] || kernels="kernels for $chosen (tools/launch sets OPENBLAS_CORETYPE)"
        return
    done
    return 1
}
