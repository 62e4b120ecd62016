// input.h: opens regular files for reading and rejects other files. A program that reads a pipe
// could wait for ever, and /dev/zero has no end.
#ifndef INPUT_H
#define INPUT_H
#include <stddef.h>

enum { INPUT_WHY = 100 };

// Returns a descriptor, and sets *bytes to the file's size. On failure the function returns -1, and
// why[] holds the reason, such as "it is a pipe, and only a regular file can be read".
int input_open(const char *path, size_t *bytes, char why[INPUT_WHY]);
// Returns the contents of a regular file of at most `most` bytes, and sets *bytes to the number of
// bytes read. free() the result. On failure the function returns NULL, and why[] holds the reason.
char *input_text(const char *path, size_t most, size_t *bytes, char why[INPUT_WHY]);
#endif
