// blas_kernels.c: lists the names and vector units of OpenBLAS's kernels.
//
// OpenBLAS reads OPENBLAS_CORETYPE while it is loaded, before main, so a program cannot choose its
// kernels. tools/kernels asks a program for better kernels, and tools/launch sets
// OPENBLAS_CORETYPE.
#include "common/device/blas_kernels.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Only OpenBLAS has this function. The symbol is weak, so that programs link with any other CBLAS,
// too.
char *openblas_get_corename(void) __attribute__((weak));

// `cores` has OpenBLAS's names of its kernels for x86, one row per kind of vector units.
// kernels_better() returns the first name of a row. Names that later releases of OpenBLAS add are
// missing. An OpenBLAS that was built for one processor returns a name in capitals. Such names are
// missing, because that OpenBLAS cannot choose kernels. Bobcat is missing, because OpenBLAS uses
// Bobcat's kernels on Jaguar, too. Jaguar runs an AVX instruction as two halves of SSE's width, so
// AVX kernels would not be faster.
static const char *const cores[][16] = {
    [VECTORS_SSE] = { "Prescott", "Katmai", "Coppermine", "Northwood", "Banias", "Atom", "Core2",
                      "Penryn", "Dunnington", "Nehalem", "Athlon", "Opteron", "Opteron_SSE3",
                      "Barcelona", "Nano" },
    [VECTORS_AVX] = { "Sandybridge", "Bulldozer", "Piledriver", "Steamroller" },
    [VECTORS_AVX2] = { "Haswell", "Zen", "Excavator" },
    [VECTORS_AVX512] = { "SkylakeX", "Cooperlake", "SapphireRapids" },
};

static int vectors_of(const char *core) {
    for (int v = VECTORS_SSE; v <= VECTORS_AVX512; v++)
        for (const char *const *name = cores[v]; *name; name++)
            if (strcmp(*name, core) == 0) return v;
    return -1;
}

const char *kernels_better(const char *core, Vectors processor) {
    const int v = vectors_of(core);
    return v >= 0 && v < (int)processor ? cores[processor][0] : NULL;
}

Vectors kernels_processor(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd"))
        return VECTORS_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return VECTORS_AVX2;
    if (__builtin_cpu_supports("avx")) return VECTORS_AVX;
#endif
    return VECTORS_SSE;
}

const char *kernels_in_use(void) { return openblas_get_corename ? openblas_get_corename() : NULL; }

const char *kernels_advised(void) {
    const char *core = kernels_in_use();
    return core ? kernels_better(core, kernels_processor()) : NULL;
}

// Runs before main(). If the environment variable UNSPLIT_KERNELS is set, prints kernels_advised()
// and ends the process. tools/kernels sets UNSPLIT_KERNELS, and starts a program only to read this
// output.
__attribute__((constructor)) static void answer(void) {
    const char *better = kernels_advised();
    if (!getenv("UNSPLIT_KERNELS")) return;
    if (better) puts(better);
    fflush(stdout);
    _Exit(0);
}
