// wasm.h: what a C file of the book needs to be called from a page, and what the chapters' files that it calls need
// besides, of common/: tools/book compiles them with each function in a section of its own, and the linker drops every
// section that is not reached. Included once, by that C file.
#ifndef WASM_H
#define WASM_H
#include "common/base/util.h"
#include <stdlib.h>

#ifdef __wasm__
#define EXPORT(name) __attribute__((export_name(#name))) name
// common/base/util.c ends ranks; here there are none, and the page says that something went wrong.
void *host_alloc(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    if (!memory) __builtin_trap();
    return memory;
}
_Noreturn void fault(const char *format, ...) { (void)format; __builtin_trap(); }
_Noreturn void usage_error(const char *format, ...) { (void)format; __builtin_trap(); }
void exercise_open(const char *id, const char *file, int line) { (void)id; (void)file; (void)line; }
#else
#define EXPORT(name) name
#endif
#endif
