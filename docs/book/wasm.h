// wasm.h: exports functions to a page, and defines the functions of common/ that the chapters'
// files need there. tools/book compiles each function into its own section. The linker drops every
// section that is not reached. Only one C file of each page includes wasm.h, because wasm.h defines
// functions.
#ifndef WASM_H
#define WASM_H
#include "common/base/util.h"
#include <stdlib.h>

#ifdef __wasm__
#define EXPORT(name) __attribute__((export_name(#name))) name
// common/base/util.c ends ranks on a fault. A page has no ranks, so fault() and usage_error() trap.
// A trap ends the call with an error in the browser's console.
void *host_alloc(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) __builtin_trap();
    return memory;
}
_Noreturn void fault(const char *format, ...) {
    (void)format;
    __builtin_trap();
}
_Noreturn void usage_error(const char *format, ...) {
    (void)format;
    __builtin_trap();
}
void exercise_open(const char *id, const char *file, int line) {
    (void)id;
    (void)file;
    (void)line;
}
#else
#define EXPORT(name) name
#endif
#endif
