// input.c: opens and reads regular files.
#include "common/base/input.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/util.h"

// Returns the kind of a file that cannot be read, for messages, or NULL for a regular file.
static const char *special_kind(mode_t mode) {
    if (S_ISREG(mode)) return NULL;
    if (S_ISDIR(mode)) return "folder";
    if (S_ISFIFO(mode)) return "pipe";
    if (S_ISSOCK(mode)) return "socket";
    return "device";
}

static int refuse(int file, char why[INPUT_WHY], const char *kind) {
    if (kind) snprintf(why, INPUT_WHY, "it is a %s, and only a regular file can be read", kind);
    else snprintf(why, INPUT_WHY, "%s", strerror(errno));
    if (file >= 0) close(file);
    return -1;
}

int input_open(const char *path, size_t *bytes, char why[INPUT_WHY]) {
    struct stat info;
    *bytes = 0;
    // stat() comes before open(). Opening and closing a pipe would end its writer (SIGPIPE), and
    // opening a device may start an action of the device.
    if (stat(path, &info) != 0) return refuse(-1, why, NULL);
    if (special_kind(info.st_mode)) return refuse(-1, why, special_kind(info.st_mode));
    // The file may have become a pipe after stat(). With O_NONBLOCK, open() does not wait for a
    // writer of the pipe. fstat() then checks the opened file.
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &info) != 0) return refuse(file, why, NULL);
    if (special_kind(info.st_mode)) return refuse(file, why, special_kind(info.st_mode));
    *bytes = (size_t)info.st_size;
    return file;
}

char *input_text(const char *path, size_t most, size_t *bytes, char why[INPUT_WHY]) {
    int file = input_open(path, bytes, why);
    if (file < 0) return NULL;
    if (*bytes > most) {
        snprintf(why, INPUT_WHY, "it has %zu bytes, but the limit is %zu", *bytes, most);
        close(file);
        return NULL;
    }
    char *text = host_alloc(*bytes);
    size_t n = 0;
    ssize_t got = 1;
    while (n < *bytes && got > 0) {
        got = read(file, text + n, *bytes - n);
        if (got > 0) n += (size_t)got;
    }
    close(file);
    *bytes = n; // smaller if the file was truncated during the loop
    return text;
}
