// pretend_cores.c: a preloaded library (LD_PRELOAD). The library reports that the process may use
// PRETEND_CORES cores.
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
