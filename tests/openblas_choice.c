// openblas_choice.c: a preloaded library that makes OpenBLAS choose as on another processor, or as
// another version would. The library changes the environment for OpenBLAS only. All other code sees
// the unchanged environment.
//     CHOICE=Prescott        OpenBLAS's own choice if OPENBLAS_CORETYPE is not set
//     ANSWER=Haswell         OpenBLAS's choice if OPENBLAS_CORETYPE is set
#define _GNU_SOURCE // dladdr
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Calls the original getenv, which this library replaces.
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
