// output.c: see output.h.
#include "output.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "util.h"

static bool in_place(const char *file) {
    struct stat there;
    return stat(file, &there) == 0 && !S_ISREG(there.st_mode);
}

static Output open_as(const char *option, const char *file, const char *mode) {
    Output o = { .part = host_alloc(strlen(file) + 5), .option = option, .file = file };
    sprintf(o.part, "%s%s", file, in_place(file) ? "" : ".tmp");
    o.f = fopen(o.part, mode);
    if (o.f == NULL)
        fault("--%s %s: cannot write it: %s; name a file in a folder that exists", option, file, strerror(errno));
    return o;
}
static void forget(const Output *o) {
    if (strcmp(o->part, o->file) != 0) remove(o->part);
}

void output_require(const char *option, const char *file) {
    struct stat there;
    if (stat(file, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) return;     // a pipe is opened once
    Output o = open_as(option, file, "a");
    fclose(o.f);
    forget(&o);
    free(o.part);
}

Output output_open(const char *option, const char *file) { return open_as(option, file, "w"); }

void output_close(Output *o) {
    int trouble = fflush(o->f) != 0 || ferror(o->f) ? errno : 0;
    if (fclose(o->f) != 0 && trouble == 0) trouble = errno;
    if (trouble == 0 && strcmp(o->part, o->file) != 0 && rename(o->part, o->file) != 0) trouble = errno;
    if (trouble != 0) {
        forget(o);
        fault("--%s %s: cannot write it: %s", o->option, o->file, strerror(trouble));
    }
    free(o->part);
}
