#!/bin/sh
# Tests the stand-ins for CUDA, cuBLAS and NCCL (tests/standin). Each rule of the stand-ins must
# catch its mistake.
cd "$(dirname "$0")/.." || exit 3
build=build/standin-test
mkdir -p $build
if ! make --no-print-directory -f - $build/test >$build/log 2>&1 <<'EOF'
flags := -std=gnu++17 -Wall -Wextra -Werror -O1 -g -pthread -I. -Itests/standin/include
parts := $(patsubst %.cpp,build/standin-test/%.o,$(notdir \
    $(wildcard tests/standin/*.cpp) tests/test_standin.cpp))
build/standin-test/test: $(parts)
	g++ $(flags) -o $@ $^
build/standin-test/%.o: tests/standin/%.cpp
	g++ $(flags) -MMD -MP -c -o $@ $<
build/standin-test/%.o: tests/%.cpp
	g++ $(flags) -MMD -MP -c -o $@ $<
-include $(parts:.o=.d)
EOF
then
    sed 's/^/# /' $build/log
    echo "Bail out! the stand-ins do not build"
    exit 3
fi

# Prints a C file with each declaration of the stand-ins after the real headers. The compiler
# requires both declarations to agree.
declarations() {
    echo '#include <cuda_runtime.h>'
    echo '#include <cublas_v2.h>'
    echo '#include <nccl.h>'
    sed 's://.*::' "$here"/cuda_runtime.h "$here"/cublas_v2.h "$here"/nccl.h | awk '
        /^#define STANDIN_GEMM/, !/\\$/ { print; next }
        /^STANDIN_GEMM/ { print; next }
        /^(cudaError_t|cublasStatus_t|ncclResult_t|const char) [^;{]*\(/ { inside = 1 }
        inside { print; inside = !/;/; next }
        /^typedef enum|^enum/, /}/ {
            n = split($0, part, ",")
            for (i = 1; i <= n; i++)
                if (match(part[i], /[A-Za-z0-9_]+ = [0-9]+/)) {
                    split(substr(part[i], RSTART, RLENGTH), value, " = ")
                    print "_Static_assert(" value[1] " == " value[2] ", \"" value[1] "\");"
                }
        }'
}
here=tests/standin/include
toolkit=${CUDA_HOME:-/usr/local/cuda}/include
$build/test </dev/null >$build/tap
status=$?
grep -v '^1\.\.' $build/tap
n=$(($(grep -c -e '^ok ' -e '^not ok ' $build/tap) + 1))
if [ ! -e "$toolkit/cublas_v2.h" ] || [ ! -e "$toolkit/nccl.h" ]; then
    echo "ok $n - the headers agree with the real headers # SKIP no headers of CUDA and NCCL in" \
        "$toolkit"
elif declarations >$build/agree.c && gcc -isystem "$toolkit" -c -o $build/agree.o $build/agree.c \
    2>$build/log; then
    echo "ok $n - the headers agree with the real headers"
else
    sed 's/^/# /' $build/log
    echo "not ok $n - the headers agree with the real headers"
    status=1
fi
echo "1..$n"
exit $status
