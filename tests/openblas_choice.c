// openblas_choice.c: a preloaded library with which OpenBLAS chooses as on another processor, or as another version. It
// stands between the environment and OpenBLAS; everybody else sees the environment as it is.
//     CHOICE=Prescott        what it chooses by itself, that is where OPENBLAS_CORETYPE is not set
//     ANSWER=Haswell         what it takes where OPENBLAS_CORETYPE is set
#define _GNU_SOURCE                                // dladdr
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Not the C library's: that is what is replaced.
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
        !caller.dli_fname || !strstr(caller.dli_fname, "openblas")) return value;
    instead = value_of(value ? "ANSWER" : "CHOICE");
    return instead ? instead : value;
}
