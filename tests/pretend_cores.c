// pretend_cores.c: a preloaded library (LD_PRELOAD). sched_getaffinity() then reports that the
// process may use as many cores as the environment variable PRETEND_CORES says (unset: 1).
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <string.h>

int sched_getaffinity(pid_t process, size_t bytes, cpu_set_t *cores) {
    const char *text = getenv("PRETEND_CORES");
    (void)process;
    memset(cores, 0, bytes);
    for (int i = 0; i < (text ? atoi(text) : 1); i++) CPU_SET_S(i, bytes, cores);
    return 0;
}
