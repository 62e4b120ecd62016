// bench_files.h: opens the files that a benchmark writes for a reference in Python.
#ifndef BENCH_FILES_H
#define BENCH_FILES_H
#include <stdio.h>
#include "judge/frame/lesson.h"

static inline FILE *file_of(const char *directory, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    REQUIRE(f, "--reference %s: %s cannot be written", directory, path);
    return f;
}
#endif
