// openblas_choice.c: a library for LD_PRELOAD. Its getenv() gives OpenBLAS another value of
// OPENBLAS_CORETYPE, so OpenBLAS loads other kernels. All other code sees the real environment.
//     CHOICE=Prescott   the value if OPENBLAS_CORETYPE is not set, as if OpenBLAS had chosen
//                       Prescott itself
//     ANSWER=Haswell    the value if OPENBLAS_CORETYPE is set, as if this OpenBLAS had Haswell's
//                       kernels for every name
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
