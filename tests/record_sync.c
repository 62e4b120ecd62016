// record_sync.c: a preloaded library (LD_PRELOAD) that records the calls of fsync and rename, one
// line each, with their paths. The environment variable SYNC_LOG names the file of the record.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void record(const char *call, const char *path, const char *to) {
    const char *file = getenv("SYNC_LOG");
    FILE *f = file ? fopen(file, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s %s%s%s\n", call, path, *to ? " " : "", to);
    fclose(f);
}

int fsync(int file) {
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, PATH_MAX);
    path[n > 0 ? n : 0] = 0;
    record("fsync", path, "");
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

int rename(const char *from, const char *to) {
    record("rename", from, to);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
