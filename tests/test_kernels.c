// test_kernels.c: prints the kernels in use, the processor's vector units (a number of enum
// Vectors) and OPENBLAS_CORETYPE. For each argument "core vectors" the program prints the kernels
// that kernels_better() chooses, or none.
//
// ranks: 1
// level: core
// question: Which kernels does a program get?
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"
#include "common/device/blas_kernels.h"

static const char *or_none(const char *text) { return text ? text : "none"; }

int main(int argc, char **argv) {
    device_init();
    printf("in use: %s\n", or_none(kernels_in_use()));
    printf("processor: %d\n", (int)kernels_processor());
    printf("OPENBLAS_CORETYPE: %s\n", or_none(getenv("OPENBLAS_CORETYPE")));
    for (int i = 1; i < argc; i++) {
        char core[64] = "";
        int vectors = 0;
        sscanf(argv[i], "%63s %d", core, &vectors);
        printf("'%s': %s\n", argv[i], or_none(kernels_better(core, (Vectors)vectors)));
    }
}
