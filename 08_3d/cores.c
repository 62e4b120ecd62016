// cores.c counts the cores per rank, and the ranks that compute at the same time. Ranks may share
// cores or a GPU.
#define _GNU_SOURCE // cpu_set_t
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "08_3d/cores.h"
#include "common/device/device.h"

// The cores and the GPU of one rank. Two ranks share cores if their hosts and their sets of cores
// are equal.
typedef struct {
    char host[64], gpu[32];
    cpu_set_t cores;
} Place;

static size_t cores_of(const Place *p) { return (size_t)CPU_COUNT(&p->cores); }

// Returns the places of all ranks on rank 0, which frees the list. The other ranks get NULL.
static Place *gather_places(void) {
    Place place;
    size_t *sizes = NULL;
    memset(&place, 0, sizeof place);
    gethostname(place.host, sizeof place.host - 1);
    device_id(place.gpu);
    if (sched_getaffinity(0, sizeof place.cores, &place.cores) != 0) CPU_SET(0, &place.cores);
    Place *all = side_gather(&place, sizeof place, &sizes);
    free(sizes);
    return all;
}

// Returns whether two ranks share their GPU (if `gpu`) or their cores (otherwise).
static bool share(const Place *a, const Place *b, bool gpu) {
    if (strcmp(a->host, b->host) != 0) return false;
    return gpu ? strcmp(a->gpu, b->gpu) == 0 : CPU_EQUAL(&a->cores, &b->cores);
}

size_t cores_per_rank(void) {
    Place *all = gather_places();
    size_t least = SIZE_MAX;
    for (size_t i = 0; all && i < this_world_size; i++) {
        size_t sharing = 0;
        for (size_t k = 0; k < this_world_size; k++) sharing += share(&all[i], &all[k], false);
        size_t cores = cores_of(&all[i]) / sharing;
        if (cores < least) least = cores;
    }
    free(all);
    side_broadcast(&least, sizeof least);
    return least > 0 ? least : 1;
}

double ranks_at_once(void) {
    Place *all = gather_places();
    const bool gpu = device_is_gpu();
    double at_once = 0;
    for (size_t i = 0; all && i < this_world_size; i++) {
        size_t first = 0;
        while (!share(&all[first], &all[i], gpu)) first++;
        if (first < i) continue; // a shared GPU or set of cores counts once
        at_once += gpu ? 1 : (double)cores_of(&all[i]) / device_threads;
    }
    if (!ranks_are_processes && at_once > 1) at_once = 1;
    if (all && at_once > (double)this_world_size) at_once = (double)this_world_size;
    free(all);
    return at_once;
}
