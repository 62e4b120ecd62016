// ranks: 2
// level: core
// question: How fast are sums and messages between processes, beside a plain copy?
//
// A rate is the number of bytes of the tensor per second. In the same run each rank also copies a
// tensor of this size in its own memory, all ranks at the same time. The rates are compared with
// the rate of this copy, which needs no other rank. The ranks are processes; `make bench` runs this
// program.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/device/device.h"
#include "judge/frame/lesson.h"
#include "common/tensor/memory.h"
#include "common/tensor/ops.h"

static const Option options[] = {
    { "bytes", "N", "43000000", "size of the tensor" },
    { "rounds", "N", "9", "number of rounds; the median counts" },
    { "clock", "wall|simulated", "wall", NULL },
    { 0 },
};
enum { MOST = 101 };
typedef struct {
    Run *run;
    Tensor a, b, part;
} Place;

static void copy(Place *p) { tensor_copy(p->b, p->a); }
static void all_reduce(Place *p) { comm_all_reduce(p->run->world, p->a); }
static void started(Place *p) { comm_wait(comm_start_all_reduce(p->run->world, p->a)); }
static void reduce_scatter(Place *p) { comm_reduce_scatter(p->run->world, p->part, p->a); }
static void all_gather(Place *p) { comm_all_gather(p->run->world, p->a, p->part); }
static void broadcast(Place *p) { comm_broadcast(p->run->world, p->a, 0); }
static void ring_shift(Place *p) {
    Comm *w = p->run->world;
    Request *r = comm_start_recv(w, p->b, (w->rank + w->size - 1) % w->size);
    Request *s = comm_start_send(w, p->a, (w->rank + 1) % w->size);
    comm_wait(r);
    comm_wait(s);
}
static const struct {
    const char *name;
    void (*call)(Place *p);
} action[] = {
    { "copy", copy },
    { "all-reduce", all_reduce },
    { "all-reduce, started and waited for", started },
    { "reduce-scatter", reduce_scatter },
    { "all-gather", all_gather },
    { "broadcast", broadcast },
    { "to the next rank", ring_shift },
};
enum { ACTIONS = sizeof action / sizeof *action };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

// Returns the median time of a call between two barriers. The slowest rank sets this time.
static double seconds_of(Place *p, void (*call)(Place *p), size_t rounds) {
    double seconds[MOST + 1];
    for (size_t i = 0; i <= rounds; i++) {
        comm_barrier(p->run->world);
        double start = now();
        call(p);
        device_synchronize();
        comm_barrier(p->run->world);
        seconds[i] = now() - start;
        tensor_fill(p->a, 1);
    }
    qsort(seconds + 1, rounds, sizeof *seconds, ascending); // the first round does not count
    return seconds[1 + rounds / 2];
}

static void bench(Run *run) {
    size_t n = option_size(run, "bytes") / sizeof(real), rounds = option_size(run, "rounds");
    REQUIRE(n > 0 && rounds > 0 && rounds <= MOST,
            "--bytes and --rounds (at most %d) must be more than 0", MOST);
    Arena memory = arena(MEM_WORKSPACE);
    Place p = { run, tensor_new(&memory, 1, n), tensor_new(&memory, 1, n), { 0 } };
    Range local = shard_range(n, run->world->size, run->world->rank);
    p.part = tensor_flat_range(p.a, local.lo, local.hi); // a view, so the calls work in place
    tensor_fill(p.a, 1);
    tensor_fill(p.b, 1);
    memory_set_poison(false);
    comm_connect(run->world, COMM_NEIGHBOURS);
    double copied = 0;
    for (size_t i = 0; i < ACTIONS; i++) {
        double rate = (double)(n * sizeof(real)) / seconds_of(&p, action[i].call, rounds);
        if (i == 0) copied = rate;
        say(run, "%-36s %8.2f ms  %6.2f GB/s  %.2f of a copy", action[i].name,
            1e3 * (double)(n * sizeof(real)) / rate, 1e-9 * rate, rate / copied);
        report_config_number(run, action[i].name, rate / copied);
        char name[64];
        snprintf(name, sizeof name, "%s, bytes/s", action[i].name);
        report_config_number(run, name, rate);
    }
    arena_free(&memory);
    check_true(run, "measured", "all", true);
}

EXPERIMENT(bench, options);
