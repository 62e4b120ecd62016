// tap.h: TAP lines for a test program in C, and child processes for code that may end its process.
#ifndef TAP_H
#define TAP_H
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/base/util.h"

static int tap_count, tap_failed;

__attribute__((format(printf, 2, 3))) static bool ok(bool holds, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("%sok %d - ", holds ? "" : "not ", ++tap_count);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
    if (!holds) tap_failed++;
    return holds;
}

static int tap_end(void) {
    printf("1..%d\n", tap_count);
    return tap_failed > 0;
}

// Runs body(context) in a child process, because body may end its process. Returns the child's exit
// status, or 128 + N after signal N. said [room] receives the child's stderr.
__attribute__((unused)) static int tap_child(void (*body)(void *), void *context, char *said,
                                             size_t room) {
    int tube[2], how;
    size_t n = 0;
    fflush(stdout);
    if (pipe(tube) != 0) fault("pipe");
    const pid_t child = fork();
    if (child < 0) fault("fork");
    if (child == 0) {
        dup2(tube[1], STDERR_FILENO);
        body(context);
        _exit(0);
    }
    close(tube[1]);
    for (ssize_t got; (got = read(tube[0], said + n, room - 1 - n)) > 0;) n += (size_t)got;
    said[n] = 0;
    close(tube[0]);
    waitpid(child, &how, 0);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

// ends() runs f in a child process, which must end with `status` and print `words` on stderr.
typedef struct {
    void (*f)(void);
} TapCall;
static void tap_call(void *call) {
    end_all_ranks = _exit;
    ((TapCall *)call)->f();
}
__attribute__((unused)) static void ends(void (*f)(void), int status, const char *words) {
    char said[2048];
    TapCall call = { f };
    const int returned = tap_child(tap_call, &call, said, sizeof said);
    if (!ok(returned == status && strstr(said, words), "status %d: %s", status, words))
        printf("#   status %d, and it said: %s\n", returned, said);
}
#endif
