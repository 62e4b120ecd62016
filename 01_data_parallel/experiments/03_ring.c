// 03_ring.c: compares four ways of an all-reduce with the library's, for eight sizes, with whole
// numbers (every bit) and real ones. Compares messages, bytes, scratch memory and time with
// formulas (ring_costs.c). Finds the size from which the ring is the fastest. Makes the same
// comparisons for the hierarchical way over nodes (ring_nodes.c). ring_page.c has the picture and
// the first table.
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"
#include "judge/draw/plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNEVEN = 1003, LARGE = 10007, SIZES = 8 };
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
// An all-reduce over the world. flat NULL: the hierarchical all-reduce, over the two groups below.
typedef struct {
    AllReduce *flat;
    Comm *inside, *between;
} Reduction;
static const char *const way_id[WAYS] = { "ring", "gather", "tree", "halving" };

// ---------------------------------------------------------------- the same sum, five times

// Fills t with the elements of one rank. Small whole numbers have exact sums. Other sums are
// rounded, so they depend on the order.
static void fill(Tensor t, uint64_t seed, size_t rank, bool whole) {
    size_t n = tensor_count(t);
    real *value = host_alloc(n * sizeof *value);
    for (size_t i = 0; i < n; i++)
        value[i] = whole ? (real)((7 * rank + 3 * i) % 17) - 8
                         : (real)random_unit(random_key(random_key(seed, rank), i));
    tensor_upload(t, value);
    free(value);
}

// The unsplit reference, on rank 0, uncounted: adds `count` elements in the ring's order. Chunk k
// begins at rank k, and the next ranks add theirs.
static void ring_unsplit(Run *run, Snapshot *s, const char *name, size_t count) {
    size_t N = run->world->size;
    if (!run->is_root) return;
    ledger_pause();
    Arena memory = arena(MEM_REFERENCE);
    const Shape stored = tensor_shape(1, count, option_storage(run));
    Tensor sum = tensor_shaped(&memory, stored), term = tensor_shaped(&memory, stored);
    tensor_fill(sum, 0);
    for (size_t step = 0; step < N; step++)
        for (size_t k = 0; k < N; k++) {
            Range r = shard_range(count, N, k);
            Tensor chunk = tensor_flat_range(sum, r.lo, r.hi);
            fill(term, run->seed, (k + step) % N, false);
            op_add(chunk, chunk, tensor_flat_range(term, r.lo, r.hi));
        }
    snapshot_put(s, name, 1, count, sum, 0, 0);
    arena_free(&memory);
    ledger_resume();
}

// Puts the sums of all sizes into s. Adds the measured costs to `seen`, unless it is NULL: messages
// and bytes sent, and the peak of scratch.
static void all_sizes(Run *run, Snapshot *s, Reduction way, bool whole, WayCosts *seen) {
    Comm *c = run->world;
    const bool library = way.flat == comm_all_reduce;
    for (size_t i = 0; i < SIZES; i++) {
        Arena memory = arena(MEM_GRADIENTS);
        Tensor t = tensor_shaped(&memory,
                                 tensor_shape(1, sizes_of(c->size).count[i], option_storage(run)));
        fill(t, run->seed, c->rank, whole);
        comm_ledger_reset(c);
        memory_reset_peaks();
        if (way.flat) way.flat(c, t);
        else hierarchical_all_reduce(way.inside, way.between, t);
        size_t scratch = memory_peak(MEM_COMMUNICATION);
        if (seen)
            *seen = (WayCosts){ seen->messages + c->ledger[COMM_SEND].calls,
                                seen->bytes + c->ledger[COMM_SEND].bytes,
                                scratch > seen->scratch ? scratch : seen->scratch };
        if (!library || run->is_root) snapshot_put(s, size_name[i], 1, tensor_count(t), t, 0, 0);
        arena_free(&memory);
    }
}

// Compares the sums with the library's. limit: for real numbers.
static void compare(Run *run, const char *name, Reduction way, double limit, WayCosts *seen) {
    for (size_t whole = 2; whole-- > 0;) {
        Snapshot *library = snapshot_new(run), *order = snapshot_new(run), *got = snapshot_new(run);
        char what[80];
        snprintf(what, sizeof what, "%s = library, %s", name,
                 whole ? "whole numbers" : "real numbers");
        all_sizes(run, library, (Reduction){ .flat = comm_all_reduce }, whole, NULL);
        all_sizes(run, got, way, whole, whole ? seen : NULL);
        if (whole) check_equal(run, what, got, library);
        else check_close(run, what, got, library, limit);
        if (!whole && way.flat == ring_all_reduce) {
            for (size_t i = 0; i < SIZES; i++)
                ring_unsplit(run, order, size_name[i], sizes_of(run->world->size).count[i]);
            check_equal(run, "ring = unsplit in its order", got, order);
        }
        snapshot_free(got);
        snapshot_free(library);
        snapshot_free(order);
    }
}

// The root mean square error of a sum of LARGE elements, relative to the exact sum.
static double error_of(Run *run, AllReduce *reduce, const double *exact) {
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = tensor_shaped(&memory, tensor_shape(1, LARGE, option_storage(run)));
    real *got = host_alloc(LARGE * sizeof *got);
    double off = 0, size = 0;
    fill(t, run->seed, run->world->rank, false);
    reduce(run->world, t);
    tensor_download(got, t);
    for (size_t i = 0; i < LARGE; i++) {
        off += ((double)got[i] - exact[i]) * ((double)got[i] - exact[i]);
        size += exact[i] * exact[i];
    }
    free(got);
    arena_free(&memory);
    return sqrt(off / size);
}

// The ring rounds a 16-bit chunk on every rank that adds to it. The library adds in reals and
// rounds the sum once.
static void rounding(Run *run) {
    Arena memory = arena(MEM_REFERENCE);
    Tensor t = tensor_shaped(&memory, tensor_shape(1, LARGE, option_storage(run)));
    double *exact = host_alloc(LARGE * sizeof *exact); // zeros
    real *term = host_alloc(LARGE * sizeof *term);
    for (size_t rank = 0; rank < run->world->size; rank++) {
        fill(t, run->seed, rank, false);
        tensor_download(term, t); // as stored
        for (size_t i = 0; i < LARGE; i++) exact[i] += (double)term[i];
    }
    free(term);
    arena_free(&memory);
    const double ring = error_of(run, ring_all_reduce, exact);
    const double once = error_of(run, comm_all_reduce, exact);
    free(exact);
    if (run->world->size > 2)
        check_true(run, "rounded at every addition",
                   "the ring's error is larger than the library's", ring > once);
    say(run,
        "Sums in %s, error (root mean square, relative): the ring rounds each addition, %.1e.\n"
        "The library adds in %s and rounds the sum once, %.1e.",
        element_name(option_storage(run)), ring, element_name(REALS), once);
}

// The hierarchical way: its sums, and its costs beside those of the flat ring.
static void over_nodes(Run *run) {
    Comm *c = run->world;
    size_t node = clock_config()->node, n = node < c->size ? node : c->size;
    if (c->size % n > 0) {
        say(run, "\n%zu ranks do not fill nodes of %zu: no hierarchical all-reduce.\n", c->size, n);
        return;
    }
    Comm *inside = comm_split(c, c->rank / n, c->rank, "node"),
         *between = comm_split(c, c->rank % n, c->rank, "nodes");
    compare(run, "hierarchical", (Reduction){ NULL, inside, between }, rounding_limit(run), NULL);
    ring_nodes_costs(run, inside, between);
    comm_free(inside);
    comm_free(between);
}

// -------------------------------------------------------------- messages, bytes and scratch memory

static void costs(Run *run, Way way, const WayCosts *seen) {
    const size_t N = run->world->size, r = run->world->rank;
    const Sizes sizes = sizes_of(N);
    const size_t e = element_size(option_storage(run));
    WayCosts sum = { 0 };
    char ids[32], names[48];
    for (size_t i = 0; i < SIZES; i++) {
        WayCosts one = way_costs(way, N, r, sizes.count[i], e);
        sum = (WayCosts){ sum.messages + one.messages, sum.bytes + one.bytes,
                          one.scratch > sum.scratch ? one.scratch : sum.scratch };
    }
    snprintf(ids, sizeof ids, "%%s.%s", way_id[way]);
    snprintf(names, sizeof names, "%s: %%s", way_name[way]);
    check_costs(run, ids, names,
                (CostRow[]){ { "calls", "messages sent, 8 sizes", "calls",
                               BY_FORMULA((double)sum.messages), (double)seen->messages },
                             { "sent", "sent, 8 sizes", "bytes", BY_FORMULA((double)sum.bytes),
                               (double)seen->bytes },
                             { "scratch", "scratch, the largest size", "bytes",
                               BY_FORMULA((double)sum.scratch), (double)seen->scratch },
                             { 0 } });
}

// ---------------------------------------------------------------- time

enum { SMALLEST = 256, POINTS = 13 }; // elements: 1 kB to 4 MB in fp32, doubling

// Picoseconds from a common start until the last rank is done.
static double time_of(Run *run, Way way, size_t count) {
    Comm *c = run->world;
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = tensor_shaped(&memory, tensor_shape(1, count, option_storage(run)));
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

static bool slower(Run *run, size_t count) {
    return time_of(run, RING, count) > time_of(run, TREE, count);
}

// Finds by bisection the multiple of N elements from which the ring is no slower than the tree.
static void crossover(Run *run) {
    const size_t e = element_size(option_storage(run));
    size_t N = run->world->size, lo = 0, hi = 1; // the ring is slower at lo N elements, not at hi N
    for (; hi * N <= SMALLEST << (POINTS + 1) && slower(run, hi * N); hi *= 2) lo = hi;
    while (hi - lo > 1) {
        size_t middle = (lo + hi) / 2;
        if (slower(run, middle * N)) lo = middle;
        else hi = middle;
    }
    check_cost(run, "overtakes.tree", "the ring is no slower than the tree from", "bytes",
               formula((double)(way_ring_overtakes(N, e) * e)), NOT_PREDICTED,
               (double)(hi * N * e));
}

// Measures the time of 13 sizes with one port per rank and every message over the link between
// nodes. curves: shows a chart of time over size.
static void times(Run *run, bool curves) {
    const size_t N = run->world->size;
    const size_t e = element_size(option_storage(run));
    const bool simulated = clock_config()->simulated;
    double bytes[POINTS], us[WAYS][POINTS];
    PlotLine lines[WAYS];
    char title[80];
    clock_set_one_port(true);
    clock_set_link(&clock_config()->between);
    for (Way way = RING; way < WAYS; way++) {
        double sum = 0, want = 0;
        char id[32], name[48];
        for (size_t i = 0; i < POINTS; i++) {
            size_t count = (size_t)SMALLEST << i;
            double took = time_of(run, way, count);
            bytes[i] = (double)(count * e);
            us[way][i] = took * 1e-6;
            sum += took;
            want += way_time_on(&clock_config()->between, way, N, count, e);
        }
        lines[way] = (PlotLine){ way_name[way], us[way] };
        snprintf(id, sizeof id, "time.%s", way_id[way]);
        snprintf(name, sizeof name, "%s: time, 13 sizes", way_name[way]);
        if (simulated) check_cost(run, id, name, "ps", formula(want), NOT_PREDICTED, sum);
    }
    snprintf(title, sizeof title, "All-reduce on %zu ranks, %s", N,
             simulated ? clock_config()->between.name : "real time");
    Plot plot = { title, "bytes", "microseconds", bytes, POINTS, lines, WAYS, true, true };
    if (curves) plot_show(run, &plot, 0);
    if (simulated && clock_config()->between.beta > 0) crossover(run);
    clock_set_link(NULL);
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
                   "The ring adds chunks on their way round: the fewest bytes. The tree sends "
                   "whole tensors: the fewest messages in a row. With %zu ranks, all on link %s, "
                   "the ring is no slower than the tree from %s on.%s",
                   N, k->between.name, cost_text(run, "overtakes.tree"), over);
    say_cost(run,
             "ring: %zu messages in a row, each 1/N of the tensor. Tree: %zu whole tensors "
             "in a row.",
             2 * (N - 1), 2 * way_height(N));
    say_use_when(run, "ring: large tensors, such as gradients. Tree: small tensors on many ranks. "
                      "Hierarchical: nodes with faster links inside.");
}

static void ring(Run *run) {
    for (Way way = RING; way < WAYS; way++) {
        WayCosts seen = { 0 };
        // GATHER adds in rank order, as the library's ordered sum does. The other ways have other
        // orders. With 16 bits the library rounds the sum once, the four ways round each addition.
        // A limit of 16 bits is 32 roundings, so it must grow with more than 32 ranks.
        const bool reals = option_storage(run) == REALS, same = way == GATHER && reals;
        const double more = reals ? 1 : fmax(1, (double)run->world->size / 32);
        compare(run, way_name[way], (Reduction){ .flat = all_reduce[way] },
                same ? exact_limit(run) : more * rounding_limit(run), &seen);
        costs(run, way, &seen);
    }
    times(run, option_text(run, "svg") || strcmp(option_text(run, "picture"), "times") == 0);
    over_nodes(run);
    if (option_storage(run) != REALS) rounding(run);
    ring_steps(run);
    ring_fastest(run);
    answer(run, ring_nodes_table(run));
}

static const Option options[] = {
    { "picture", "none|times", "none",
      "times: a chart of the four ways' times by size, as --svg writes it" },
    { "link", "NAME[,NAME]", "fast,slow", NULL },
    { "node", "N", "2", "N neighbouring ranks share a node" },
    ONLY_STORAGE_OPTION,
    { 0 }
};
EXPERIMENT(ring, options);
