// 03_times.c: see 03_times.h.
#include "01_data_parallel/experiments/03_times.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SMALLEST = 256, POINTS = 13 };          // elements: 1 kB to 4 MB in fp32, doubling

// From a common start until the last rank is done, in picoseconds.
static double time_of(Run *run, AllReduce *all_reduce, size_t count) {
    Comm *c = run->world;
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = tensor_new(&memory, 1, count);
    double *took = host_alloc(c->size * sizeof *took), last = 0, start = 0;
    tensor_fill(t, 0);
    comm_all_reduce_doubles(c, &start, 1);     // a collective ends for all at the same moment
    Picoseconds begin = clock_now();
    all_reduce(c, t);
    took[c->rank] = (double)(clock_now() - begin);
    ledger_pause();
    comm_all_reduce_doubles(c, took, c->size);
    ledger_resume();
    for (size_t r = 0; r < c->size; r++) last = fmax(last, took[r]);
    free(took);
    arena_free(&memory);
    return last;
}

static bool slower(Run *run, AllReduce *const all_reduce[WAYS], Way way, size_t count) {
    return time_of(run, all_reduce[RING], count) > time_of(run, all_reduce[way], count);
}

// From how many times `unit` elements on is the ring no slower than the other way? WaySeen by bisection.
static void crossover(Run *run, AllReduce *const all_reduce[WAYS], Way way, size_t unit) {
    size_t N = run->world->size, lo = 0, hi = 1;           // slower at lo units, not at hi
    for (; hi * unit <= SMALLEST << (POINTS + 1) && slower(run, all_reduce, way, hi * unit); hi *= 2) lo = hi;
    while (hi - lo > 1) {
        size_t middle = (lo + hi) / 2;
        *(slower(run, all_reduce, way, middle * unit) ? &lo : &hi) = middle;
    }
    char name[80];
    snprintf(name, sizeof name, "the ring is no slower than the %s from", way_name[way]);
    cost(run, name, "bytes", (double)(way_ring_overtakes(way, N, unit) * unit * sizeof(real)),
         (double)(hi * unit * sizeof(real)));
}

void way_times(Run *run, AllReduce *const all_reduce[WAYS], bool curves) {
    size_t N = run->world->size;
    bool model = clock_config()->simulated, power = N == way_power_below(N), never_slower = true;
    double bytes[POINTS], us[WAYS][POINTS], sum[WAYS] = {0}, want[WAYS] = {0};
    clock_set_one_port(true);
    clock_set_own_nodes(true);
    for (size_t i = 0; i < POINTS; i++) {
        size_t count = (size_t)SMALLEST << i;
        bytes[i] = (double)(count * sizeof(real));
        for (Way way = RING; way < WAYS; way++) {
            double took = time_of(run, all_reduce[way], count);
            us[way][i] = took * 1e-6;
            sum[way] += took;
            want[way] += way_time(way, N, count);
        }
        never_slower = never_slower && us[HALVING][i] <= us[RING][i];
    }
    PlotLine lines[WAYS];
    for (Way way = RING; way < WAYS; way++) lines[way] = (PlotLine){ way_name[way], us[way] };
    char title[80], name[80];
    snprintf(title, sizeof title, "All-reduce on %zu ranks, %s", N, model ? clock_config()->between.name : "real time");
    if (curves) plot_show(run, &(Plot){ title, "bytes", "microseconds", bytes, POINTS, lines, WAYS, true, true }, 0);
    for (Way way = RING; way < WAYS && model; way++) {
        snprintf(name, sizeof name, "%s: time, %d sizes", way_name[way], POINTS);
        cost(run, name, "ps", want[way], sum[way]);
    }
    if (model && clock_config()->between.beta > 0) {
        crossover(run, all_reduce, TREE, N);
        if (power) check_true(run, "halving-doubling", "never slower than the ring", never_slower);
        else crossover(run, all_reduce, HALVING, N * way_power_below(N));
    }
    clock_set_own_nodes(false);
    clock_set_one_port(false);
}
