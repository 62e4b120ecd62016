// output.h: files that are there whole or not at all: written beside their place, under a name that
// is not taken, and renamed when they are complete. What is not a plain file (a pipe, a device) is
// written in place: renaming would replace it.
#ifndef OUTPUT_H
#define OUTPUT_H
#include <stdio.h>

typedef struct {
    FILE *f;
    char *part;
    const char *option, *file;
} Output;
void output_require(const char *option, const char *file); // asked before the work: usage_error()
Output output_open(const char *option, const char *file);
// fault() when not all of it could be written; nothing is left then.
void output_close(Output *o);
#endif
