// ranks: 4
// level: core
// question: What does an all-reduce do inside, and which way of doing it is the fastest?
// vary: UNEVEN 50..1500, LARGE 5000..20000
//
// Every rank holds a tensor of S bytes, and in the end all hold the sum. Four ways to get there, from sends and
// receives only: a ring, everything through rank 0, a tree, and recursive halving and doubling (collectives.c). Each is
// compared with the library's all-reduce; its bytes, messages and time with closed forms.
// A rank has one port: it sends one message and receives one message at a time, each taking alpha + bytes / beta.
// Left out: links that several messages share, and cutting messages in pieces that follow each other along a tree.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "01_data_parallel/collective_costs.h"
#include "01_data_parallel/collectives.h"
#include "common/tensor/ops.h"
#include "common/lesson/plot.h"
#include "common/tensor/random.h"

// ---------------------------------------------------------------- data and sizes

enum { UNEVEN = 1003, LARGE = 10007 };
enum { SIZES = 8, EVEN = 5 };
static size_t size_of(size_t i, size_t N) {
    const size_t sizes[SIZES] = { 0, 1, N - 1, N, N + 1, 100 * N, UNEVEN, LARGE };
    return sizes[i];
}
static const char *const size_name[SIZES] = { "empty", "one", "N - 1", "N", "N + 1", "100 N", "uneven", "large" };

static const struct { const char *name; void (*all_reduce)(Comm *c, Tensor t); } ways[WAYS] = {
    [RING] = { "ring", ring_all_reduce }, [GATHER] = { "gather + broadcast", gather_broadcast_all_reduce },
    [TREE] = { "tree", tree_all_reduce }, [HALVING] = { "halving-doubling", halving_doubling_all_reduce } };

// The numbers of one rank. Small whole ones have exact sums; others round, so their sum depends on the order.
static void fill(Tensor t, uint64_t seed, size_t rank, bool whole) {
    size_t n = tensor_count(t);
    real *value = host_alloc(n * sizeof *value);
    for (size_t i = 0; i < n; i++)
        value[i] = whole ? (real)((7 * rank + 3 * i) % 17) - 8
                         : (real)random_unit(random_key(random_key(seed, rank), i));
    tensor_upload(t, value);
    free(value);
}

// ---------------------------------------------------------------- the same sum, four times

typedef struct { size_t messages, bytes, scratch, even; } Measured;    // sent; at its peak; sent of size EVEN

// Sums of all sizes into s; what they cost is added to `seen`. library: by comm_all_reduce.
static void all_sizes(Run *run, Snapshot *s, Way way, bool whole, bool library, Measured *seen) {
    Comm *c = run->world;
    for (size_t i = 0; i < SIZES; i++) {
        Arena memory = arena(MEM_GRADIENTS);
        Tensor t = tensor_new(&memory, 1, size_of(i, c->size));
        fill(t, run->seed, c->rank, whole);
        comm_ledger_reset(c);
        memory_reset_peaks();
        if (library) comm_all_reduce(c, t);
        else ways[way].all_reduce(c, t);
        size_t scratch = memory_peak(MEM_COMMUNICATION);
        if (seen)
            *seen = (Measured){ seen->messages + c->ledger[COMM_SEND].calls, seen->bytes + c->ledger[COMM_SEND].bytes,
                                scratch > seen->scratch ? scratch : seen->scratch,
                                i == EVEN ? c->ledger[COMM_SEND].bytes : seen->even };
        if (!library || run->is_root) snapshot_put(s, size_name[i], 1, tensor_count(t), t, 0, 0);
        arena_free(&memory);
    }
}

// Unsplit, on rank 0: the ring's order of adding. Chunk k begins at rank k, and the next ranks add theirs.
static void ring_order(Run *run, Snapshot *s) {
    size_t N = run->world->size;
    ledger_pause();
    for (size_t i = 0; i < SIZES && run->is_root; i++) {
        Arena memory = arena(MEM_REFERENCE);
        Tensor sum = tensor_new(&memory, 1, size_of(i, N)), term = tensor_new(&memory, 1, size_of(i, N));
        tensor_fill(sum, 0);
        for (size_t step = 0; step < N; step++)
            for (size_t k = 0; k < N; k++) {
                Range r = shard_range(tensor_count(sum), N, k);
                Tensor chunk = tensor_flat_range(sum, r.lo, r.hi);
                fill(term, run->seed, (k + step) % N, false);
                op_add(chunk, chunk, tensor_flat_range(term, r.lo, r.hi));
            }
        snapshot_put(s, size_name[i], 1, tensor_count(sum), sum, 0, 0);
        arena_free(&memory);
    }
    ledger_resume();
}

static void compare(Run *run, Measured seen[WAYS]) {
    // Rank 0 adds in rank order, as the library's ordered sum does; the other ways have orders of their own.
    double same_order = run->reduce == REDUCE_ORDERED ? 0 : LIMIT_ROUNDING;
    for (size_t whole = 2; whole-- > 0;) {
        Snapshot *library = snapshot_new(run), *order = snapshot_new(run);
        all_sizes(run, library, RING, whole, true, NULL);
        if (!whole) ring_order(run, order);
        for (Way way = RING; way < WAYS; way++) {
            char what[80];
            Snapshot *got = snapshot_new(run);
            all_sizes(run, got, way, whole, false, whole ? &seen[way] : NULL);
            snprintf(what, sizeof what, "%s = library, %s", ways[way].name, whole ? "whole numbers" : "real numbers");
            if (whole) check_equal(run, what, got, library);
            else check_close(run, what, got, library, way == GATHER ? same_order : LIMIT_ROUNDING);
            if (!whole && way == RING) check_equal(run, "ring = unsplit in its order", got, order);
            snapshot_free(got);
        }
        snapshot_free(library);
        snapshot_free(order);
    }
}

// ---------------------------------------------------------------- bytes

static void costs(Run *run, const Measured is[WAYS]) {
    size_t N = run->world->size, r = run->world->rank;
    char name[80];
    for (Way way = RING; way < WAYS; way++) {
        Bill sum = {0};
        for (size_t i = 0; i < SIZES; i++) {
            Bill one = way_bill(way, N, r, size_of(i, N));
            sum = (Bill){ sum.messages + one.messages, sum.bytes + one.bytes,
                          one.scratch > sum.scratch ? one.scratch : sum.scratch };
        }
        snprintf(name, sizeof name, "%s: messages sent, %d sizes", ways[way].name, SIZES);
        cost(run, name, "calls", (double)sum.messages, (double)is[way].messages);
        snprintf(name, sizeof name, "%s: sent, %d sizes", ways[way].name, SIZES);
        cost(run, name, "bytes", (double)sum.bytes, (double)is[way].bytes);
        snprintf(name, sizeof name, "%s: scratch, the largest size", ways[way].name);
        cost(run, name, "bytes", (double)sum.scratch, (double)is[way].scratch);
    }
    double S = (double)(100 * N * sizeof(real)), root = (double)(N - 1) * S;       // a size that N divides
    cost(run, "ring: sent of S bytes: 2 (N-1)/N S", "bytes", 2 * root / (double)N, (double)is[RING].even);
    cost(run, "gather + broadcast: rank 0 sends (N-1) S", "bytes", r > 0 ? S : root, (double)is[GATHER].even);
}

// ---------------------------------------------------------------- time

enum { SMALLEST = 256, POINTS = 13 };          // elements: 1 kB to 4 MB in fp32, doubling

// From a common start until the last rank is done, in picoseconds.
static double time_of(Run *run, Way way, size_t count) {
    Comm *c = run->world;
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = tensor_new(&memory, 1, count);
    double *took = host_alloc(c->size * sizeof *took), last = 0, start = 0;
    tensor_fill(t, 0);
    comm_all_reduce_doubles(c, &start, 1);     // a collective ends for all at the same moment
    Picoseconds begin = clock_now();
    ways[way].all_reduce(c, t);
    took[c->rank] = (double)(clock_now() - begin);
    ledger_pause();
    comm_all_reduce_doubles(c, took, c->size);
    ledger_resume();
    for (size_t r = 0; r < c->size; r++) last = fmax(last, took[r]);
    free(took);
    arena_free(&memory);
    return last;
}

static bool slower(Run *run, Way way, size_t count) { return time_of(run, RING, count) > time_of(run, way, count); }

// From how many times `unit` elements on is the ring no slower than the other way? Measured by bisection.
static void crossover(Run *run, Way way, size_t unit) {
    size_t N = run->world->size, lo = 0, hi = 1;           // slower at lo units, not at hi
    for (; hi * unit <= SMALLEST << (POINTS + 1) && slower(run, way, hi * unit); hi *= 2) lo = hi;
    while (hi - lo > 1) {
        size_t middle = (lo + hi) / 2;
        *(slower(run, way, middle * unit) ? &lo : &hi) = middle;
    }
    char name[80];
    snprintf(name, sizeof name, "the ring is no slower than the %s from", ways[way].name);
    cost(run, name, "bytes", (double)(ring_overtakes(way, N, unit) * unit * sizeof(real)),
         (double)(hi * unit * sizeof(real)));
}

static void times(Run *run) {
    size_t N = run->world->size;
    bool model = clock_config()->simulated, power = N == power_below(N), never_slower = true;
    double bytes[POINTS], us[WAYS][POINTS], sum[WAYS] = {0}, want[WAYS] = {0};
    clock_set_one_port(true);
    for (size_t i = 0; i < POINTS; i++) {
        size_t count = (size_t)SMALLEST << i;
        bytes[i] = (double)(count * sizeof(real));
        for (Way way = RING; way < WAYS; way++) {
            double took = time_of(run, way, count);
            us[way][i] = took * 1e-6;
            sum[way] += took;
            want[way] += way_time(way, N, count);
        }
        never_slower = never_slower && us[HALVING][i] <= us[RING][i];
    }
    PlotLine lines[WAYS];
    for (Way way = RING; way < WAYS; way++) lines[way] = (PlotLine){ ways[way].name, us[way] };
    char title[80], name[80];
    snprintf(title, sizeof title, "All-reduce on %zu ranks, %s", N, model ? clock_config()->link.name : "real time");
    plot_show(run, &(Plot){ title, "bytes", "microseconds", bytes, POINTS, lines, WAYS, true, true }, 0);
    for (Way way = RING; way < WAYS && model; way++) {
        snprintf(name, sizeof name, "%s: time, %d sizes", ways[way].name, POINTS);
        cost(run, name, "ps", want[way], sum[way]);
    }
    if (model && clock_config()->link.beta > 0) {
        crossover(run, TREE, N);
        if (power) check_true(run, "halving-doubling", "never slower than the ring", never_slower);
        else crossover(run, HALVING, N * power_below(N));
    }
    clock_set_one_port(false);
}

static void ring(Run *run) {
    Measured seen[WAYS] = {{0}};
    compare(run, seen);
    costs(run, seen);
    times(run);
}

static const Option options[] = {
    { "link", "NAME", "ethernet", NULL }, {0} };
LESSON(ring, options);
