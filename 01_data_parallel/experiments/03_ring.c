// 03_ring.c: compares four ways of an all-reduce with the library's, for eight sizes, with whole
// numbers (every bit) and real ones. Compares messages, bytes, scratch memory and time with
// formulas (ring_costs.c). Finds the size from which the ring is the fastest. Then the same for the
// hierarchical way over nodes (ring_nodes.c). ring_page.c has the picture and the first table.
#include "01_data_parallel/data_parallel.h"
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNEVEN = 1003, LARGE = 10007, SIZES = 8, EVEN = 5 }; // EVEN: the index of 100 N in Sizes
typedef struct {
    size_t count[SIZES];
} Sizes;
static Sizes sizes_of(size_t N) {
    return (Sizes){ { 0, 1, N - 1, N, N + 1, 100 * N, UNEVEN, LARGE } };
}
static const char *const size_name[SIZES] = { "empty", "one",   "N - 1",  "N",
                                              "N + 1", "100 N", "uneven", "large" };

typedef void AllReduce(Comm *c, Tensor t); // t <- the sum over the ranks of c
static AllReduce *const all_reduce[WAYS] = { [RING] = ring_all_reduce,
                                             [GATHER] = gather_broadcast_all_reduce,
                                             [TREE] = tree_all_reduce,
                                             [HALVING] = halving_doubling_all_reduce };
static const char *const way_id[WAYS] = { "ring", "gather", "tree", "halving" };

// ---------------------------------------------------------------- the same sum, four times

// The unsplit reference, on rank 0, uncounted: adds `count` elements in the ring's order. Chunk k
// begins at rank k, and the next ranks add theirs.
static void ring_unsplit(Run *run, Snapshot *s, const char *name, size_t count) {
    size_t N = run->world->size;
    if (!run->is_root) return;
    ledger_pause();
    Arena memory = arena(MEM_REFERENCE);
    Tensor sum = tensor_new(&memory, 1, count), term = tensor_new(&memory, 1, count);
    tensor_fill(sum, 0);
    for (size_t step = 0; step < N; step++)
        for (size_t k = 0; k < N; k++) {
            Range r = shard_range(count, N, k);
            Tensor chunk = tensor_flat_range(sum, r.lo, r.hi);
            ring_fill(term, run->seed, (k + step) % N, false);
            op_add(chunk, chunk, tensor_flat_range(term, r.lo, r.hi));
        }
    snapshot_put(s, name, 1, count, sum, 0, 0);
    arena_free(&memory);
    ledger_resume();
}

// Measured on a rank: messages and bytes sent for all sizes, scratch at its peak, and bytes sent
// for size EVEN.
typedef struct {
    size_t messages, bytes, scratch, even;
} WaySeen;

// Puts the sums of all sizes into s, and adds their costs to `seen`. library: uses comm_all_reduce.
static void all_sizes(Run *run, Snapshot *s, Way way, bool whole, bool library, WaySeen *seen) {
    Comm *c = run->world;
    for (size_t i = 0; i < SIZES; i++) {
        Arena memory = arena(MEM_GRADIENTS);
        Tensor t = tensor_new(&memory, 1, sizes_of(c->size).count[i]);
        ring_fill(t, run->seed, c->rank, whole);
        comm_ledger_reset(c);
        memory_reset_peaks();
        if (library) comm_all_reduce(c, t);
        else all_reduce[way](c, t);
        size_t scratch = memory_peak(MEM_COMMUNICATION);
        if (seen)
            *seen = (WaySeen){ seen->messages + c->ledger[COMM_SEND].calls,
                               seen->bytes + c->ledger[COMM_SEND].bytes,
                               scratch > seen->scratch ? scratch : seen->scratch,
                               i == EVEN ? c->ledger[COMM_SEND].bytes : seen->even };
        if (!library || run->is_root) snapshot_put(s, size_name[i], 1, tensor_count(t), t, 0, 0);
        arena_free(&memory);
    }
}

static void compare(Run *run, WaySeen seen[WAYS]) {
    // GATHER adds in rank order, as the library's ordered sum does. The other ways have other
    // orders.
    double same_order = run->reduce == REDUCE_ORDERED ? 0 : LIMIT_ROUNDING;
    for (size_t whole = 2; whole-- > 0;) {
        Snapshot *library = snapshot_new(run), *order = snapshot_new(run);
        all_sizes(run, library, RING, whole, true, NULL);
        for (size_t i = 0; i < SIZES && !whole; i++)
            ring_unsplit(run, order, size_name[i], sizes_of(run->world->size).count[i]);
        for (Way way = RING; way < WAYS; way++) {
            char what[80];
            Snapshot *got = snapshot_new(run);
            all_sizes(run, got, way, whole, false, whole ? &seen[way] : NULL);
            snprintf(what, sizeof what, "%s = library, %s", way_name[way],
                     whole ? "whole numbers" : "real numbers");
            if (whole) check_equal(run, what, got, library);
            else check_close(run, what, got, library, way == GATHER ? same_order : LIMIT_ROUNDING);
            if (!whole && way == RING) check_equal(run, "ring = unsplit in its order", got, order);
            snapshot_free(got);
        }
        snapshot_free(library);
        snapshot_free(order);
    }
}

// -------------------------------------------------------------- messages, bytes and scratch memory

static void ring_cost(Run *run, Way way, const char *quantity, const char *words, const char *unit,
                      double predicted, double measured) {
    char id[48], name[80];
    snprintf(id, sizeof id, "%s.%s", quantity, way_id[way]);
    snprintf(name, sizeof name, "%s: %s", way_name[way], words);
    check_cost(run, id, name, unit, formula(predicted), NOT_PREDICTED, measured);
}

static void costs(Run *run, const WaySeen seen[WAYS]) {
    const size_t N = run->world->size, r = run->world->rank;
    const Sizes sizes = sizes_of(N);
    for (Way way = RING; way < WAYS; way++) {
        WayCosts sum = { 0 };
        for (size_t i = 0; i < SIZES; i++) {
            WayCosts one = way_costs(way, N, r, sizes.count[i]);
            sum = (WayCosts){ sum.messages + one.messages, sum.bytes + one.bytes,
                              one.scratch > sum.scratch ? one.scratch : sum.scratch };
        }
        ring_cost(run, way, "calls", "messages sent, 8 sizes", "calls", (double)sum.messages,
                  (double)seen[way].messages);
        ring_cost(run, way, "sent", "sent, 8 sizes", "bytes", (double)sum.bytes,
                  (double)seen[way].bytes);
        ring_cost(run, way, "scratch", "scratch, the largest size", "bytes", (double)sum.scratch,
                  (double)seen[way].scratch);
    }
    double S = (double)(sizes.count[EVEN] * sizeof(real)); // a size that N divides
    double root = (double)(N - 1) * S;
    check_cost(run, "even.ring", "ring: sent of S bytes: 2 (N-1)/N S", "bytes",
               formula(2 * root / (double)N), NOT_PREDICTED, (double)seen[RING].even);
    check_cost(run, "even.gather", "gather + broadcast: rank 0 sends (N-1) S", "bytes",
               formula(r > 0 ? S : root), NOT_PREDICTED, (double)seen[GATHER].even);
}

// ---------------------------------------------------------------- time

enum { SMALLEST = 256, POINTS = 13 }; // elements: 1 kB to 4 MB in fp32, doubling

// Picoseconds from a common start until the last rank is done.
static double time_of(Run *run, Way way, size_t count) {
    Comm *c = run->world;
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = tensor_new(&memory, 1, count);
    double *took = host_alloc(c->size * sizeof *took), last = 0, start = 0;
    tensor_fill(t, 0);
    comm_all_reduce_doubles(c, &start, 1); // a collective ends at the same time on all ranks
    Picoseconds begin = clock_now();
    all_reduce[way](c, t);
    took[c->rank] = (double)(clock_now() - begin);
    ledger_pause();
    comm_all_reduce_doubles(c, took, c->size);
    ledger_resume();
    for (size_t r = 0; r < c->size; r++) last = fmax(last, took[r]);
    free(took);
    arena_free(&memory);
    return last;
}

static bool slower(Run *run, Way way, size_t count) {
    return time_of(run, RING, count) > time_of(run, way, count);
}

// Finds by bisection the multiple of `unit` elements from which the ring is no slower than the
// other way.
static void crossover(Run *run, Way way, size_t unit) {
    size_t N = run->world->size, lo = 0, hi = 1; // slower at lo units, not at hi
    for (; hi * unit <= SMALLEST << (POINTS + 1) && slower(run, way, hi * unit); hi *= 2) lo = hi;
    while (hi - lo > 1) {
        size_t middle = (lo + hi) / 2;
        if (slower(run, way, middle * unit)) lo = middle;
        else hi = middle;
    }
    char id[48], name[80];
    snprintf(id, sizeof id, "overtakes.%s", way_id[way]);
    snprintf(name, sizeof name, "the ring is no slower than the %s from", way_name[way]);
    double elements = (double)(way_ring_overtakes(way, N, unit) * unit);
    check_cost(run, id, name, "bytes", formula(elements * sizeof(real)), NOT_PREDICTED,
               (double)(hi * unit * sizeof(real)));
}

// Measures the time of 13 sizes with one port per rank and every message over the link between
// nodes. curves: shows a chart of time over size.
static void times(Run *run, bool curves) {
    size_t N = run->world->size;
    bool model = clock_config()->simulated, power = N == way_power_below(N), never_slower = true;
    double bytes[POINTS], us[WAYS][POINTS], sum[WAYS] = { 0 }, want[WAYS] = { 0 };
    clock_set_one_port(true);
    clock_set_own_nodes(true);
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
    for (Way way = RING; way < WAYS; way++) lines[way] = (PlotLine){ way_name[way], us[way] };
    char title[80];
    snprintf(title, sizeof title, "All-reduce on %zu ranks, %s", N,
             model ? clock_config()->between.name : "real time");
    Plot plot = { title, "bytes", "microseconds", bytes, POINTS, lines, WAYS, true, true };
    if (curves) plot_show(run, &plot, 0);
    for (Way way = RING; way < WAYS && model; way++)
        ring_cost(run, way, "time", "time, 13 sizes", "ps", want[way], sum[way]);
    if (model && clock_config()->between.beta > 0) {
        crossover(run, TREE, N);
        if (power) check_true(run, "halving-doubling", "never slower than the ring", never_slower);
        else crossover(run, HALVING, N * way_power_below(N));
    }
    clock_set_own_nodes(false);
    clock_set_one_port(false);
}

// ---------------------------------------------------------------- the page

static void answer(Run *run, bool nodes) {
    const ClockConfig *k = clock_config();
    const size_t N = run->world->size;
    char over[160] = "";
    if (nodes && k->simulated)
        snprintf(over, sizeof over, " Over nodes the flat ring takes %s, the hierarchical way %s.",
                 cost_text(run, "nodes.flat.time"), cost_text(run, "nodes.time"));
    if (N == 1) say_answer(run, "One rank has the sum already, so every way sends nothing.");
    else if (!k->simulated || k->between.beta == 0)
        say_answer(run, "The ring passes chunks round and adds them on their way: the fewest "
                        "bytes. The tree sends whole tensors: the fewest messages in a row.");
    else
        say_answer(run,
                   "The ring adds chunks on their way round, the tree sends whole tensors. With "
                   "%zu ranks, all on link %s, the ring is no slower than the tree from %s on.%s",
                   N, k->between.name, cost_text(run, "overtakes.tree"), over);
    say_cost(run,
             "ring: %zu messages in a row, each 1/N of the tensor. Tree: %zu whole tensors "
             "in a row.",
             2 * (N - 1), 2 * way_height(N));
    say_use_when(run, "ring: large tensors, such as gradients. Tree: small tensors on many ranks. "
                      "Hierarchical: nodes with faster links inside.");
}

static void ring(Run *run) {
    WaySeen seen[WAYS] = { { 0 } };
    compare(run, seen);
    costs(run, seen);
    times(run, option_text(run, "svg") || strcmp(option_text(run, "picture"), "times") == 0);
    ring_nodes_check(run, sizes_of(run->world->size).count, size_name, SIZES);
    ring_steps(run);
    ring_fastest(run);
    answer(run, ring_nodes_table(run));
}

static const Option options[] = {
    { "picture", "none|times", "none",
      "times: a chart of the four ways' times by size, as --svg writes it" },
    { "link", "NAME[,NAME]", "fast,slow", NULL },
    { "node", "N", "2", "N neighbouring ranks share a node" },
    { 0 }
};
EXPERIMENT(ring, options);
