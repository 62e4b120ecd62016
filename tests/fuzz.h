// fuzz.h: the common part of the fuzz tests. Each file fuzz_X.c, except fuzz_main.c, tests one
// reader and defines LLVMFuzzerTestOneInput(). tests/fuzz.t compiles fuzz_X.c with the reader's
// files under address and undefined sanitizers. The compiled program uses libFuzzer if clang has
// it, else fuzz_main.c. fuzz.h replaces functions of util.c, so that memory is limited and
// usage_error() returns to the test.
#ifndef FUZZ_H
#define FUZZ_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    FUZZ_MOST_BYTES = 1 << 24
}; // Inputs have a few thousand bytes, so a larger allocation is a bug of the reader.
void *host_alloc(size_t bytes) {
    if (bytes > FUZZ_MOST_BYTES) abort();
    return calloc(1, bytes ? bytes : 1);
}
char *text_copy(const char *text) { return strcpy(host_alloc(strlen(text) + 1), text); }

static jmp_buf fuzz_refused;
_Noreturn void usage_error(const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format,
              arguments); // reads every argument, as a real message would
    va_end(arguments);
    longjmp(fuzz_refused, 1);
}
_Noreturn void fault(const char *format, ...) { // no input may lead to a fault
    fprintf(stderr, "fault: %s\n", format);
    abort();
}
_Thread_local size_t this_rank = 0, this_world_size = 1;

// Returns a copy of exact length, so that the sanitizer sees a read beyond the copy's end. The copy
// is aligned for any type, as a mapped file is.
static inline uint8_t *fuzz_copy(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1);
    if (size) memcpy(copy, data, size);
    return copy;
}
#endif
