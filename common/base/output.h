// output.h: writes output files that are complete or absent. A file is written beside its final
// place, under a free name, and renamed when it is complete. Pipes and devices are written in
// place, because renaming would replace them.
#ifndef OUTPUT_H
#define OUTPUT_H
#include <stdio.h>

typedef struct {
    FILE *f;
    char *part;
    const char *option, *file;
} Output;
// Call it before the work. usage_error() if the file cannot be written.
void output_require(const char *option, const char *file);
// Call it before a file is opened. usage_error() for a pipe that no program reads.
void output_require_reader(const char *option, const char *file);
Output output_open(const char *option, const char *file);
// fault() if a write has failed; then no file is left.
void output_close(Output *o);
#endif
