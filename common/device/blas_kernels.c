// blas_kernels.c: see blas_kernels.h.
//
// OpenBLAS can be told its kernels only by OPENBLAS_CORETYPE, and only while it is loaded, which is before any code of
// ours. So the program that sees a bad choice sets the variable and executes itself again: the same process, with the
// same arguments, before main and before MPI. A variable of our own tells the second start that it is the second.
//
// Under gdb this shows as "is executing new program", and breakpoints stay. Under valgrind it is not done, since the
// second start would not be valgrind's. Nor is it needed: OpenBLAS sees a processor of valgrind's own, which it knows.
#define _GNU_SOURCE                            // program_invocation_short_name
#include "common/device/blas_kernels.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

// OpenBLAS only; weak, so that any other CBLAS links too, and none.
char *openblas_get_corename(void) __attribute__((weak));

static const char wish[] = "OPENBLAS_CORETYPE";            // a setting of the user's always wins
static const char before[] = "UNSPLIT_KERNELS_BEFORE";     // ours: what OpenBLAS had chosen at the first start
static char first_choice[32];

// The names by which OpenBLAS knows its kernels; the first of a row is what is asked for. Left alone are names that do
// not stand here: those of other processors, of a later OpenBLAS, and of one that was built for a single processor and
// has no choice (it writes them in capitals). So is Bobcat, whose successor's AVX is two halves of SSE.
static const char *const cores[][16] = {
    [VECTORS_SSE] = { "Prescott", "Katmai", "Coppermine", "Northwood", "Banias", "Atom", "Core2", "Penryn",
                      "Dunnington", "Nehalem", "Athlon", "Opteron", "Opteron_SSE3", "Barcelona", "Nano" },
    [VECTORS_AVX] = { "Sandybridge", "Bulldozer", "Piledriver", "Steamroller" },
    [VECTORS_AVX2] = { "Haswell", "Zen", "Excavator" },
    [VECTORS_AVX512] = { "SkylakeX", "Cooperlake", "SapphireRapids" },
};

// Vectors, or -1 for a name that is not known.
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
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd")) return VECTORS_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return VECTORS_AVX2;
    if (__builtin_cpu_supports("avx")) return VECTORS_AVX;
#endif
    return VECTORS_SSE;
}

const char *kernels_in_use(void) { return openblas_get_corename ? openblas_get_corename() : NULL; }

const char *kernels_mended(void) {
    return first_choice[0] && strcmp(first_choice, kernels_in_use()) != 0 ? first_choice : NULL;
}

// The arguments are Linux's record of them: where somebody started the dynamic loader with this program as its
// argument, /proc/self/exe is the loader, and has to be given all of them again.
void program_start_again(void) {
    static char **argv;                        // static: where it returns, this is no leak
    const char *preloaded = getenv("LD_PRELOAD");
    FILE *f = preloaded && strstr(preloaded, "vgpreload") ? NULL : fopen("/proc/self/cmdline", "re");
    if (!f) return;
    for (size_t n = 0;; n++) {
        char **longer = realloc(argv, (n + 1) * sizeof *argv);
        if (!longer) break;
        argv = longer;
        argv[n] = NULL;
        size_t room = 0;
        if (getdelim(&argv[n], &room, 0, f) >= 0) continue;
        free(argv[n]);
        argv[n] = NULL;                        // ends them
        if (feof(f) && n > 0) execv("/proc/self/exe", argv);
        break;
    }
    fclose(f);
}

void kernels_mend(void) {
    prctl(PR_SET_NAME, program_invocation_short_name);         // ps and top would show a second start as "exe"
    const char *core = kernels_in_use(), *chosen = getenv(before);
    if (!core) return;
    if (chosen) {
        const int asked = getenv(wish) != NULL;
        unsetenv(wish);                        // OpenBLAS has read it; the environment is again as the user left it
        // An OpenBLAS that does not know the name it is asked for may take its oldest kernels. Then back to its choice.
        if (asked && vectors_of(core) < vectors_of(chosen)) program_start_again();
        snprintf(first_choice, sizeof first_choice, "%s", chosen);
        unsetenv(before);
        return;
    }
    const char *better = kernels_better(core, kernels_processor());
    if (!better || getenv(wish)) return;
    if (setenv(before, core, 1) == 0 && setenv(wish, better, 1) == 0) program_start_again();
    unsetenv(wish);                            // it could not be: on with the kernels there are
    unsetenv(before);
}
