// tests/bench_files.h: the files of a benchmark for a reference in Python.
#ifndef BENCH_FILES_H
#define BENCH_FILES_H
#include <stdio.h>
#include "judge/frame/lesson.h"

// Returns the new file directory/name, to be written.
static inline FILE *file_of(const char *directory, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    REQUIRE(f, "--reference %s: %s cannot be written", directory, path);
    return f;
}
#endif
