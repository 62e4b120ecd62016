// util.c: reports faults, allocates host memory, catches signals, and measures time and the memory
// of the process.
#include "common/base/util.h"
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void (*end_all_ranks)(int status) = exit;
_Thread_local size_t this_rank = 0, this_world_size = 1;

// Prints a message with a single fwrite(), so messages of several processes do not mix.
static void print_message(const char *prefix, const char *format, va_list arguments) {
    char text[2048];
    vsnprintf(text, sizeof text, format, arguments);
    fflush(stdout);
    char line[2200];
    int length = snprintf(line, sizeof line, "%s%s\n", prefix, text);
    fwrite(line, 1, (size_t)length, stderr);
    fflush(stderr);
}

_Noreturn static void end(int status) {
    end_all_ranks(status);
    exit(status);
}

bool ranks_are_processes;
long usage_wait = 60;

_Noreturn void usage_error(const char *format, ...) {
    // If every rank sees the mistake, rank 0 reports the mistake and ends the other ranks, which
    // wait in nanosleep(). If this rank is still alive after the wait, rank 0 does not see the
    // mistake, so this rank reports it. A virtual rank does not wait, because all virtual ranks end
    // together.
    if (this_rank > 0)
        nanosleep(&(struct timespec){ .tv_sec = ranks_are_processes ? usage_wait : 0 }, NULL);
    va_list arguments;
    va_start(arguments, format);
    print_message("unsplit: ", format, arguments);
    va_end(arguments);
    end(STATUS_USAGE);
}

_Noreturn void fault(const char *format, ...) {
    char prefix[40] = "unsplit: ";
    if (this_world_size > 1) snprintf(prefix, sizeof prefix, "[rank %zu] ", this_rank);
    va_list arguments;
    va_start(arguments, format);
    print_message(prefix, format, arguments);
    va_end(arguments);
    end(STATUS_FAULT);
}

void *host_alloc(size_t bytes) {
    void *p = calloc(1, bytes > 0 ? bytes : 1);
    if (!p)
        fault("out of host memory for %zu bytes; choose fewer ranks on this machine, or a smaller "
              "model",
              bytes);
    return p;
}
char *text_copy(const char *text) { return strcpy(host_alloc(strlen(text) + 1), text); }

double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile sig_atomic_t stop_came;
static volatile double stop_time, interrupt_time; // interrupt_time is 0 before the first SIGINT
static void stop(int signal) {
    (void)signal;
    if (!stop_came) stop_time = now(); // clock_gettime may be called in a signal handler
    stop_came = 1;
}
// Handles SIGINT. The first Ctrl-C is a warning, and the second Ctrl-C ends the process at once.
// timeout(1) signals the process and also its group, so the same SIGINT may come twice. So a SIGINT
// within a second of the first SIGINT does not count.
static void interrupt(int signal) {
    stop(signal);
    if (interrupt_time == 0) interrupt_time = now();
    if (now() - interrupt_time < 1) return;
    sigaction(signal, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
    raise(signal); // takes effect when this handler returns
}
void stop_catch(void) {
    struct sigaction warning = { .sa_handler = stop, .sa_flags = SA_RESTART };
    struct sigaction twice = { .sa_handler = interrupt, .sa_flags = SA_RESTART };
    sigaction(SIGTERM, &warning, NULL);
    // mpirun and srun send SIGUSR1 on to the processes, and do not end the processes.
    sigaction(SIGUSR1, &warning, NULL);
    sigaction(SIGINT, &twice, NULL);
}
double stop_asked(void) { return stop_came ? now() - stop_time : -1; }

// Does not use getrusage(), because its peak includes the memory that the process had before an
// exec.
size_t resident_most(void) {
    char line[128];
    size_t kilobytes = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %zu kB", &kilobytes) == 1) break;
    if (f) fclose(f);
    return kilobytes * 1024;
}
