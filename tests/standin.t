#!/bin/sh
# The stand-ins for CUDA, cuBLAS and NCCL (tests/standin): each of their rules catches its fault.
cd "$(dirname "$0")/.." || exit 3
build=build/standin-test
mkdir -p $build
if ! make --no-print-directory -f - $build/test >$build/log 2>&1 <<'EOF'
flags := -std=gnu++17 -Wall -Wextra -Werror -O1 -g -pthread -I. -Itests/standin/include
parts := $(patsubst %.cpp,build/standin-test/%.o,$(notdir $(wildcard tests/standin/*.cpp) tests/test_standin.cpp))
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
$build/test </dev/null
