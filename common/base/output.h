// output.h: writes output files. A program first writes FILE.tmp, and renames FILE.tmp to FILE when
// FILE.tmp is complete. So a regular file under its final name is complete. Pipes and devices are
// written in place, because renaming would replace them.
#ifndef OUTPUT_H
#define OUTPUT_H
#include <stdio.h>

typedef struct {
    FILE *f;
    char *part; // the file that is written first, such as FILE.tmp; for a pipe or device: FILE
    const char *option, *file;
} Output;
// Calls usage_error() if the file cannot be written. Call this function before a long computation.
void output_require(const char *option, const char *file);
// Calls usage_error() if the file is a pipe that no program reads. Call this function before the
// file is opened.
void output_require_reader(const char *option, const char *file);
// Opens the file for writing. Calls fault() if the file cannot be opened.
Output output_open(const char *option, const char *file);
// Closes the file and gives it its final name. Calls fault() if a write has failed, and leaves no
// incomplete file.
void output_close(Output *o);
#endif
