// openblas_choice.c: a preloaded library (LD_PRELOAD) that makes OpenBLAS choose the kernels of
// another processor or of another version. OpenBLAS alone sees a changed OPENBLAS_CORETYPE. All
// other code sees the unchanged environment. Two variables set the kernels:
//     CHOICE=Prescott   for OpenBLAS's own choice, if OPENBLAS_CORETYPE is not set
//     ANSWER=Haswell    for OpenBLAS's choice if OPENBLAS_CORETYPE is set
#define _GNU_SOURCE // dladdr
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Searches the environment itself, because this library replaces getenv().
static char *value_of(const char *name) {
    const size_t n = strlen(name);
    for (char **e = environ; e && *e; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=') return *e + n + 1;
    return NULL;
}

char *getenv(const char *name) {
    char *value = value_of(name), *instead;
    Dl_info caller;
    if (strcmp(name, "OPENBLAS_CORETYPE") != 0 || !dladdr(__builtin_return_address(0), &caller) ||
        !caller.dli_fname || !strstr(caller.dli_fname, "openblas"))
        return value;
    instead = value_of(value ? "ANSWER" : "CHOICE");
    return instead ? instead : value;
}
