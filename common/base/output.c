// output.c: writes a regular file under another name, then renames the file. Writes pipes and
// devices in place.
#include "common/base/output.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/util.h"

static bool in_place(const char *file) {
    struct stat info;
    return stat(file, &info) == 0 && !S_ISREG(info.st_mode);
}

// Opens a pipe or a device. If no program reads the pipe, returns NULL, instead of waiting for a
// reader.
static FILE *open_in_place(const char *file) {
    int descriptor = open(file, O_WRONLY | O_NONBLOCK);
    if (descriptor < 0) return NULL;
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
    return fdopen(descriptor, "w");
}

// Opens a new file beside `file`: FILE.tmp, or FILE.tmp2 and so on if FILE.tmp exists. Writes the
// name to `part`.
static FILE *open_part(const char *file, char *part) {
    enum { TRIES = 100 };
    for (int n = 1; n <= TRIES; n++) {
        sprintf(part, n == 1 ? "%s.tmp" : "%s.tmp%d", file, n);
        int descriptor = open(part, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (descriptor >= 0) return fdopen(descriptor, "w");
        if (errno != EEXIST) return NULL;
    }
    return NULL;
}

// On failure the result's f is NULL, and errno holds the reason.
static Output try_open(const char *option, const char *file) {
    Output o = { .part = strcpy(host_alloc(strlen(file) + 16), file),
                 .option = option,
                 .file = file };
    o.f = in_place(file) ? open_in_place(file) : open_part(file, o.part);
    return o;
}
static void forget(const Output *o) {
    if (strcmp(o->part, o->file) != 0) remove(o->part);
}

void output_require_reader(const char *option, const char *file) {
    struct stat info;
    if (stat(file, &info) != 0 || !S_ISFIFO(info.st_mode)) return;
    // The process never closes this descriptor. Otherwise the reader would see the end of the file
    // too early.
    int descriptor = open(file, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    REQUIRE(descriptor >= 0 || errno != ENXIO,
            "--%s %s: no program reads this pipe: start its reader first, or name a file", option,
            file);
}

void output_require(const char *option, const char *file) {
    struct stat info;
    output_require_reader(option, file);
    if (stat(file, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return;
    Output o = try_open(option, file);
    REQUIRE(o.f, "--%s %s: cannot write it: %s; name a file in a folder that exists", option, file,
            strerror(errno));
    fclose(o.f);
    forget(&o);
    free(o.part);
}

Output output_open(const char *option, const char *file) {
    Output o = try_open(option, file);
    if (!o.f)
        fault("--%s %s: cannot write it: %s; check the disk, or name another file", option, file,
              strerror(errno));
    return o;
}

void output_close(Output *o) {
    int trouble = 0;
    if (fflush(o->f) != 0 || ferror(o->f)) trouble = errno ? errno : EIO;
    if (fclose(o->f) != 0 && trouble == 0) trouble = errno;
    if (trouble == 0 && strcmp(o->part, o->file) != 0 && rename(o->part, o->file) != 0)
        trouble = errno;
    if (trouble != 0) {
        forget(o);
        fault("--%s %s: cannot write it: %s; check the disk, or name another file", o->option,
              o->file, strerror(trouble));
    }
    free(o->part);
}
