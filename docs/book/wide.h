// wide.h: size_t of 64 bits for wasm32, whose own has 32: the cost model counts the elements of whole models in it.
// tools/book has clang read this before anything else of the planner, so that the C library's headers are read with
// their own size_t; and what a format calls %zu is printed as the 64 bits that it now is.
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define size_t uint64_t
#define snprintf wide_snprintf

static inline int wide_snprintf(char *text, size_t room, const char *format, ...) {
    char wide[strlen(format) + 1];
    strcpy(wide, format);
    for (char *at = wide; (at = strstr(at, "%zu"));) at[1] = 'j';
    va_list values;
    va_start(values, format);
    int n = vsnprintf(text, room, wide, values);
    va_end(values);
    return n;
}
