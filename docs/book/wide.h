// wide.h: makes size_t 64 bits wide on wasm32, because the cost model counts elements of whole
// models. tools/book includes wide.h before all other files of the planner, so the C library's
// headers still have their own size_t. snprintf() prints %zu as 64 bits.
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
