// test_ring.c: tests the four ways of 01.03 to make an all-reduce. Some tensors have no element,
// fewer elements than ranks, or a size that the ranks do not divide. The elements are random
// fractions, so the order of additions matters.
//
// ranks: 4
// level: core
// question: Does each way add right at every size, in its own order?
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include "cost.h"
#include "judge/frame/presets.h"
#include <math.h>
#include <stdlib.h>

typedef void AllReduce(Comm *c, Tensor t);
static AllReduce *const all_reduce[WAYS] = { [RING] = ring_all_reduce,
                                             [GATHER] = gather_broadcast_all_reduce,
                                             [TREE] = tree_all_reduce,
                                             [HALVING] = halving_doubling_all_reduce };
enum { SIZES = 8, LARGE = 10007 };

static Tensor numbers(Run *run, Arena *memory, size_t rank, size_t count) {
    Tensor t = tensor_shaped(memory, tensor_shape(1, count, option_storage(run)));
    real *value = host_alloc(count * sizeof *value);
    for (size_t i = 0; i < count; i++)
        value[i] = (real)random_unit(random_key(random_key(run->seed, rank), i));
    tensor_upload(t, value);
    free(value);
    return t;
}

// Adds on one device in the order of the ring. The sum of chunk k begins at rank k, and the next
// ranks add their parts.
static Tensor ring_order(Run *run, Arena *memory, size_t count) {
    const size_t N = run->world->size;
    Tensor sum = tensor_shaped(memory, tensor_shape(1, count, option_storage(run)));
    tensor_fill(sum, 0);
    for (size_t step = 0; step < N; step++)
        for (size_t k = 0; k < N; k++) {
            Arena scratch = arena(MEM_REFERENCE);
            const Range r = shard_range(count, N, k);
            Tensor chunk = tensor_flat_range(sum, r.lo, r.hi);
            Tensor term = numbers(run, &scratch, (k + step) % N, count);
            op_add(chunk, chunk, tensor_flat_range(term, r.lo, r.hi));
            arena_free(&scratch);
        }
    return sum;
}

static void check_way(Run *run, Way way, const size_t *count) {
    Comm *c = run->world;
    Snapshot *got = snapshot_new(run), *library = snapshot_new(run), *order = snapshot_new(run);
    WayCosts want = { 0 }, seen = { 0 };
    for (size_t i = 0; i < SIZES; i++) {
        Arena memory = arena(MEM_GRADIENTS);
        Tensor t = numbers(run, &memory, c->rank, count[i]);
        Tensor sum = numbers(run, &memory, c->rank, count[i]);
        const char *name = page_text(run, "size %zu: %zu", i, count[i]);
        comm_all_reduce(c, sum);
        comm_ledger_reset(c);
        memory_reset_peaks();
        all_reduce[way](c, t);
        seen.messages += c->ledger[COMM_SEND].calls;
        seen.bytes += c->ledger[COMM_SEND].bytes;
        seen.scratch += memory_peak(MEM_COMMUNICATION);
        const size_t e = element_size(t.element);
        const WayCosts costs = way_costs(way, c->size, c->rank, count[i], e);
        want.messages += costs.messages;
        want.bytes += costs.bytes;
        want.scratch += costs.scratch;
        snapshot_put(got, name, 1, count[i], t, 0, 0);
        if (run->is_root) {
            ledger_pause();
            snapshot_put(library, name, 1, count[i], sum, 0, 0);
            snapshot_put(order, name, 1, count[i], ring_order(run, &memory, count[i]), 0, 0);
            ledger_resume();
        }
        arena_free(&memory);
    }
    // gather + broadcast adds in rank order, as the library's ordered sum does. In 16 bits the
    // library rounds the sum once, and the four ways round each addition.
    const bool same = way == GATHER && option_storage(run) == REALS;
    check_close(run, page_text(run, "%s = library", way_name[way]), got, library,
                same ? exact_limit(run) : rounding_limit(run));
    if (way == RING) check_equal(run, "ring = one device in its order", got, order);
    snapshot_free(got);
    snapshot_free(library);
    snapshot_free(order);
    static const char *const id[WAYS] = { "ring", "gather", "tree", "halving" };
    cost(run, page_text(run, "messages.%s", id[way]), "calls", (double)want.messages,
         (double)seen.messages);
    cost(run, page_text(run, "sent.%s", id[way]), "bytes", (double)want.bytes, (double)seen.bytes);
    cost(run, page_text(run, "scratch.%s", id[way]), "bytes", (double)want.scratch,
         (double)seen.scratch);
}

// Returns the root mean square error of the sum of LARGE elements, relative to the root mean square
// of the exact sum.
static double error_of(Run *run, AllReduce *reduce, const double *exact) {
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = numbers(run, &memory, run->world->rank, LARGE);
    real *got = host_alloc(LARGE * sizeof *got);
    double squares = 0, of_exact = 0;
    reduce(run->world, t);
    tensor_download(got, t);
    for (size_t i = 0; i < LARGE; i++) {
        squares += pow((double)got[i] - exact[i], 2);
        of_exact += pow(exact[i], 2);
    }
    free(got);
    arena_free(&memory);
    return sqrt(squares / of_exact);
}

// The ring rounds a 16-bit chunk on every rank that adds to the chunk. The library adds in reals
// and rounds the sum once.
static void check_rounding(Run *run) {
    double *exact = host_alloc(LARGE * sizeof *exact); // zeros
    real *term = host_alloc(LARGE * sizeof *term);
    for (size_t rank = 0; rank < run->world->size; rank++) {
        Arena memory = arena(MEM_REFERENCE);
        tensor_download(term, numbers(run, &memory, rank, LARGE)); // as stored
        arena_free(&memory);
        for (size_t i = 0; i < LARGE; i++) exact[i] += (double)term[i];
    }
    const double ring = error_of(run, ring_all_reduce, exact);
    const double once = error_of(run, comm_all_reduce, exact);
    say_detail(run, "16 bits, relative error: ring %.1e, library %.1e", ring, once);
    check_true(run, "16 bits", "the ring's error is larger than the library's", ring > once);
    free(term);
    free(exact);
}

// For powers of two and every link, halving-doubling must take at most the time of the ring and at
// most that of the tree. A time is rounded to picoseconds once per message.
static void check_halving(Run *run) {
    bool fastest = true;
    for (const ClockLink *l = clock_links; l->name; l++)
        for (size_t N = 2; N <= 256; N *= 2)
            for (size_t count = 1; count <= 1 << 20; count *= 4) {
                const double ring = way_time_on(l, RING, N, count, sizeof(real));
                const double tree = way_time_on(l, TREE, N, count, sizeof(real));
                const double halving = way_time_on(l, HALVING, N, count, sizeof(real));
                fastest = fastest && halving <= fmin(ring, tree) + (double)N;
            }
    check_true(run, "powers of two", "halving-doubling is never slower than ring or tree", fastest);
}

// At the size S that 03_ring.md gives, 2 (N-1) messages of S/N bytes take as long as 2 h messages
// of S bytes. h is the height of the tree. The tensor is a multiple of N elements, so its size is
// the next multiple.
static void check_overtakes(Run *run) {
    const ClockLink l = clock_config()->between;
    bool right = l.beta > 0;
    for (size_t N = 3; N <= 64 && right; N++) {
        const double m = (double)N, h = (double)way_height(N), step = m * sizeof(real);
        const double S = fmax(step, l.alpha * l.beta * (m - 1 - h) / (h - (m - 1) / m));
        const double first = (double)way_ring_overtakes(N, sizeof(real));
        right = first > S - 0.1 && first < S + step + 0.1; // messages take whole picoseconds
    }
    check_true(run, "3 to 64 ranks", "the ring is no slower than the tree from S on", right);
}

static void ring(Run *run) {
    const size_t N = run->world->size;
    const size_t count[SIZES] = { 0, 1, N - 1, N, N + 1, 100 * N, 1003, LARGE };
    for (Way way = RING; way < WAYS; way++) check_way(run, way, count);
    if (option_storage(run) != REALS && N > 2) check_rounding(run);
    check_halving(run);
    check_overtakes(run);
}

static const Option options[] = { ONLY_STORAGE_OPTION, { 0 } };
EXPERIMENT(ring, options);
