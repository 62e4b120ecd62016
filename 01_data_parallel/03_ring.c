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
#include "01_data_parallel/collectives.h"
#include "common/ops.h"
#include "common/plot.h"
#include "common/random.h"

// ---------------------------------------------------------------- data and sizes

enum { UNEVEN = 1003, LARGE = 10007 };
enum { SIZES = 8, EVEN = 5 };
static size_t size_of(size_t i, size_t N) {
    const size_t sizes[SIZES] = { 0, 1, N - 1, N, N + 1, 100 * N, UNEVEN, LARGE };
    return sizes[i];
}
static const char *const size_name[SIZES] = { "empty", "one", "N - 1", "N", "N + 1", "100 N", "uneven", "large" };

enum { RING, GATHER, TREE, HALVING, WAYS };
static const struct { const char *name; void (*all_reduce)(Comm *c, Tensor t); } ways[WAYS] = {
    { "ring", ring_all_reduce }, { "gather + broadcast", gather_broadcast_all_reduce },
    { "tree", tree_all_reduce }, { "halving-doubling", halving_doubling_all_reduce } };

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

typedef struct { size_t messages, bytes, scratch, even; } Bill;        // sent; at its peak; sent of size EVEN

// Sums of all sizes into s; what they cost is added to the bill. library: by comm_all_reduce, unbilled.
static void all_sizes(Run *run, Snapshot *s, size_t way, bool whole, bool library, Bill *bill) {
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
        if (bill)
            *bill = (Bill){ bill->messages + c->ledger[COMM_SEND].calls, bill->bytes + c->ledger[COMM_SEND].bytes,
                            scratch > bill->scratch ? scratch : bill->scratch,
                            i == EVEN ? c->ledger[COMM_SEND].bytes : bill->even };
        if (!library || run->verbose) snapshot_put(s, size_name[i], 1, tensor_count(t), t, 0, 0);
        arena_free(&memory);
    }
}

// Unsplit, on rank 0: the ring's order of adding. Chunk k begins at rank k, and the next ranks add theirs.
static void ring_order(Run *run, Snapshot *s) {
    size_t N = run->world->size;
    ledger_pause();
    for (size_t i = 0; i < SIZES && run->verbose; i++) {
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

static void compare(Run *run, Bill bill[WAYS]) {
    // Rank 0 adds in rank order, as the library's ordered sum does; the other ways have orders of their own.
    double same_order = run->reduce == REDUCE_ORDERED ? 0 : LIMIT_ROUNDING;
    for (size_t whole = 2; whole-- > 0;) {
        Snapshot *library = snapshot_new(run), *order = snapshot_new(run);
        all_sizes(run, library, 0, whole, true, NULL);
        if (!whole) ring_order(run, order);
        for (size_t way = 0; way < WAYS; way++) {
            char what[80];
            Snapshot *got = snapshot_new(run);
            all_sizes(run, got, way, whole, false, whole ? &bill[way] : NULL);
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

// ---------------------------------------------------------------- the predictions: bytes

static size_t height(size_t N) {               // log2 N, rounded up
    size_t h = 0;
    while (((size_t)1 << h) < N) h++;
    return h;
}
static size_t power_below(size_t N) { return (size_t)1 << (height(N + 1) - 1); }      // the largest one, at most N

// Elements of chunks [lo, hi) when `count` are cut in n.
static size_t elements(size_t count, size_t n, size_t lo, size_t hi) {
    return lo == hi ? 0 : shard_range(count, n, hi - 1).hi - shard_range(count, n, lo).lo;
}
static size_t chunk_size(size_t count, size_t n, size_t i) { return elements(count, n, i % n, i % n + 1); }

// What rank r sends of a tensor of `count` elements.
static Bill predict(size_t way, size_t N, size_t r, size_t count) {
    size_t n = power_below(N), rest = N - n, children = 0, sent = 0;
    switch (way) {
    case RING:                                 // every chunk but one, twice; where N divides: 2 (N-1)/N of all
        sent = 2 * count - chunk_size(count, N, r + 1) - chunk_size(count, N, r + 2);
        return (Bill){ 2 * (N - 1), sent, N > 1 ? chunk_size(count, N, 0) : 0, 0 };
    case GATHER:                               // all of it through rank 0's port
        return r > 0 ? (Bill){ 1, count, 0, 0 } : (Bill){ N - 1, (N - 1) * count, N > 1 ? count : 0, 0 };
    case TREE:                                 // to the parent, and to every child
        for (size_t d = 1; r % (2 * d) == 0 && d < N; d *= 2) children += r + d < N;
        return (Bill){ children + (r > 0), (children + (r > 0)) * count, children ? count : 0, 0 };
    }
    if (r >= n) return (Bill){ 1, count, 0, 0 };
    // Halving: all but my chunk. Doubling: ranges of 1, 2, 4, ... chunks with mine in them.
    sent = count - chunk_size(count, n, r);
    for (size_t d = 1; d < n; d *= 2) sent += elements(count, n, r / d * d, r / d * d + d);
    return (Bill){ 2 * height(n) + (r < rest), sent + (r < rest ? count : 0),
                   r < rest ? count : elements(count, n, 0, n / 2), 0 };
}

static void costs(Run *run, const Bill is[WAYS]) {
    size_t N = run->world->size, r = run->world->rank;
    char name[80];
    for (size_t way = 0; way < WAYS; way++) {
        Bill sum = {0};
        for (size_t i = 0; i < SIZES; i++) {
            Bill one = predict(way, N, r, size_of(i, N));
            sum = (Bill){ sum.messages + one.messages, sum.bytes + one.bytes * sizeof(real),
                          one.scratch * sizeof(real) > sum.scratch ? one.scratch * sizeof(real) : sum.scratch, 0 };
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
static double time_of(Run *run, size_t way, size_t count) {
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

static double message(size_t elements) {
    ClockLink l = clock_config()->link;
    return l.beta == 0 ? 0 : round(l.alpha * 1e12 + (double)(elements * sizeof(real)) * 1e12 / l.beta);
}

// For N <= count. In the ring and in halving the first chunks are the largest, so they decide how long it takes.
static double predict_time(size_t way, size_t N, size_t count) {
    size_t n = power_below(N);
    double time = n < N ? 2 * message(count) : 0;              // to a rank below n, and back
    switch (way) {
    case RING: return (double)(2 * (N - 1)) * message(ceil_div(count, N));
    case GATHER: return (double)(2 * (N - 1)) * message(count);
    case TREE: return (double)(2 * height(N)) * message(count);
    }
    for (size_t d = 1; d < n; d *= 2) time += 2 * message(elements(count, n, 0, d));
    return time;
}

// A way takes steps alpha + passes S / beta, where N divides: these are two lines over S, and they may cross.
typedef struct { double steps, passes; } Line;
static Line line_of(size_t way, size_t N) {
    double n = (double)power_below(N), m = (double)N, h = (double)height(N), folded = n < m;
    if (way == RING) return (Line){ 2 * (m - 1), 2 * (m - 1) / m };
    if (way == TREE) return (Line){ 2 * h, 2 * h };
    return (Line){ 2 * log2(n) + 2 * folded, 2 * (n - 1) / n + 2 * folded };
}

static bool slower(Run *run, size_t way, size_t count) { return time_of(run, RING, count) > time_of(run, way, count); }

// From how many times `unit` elements on is the ring no slower than the other way? Measured by bisection; predicted
// from the lines, to the next k, as a message lasts whole picoseconds.
static void crossover(Run *run, size_t way, size_t unit) {
    size_t N = run->world->size, lo = 0, hi = 1, k = 1;        // slower at lo units, not at hi
    for (; hi * unit <= SMALLEST << (POINTS + 1) && slower(run, way, hi * unit); hi *= 2) lo = hi;
    while (hi - lo > 1) {
        size_t middle = (lo + hi) / 2;
        *(slower(run, way, middle * unit) ? &lo : &hi) = middle;
    }
    Line a = line_of(RING, N), b = line_of(way, N);
    ClockLink l = clock_config()->link;
    double S = l.alpha * l.beta * (a.steps - b.steps) / (b.passes - a.passes);
    if (S > (double)(unit * sizeof(real))) k = (size_t)(S / (double)(unit * sizeof(real)));
    while (predict_time(RING, N, k * unit) > predict_time(way, N, k * unit)) k++;
    char name[80];
    snprintf(name, sizeof name, "the ring is no slower than the %s from", ways[way].name);
    cost(run, name, "bytes", (double)(k * unit * sizeof(real)), (double)(hi * unit * sizeof(real)));
}

static void times(Run *run) {
    size_t N = run->world->size;
    bool model = clock_config()->model, power = N == power_below(N), never_slower = true;
    double bytes[POINTS], us[WAYS][POINTS], sum[WAYS] = {0}, want[WAYS] = {0};
    clock_set_one_port(true);
    for (size_t i = 0; i < POINTS; i++) {
        size_t count = (size_t)SMALLEST << i;
        bytes[i] = (double)(count * sizeof(real));
        for (size_t way = 0; way < WAYS; way++) {
            double took = time_of(run, way, count);
            us[way][i] = took * 1e-6;
            sum[way] += took;
            want[way] += predict_time(way, N, count);
        }
        never_slower = never_slower && us[HALVING][i] <= us[RING][i];
    }
    PlotLine lines[WAYS];
    for (size_t way = 0; way < WAYS; way++) lines[way] = (PlotLine){ ways[way].name, us[way] };
    char title[80], name[80];
    snprintf(title, sizeof title, "All-reduce on %zu ranks, %s", N, model ? clock_config()->link.name : "real time");
    plot_show(run, &(Plot){ title, "bytes", "microseconds", bytes, POINTS, lines, WAYS, true, true }, 0);
    for (size_t way = 0; way < WAYS && model; way++) {
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
    Bill bill[WAYS] = {0};
    compare(run, bill);
    costs(run, bill);
    times(run);
}

static const Option options[] = {
    { "link", "NAME", "ethernet", "of the model clock: free, nvlink, ib, ethernet" }, {0} };
int main(int argc, char **argv) { return lesson_main(argc, argv, ring, options); }
