// malloc_peak.c: a preloaded library (LD_PRELOAD) that counts the bytes given out by the C
// library's allocator. The environment variable MALLOC_PEAK names a file. At its end the process
// adds a line to this file: the program's name, and the most bytes that were live at once.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

// The names are internal to glibc. The library uses these names because dlsym() would itself call
// the allocator.
void *__libc_malloc(size_t bytes), *__libc_calloc(size_t n, size_t bytes),
    *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *p);

static atomic_size_t live, peak;

static void *given(void *p) {
    if (!p) return p;
    size_t now = atomic_fetch_add(&live, malloc_usable_size(p)) + malloc_usable_size(p),
           most = atomic_load(&peak);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) {}
    return p;
}
static void taken(void *p) {
    if (p) atomic_fetch_sub(&live, malloc_usable_size(p));
}

void *malloc(size_t bytes) { return given(__libc_malloc(bytes)); }
void *calloc(size_t n, size_t bytes) { return given(__libc_calloc(n, bytes)); }
void *realloc(void *p, size_t bytes) {
    size_t before = p ? malloc_usable_size(p) : 0;
    void *q = __libc_realloc(p, bytes);
    if (!q && bytes) return q; // p is unchanged
    atomic_fetch_sub(&live, before);
    return given(q);
}
void *memalign(size_t alignment, size_t bytes) { return given(__libc_memalign(alignment, bytes)); }
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void **p, size_t alignment, size_t bytes) {
    *p = memalign(alignment, bytes);
    return *p ? 0 : ENOMEM;
}
void free(void *p) {
    taken(p);
    __libc_free(p);
}

__attribute__((destructor)) static void report(void) {
    FILE *f = getenv("MALLOC_PEAK") ? fopen(getenv("MALLOC_PEAK"), "a") : NULL;
    if (!f) return;
    fprintf(f, "%s %zu\n", program_invocation_short_name, atomic_load(&peak));
    fclose(f);
}
