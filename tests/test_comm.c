// test_comm.c: compares the calls of comm.h with sums and copies computed here. Prints TAP from
// rank 0. An argument without dashes names a mistake or another mode to run instead.
//
// ranks: 4
// level: core
// question: Does every transport move and add exactly what comm.h says?
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/comm/comm.h"
#include "common/tensor/ops.h"
#include "common/tensor/random.h"
#include "common/tensor/storage.h"
#include "judge/frame/launch.h"
#include "judge/frame/process.h"
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Counts the blocks of more than 16 KiB that this rank has allocated with the C library's calloc().
static _Thread_local size_t large_blocks;
#if defined __GLIBC__ && !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
void *__libc_calloc(size_t n, size_t size);
void *calloc(size_t n, size_t size) {
    large_blocks += n > 0 && size > (1 << 14) / n;
    return __libc_calloc(n, size);
}
#endif

typedef struct {
    Comm *world;
    const char *mode;
    ReduceOrder reduce;
    size_t tests, failed;
    uint64_t bits; // a hash of the sums of test_agreement()
} Test;

typedef struct {
    const char *mode;
    ReduceOrder reduce;
    int status;
} Context;

// ---- 1. Values ----

typedef real (*Value)(size_t rank, size_t i);
// Returns an integer, so that a sum is exact in every order.
static real integer(size_t rank, size_t i) { return (real)((rank * 7 + i * 3) % 11) - 5; }
static real another(size_t rank, size_t i) { return (real)((rank * 5 + i * 3) % 13) - 5; }
// Returns a value whose sum over ranks depends on the order of the additions. The value is at most
// 2 to 16,384 in magnitude, depending on rank + i.
static real rough(size_t rank, size_t i) {
    static const double scale[] = { 0x1p-62, 0x1p-59, 0x1p-56, 0x1p-52, 0x1p-49 };
    return (real)((double)(int64_t)random_key(rank, i) * scale[(rank + i) % 5]);
}

// The tensors that this rank's tests use have this element type. as_stored() returns a value as
// such a tensor stores it.
static _Thread_local Element element;
static real as_stored(real x) {
    return element == REALS ? x : stored_value(element, stored_round(element, x));
}
static Tensor fresh(Arena *a, size_t rows, size_t cols) {
    return tensor_shaped(a, tensor_shape(rows, cols, element));
}

// Returns the ranks' sum in rank order. The sum is computed in reals and rounded once.
static real sum_in_order(Value v, size_t ranks, size_t i) {
    real sum = as_stored(v(0, i));
    for (size_t rank = 1; rank < ranks; rank++) sum += as_stored(v(rank, i));
    return as_stored(sum);
}

static real maximum(Value v, size_t ranks, size_t i) {
    real max = v(0, i);
    for (size_t rank = 1; rank < ranks; rank++) max = v(rank, i) > max ? v(rank, i) : max;
    return as_stored(max);
}

// Returns the elements [lo, hi) of a rank's vector, whose element i is v(rank, i).
static Tensor vector(Arena *a, Value v, size_t rank, size_t lo, size_t hi) {
    Tensor t = fresh(a, 1, hi - lo);
    real *host = host_alloc((hi - lo) * sizeof *host);
    for (size_t i = lo; i < hi; i++) host[i - lo] = v(rank, i);
    tensor_upload(t, host);
    free(host);
    return t;
}

static real value_of(Value v, size_t rank, size_t i) { return as_stored(v(rank, i)); }
// Returns whether every element i of t equals want(v, of, lo + i), in every bit.
static bool holds(Tensor t, real (*want)(Value v, size_t of, size_t i), Value v, size_t of,
                  size_t lo) {
    size_t n = tensor_count(t);
    real *host = host_alloc(n * sizeof *host);
    tensor_download(host, t);
    bool same = true;
    for (size_t i = 0; i < n && same; i++) {
        real expected = want(v, of, lo + i);
        same = memcmp(&expected, &host[i], sizeof expected) == 0;
    }
    free(host);
    return same;
}

static bool poisoned(Tensor t) { return tensor_count(t) == 0 || isnan(tensor_sum(t)); }

static void ok(Test *t, bool local, const char *format, ...) {
    size_t *sizes;
    void *all = side_gather(&local, sizeof local, &sizes);
    if (t->world->rank > 0) return;
    char wrong[64] = "";
    for (size_t rank = 0; rank < t->world->size; rank++)
        if (sizes[rank] != sizeof local || !((bool *)all)[rank])
            snprintf(wrong, sizeof wrong, "   # wrong on rank %zu", rank);
    free(all);
    free(sizes);
    t->failed += wrong[0] != 0;
    printf("%sok %zu - ", wrong[0] ? "not " : "", ++t->tests);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("%s\n", wrong);
}

// ---- 2. Collectives, on tensors of 0 to 300007 elements; the ranks divide some sizes evenly ----

static bool all_reduces(Comm *c, Arena *a, size_t n, Value v) {
    Tensor sum = vector(a, v, c->rank, 0, n), max = vector(a, v, c->rank, 0, n);
    comm_all_reduce(c, sum);
    comm_all_reduce_max(c, max);
    return holds(sum, sum_in_order, v, c->size, 0) && holds(max, maximum, v, c->size, 0);
}

static bool reduce_scatters(Comm *c, Arena *a, size_t n, Value v) {
    Range part = shard_range(n, c->size, c->rank);
    Tensor whole = vector(a, v, c->rank, 0, n), local = fresh(a, 1, range_size(part));
    comm_reduce_scatter(c, local, whole);
    return holds(local, sum_in_order, v, c->size, part.lo) && holds(whole, value_of, v, c->rank, 0);
}

static bool all_gathers(Comm *c, Arena *a, size_t n, Value v) {
    Range part = shard_range(n, c->size, c->rank);
    Tensor local = vector(a, v, 5, part.lo, part.hi), whole = fresh(a, 1, n),
           again = fresh(a, 1, n);
    Tensor place = tensor_flat_range(again, part.lo, part.hi);
    tensor_copy(place, local);
    comm_all_gather(c, whole, local);
    comm_all_gather(c, again, place); // in place
    return holds(whole, value_of, v, 5, 0) && holds(again, value_of, v, 5, 0) &&
           holds(local, value_of, v, 5, part.lo);
}

// Returns some rows of a matrix with WIDTH columns. A rank's part must have whole rows. If a call
// cut the elements like one vector, a part could begin within a row.
enum { WIDTH = 3 };
static Tensor matrix(Arena *a, Value v, size_t rank, Range rows) {
    return tensor_reshape(vector(a, v, rank, rows.lo * WIDTH, rows.hi * WIDTH), range_size(rows),
                          WIDTH);
}

static bool reduce_scatters_of_rows(Comm *c, Arena *a, size_t n, Value v) {
    Range rows = shard_range(n, c->size, c->rank);
    Tensor whole = matrix(a, v, c->rank, (Range){ 0, n }),
           local = fresh(a, range_size(rows), WIDTH);
    Tensor again = matrix(a, v, c->rank, (Range){ 0, n }),
           place = tensor_row_range(again, rows.lo, rows.hi);
    comm_reduce_scatter_rows(c, local, whole);
    comm_reduce_scatter_rows(c, place, again); // in place
    return holds(local, sum_in_order, v, c->size, rows.lo * WIDTH) &&
           holds(whole, value_of, v, c->rank, 0) &&
           holds(place, sum_in_order, v, c->size, rows.lo * WIDTH);
}

static bool all_gathers_of_rows(Comm *c, Arena *a, size_t n, Value v) {
    Range rows = shard_range(n, c->size, c->rank);
    Tensor local = matrix(a, v, 5, rows), whole = fresh(a, n, WIDTH), again = fresh(a, n, WIDTH);
    Tensor place = tensor_row_range(again, rows.lo, rows.hi);
    tensor_copy(place, local);
    comm_all_gather_rows(c, whole, local);
    comm_all_gather_rows(c, again, place); // in place
    return holds(whole, value_of, v, 5, 0) && holds(again, value_of, v, 5, 0) &&
           holds(local, value_of, v, 5, rows.lo * WIDTH);
}

// If all parts have equal length, a second all-to-all restores the input.
static bool all_to_alls(Comm *c, Arena *a, size_t n, Value v) {
    Range part = shard_range(n, c->size, c->rank);
    Tensor in = vector(a, v, c->rank, 0, n), out = fresh(a, c->size, range_size(part)),
           back = fresh(a, 1, n);
    comm_all_to_all(c, out, in);
    bool good = holds(in, value_of, v, c->rank, 0);
    for (size_t from = 0; from < c->size; from++)
        good = good && holds(tensor_row_range(out, from, from + 1), value_of, v, from, part.lo);
    if (n % c->size != 0) return good;
    comm_all_to_all(c, back, out);
    return good && holds(back, value_of, v, c->rank, 0);
}

// Returns the next root to test, or c->size after the last root. Vectors of more than 30011
// elements are tested with the first and the last root only.
static size_t next_root(Comm *c, size_t root, size_t n) {
    return n <= 30011 || root == c->size - 1 ? root + 1 : c->size - 1;
}

static bool broadcasts(Comm *c, Arena *a, size_t n, Value v) {
    bool good = true;
    for (size_t root = 0; root < c->size; root = next_root(c, root, n)) {
        Tensor t = vector(a, v, c->rank, 0, n);
        comm_broadcast(c, t, root);
        good = good && holds(t, value_of, v, root, 0);
    }
    return good;
}

static bool reduces(Comm *c, Arena *a, size_t n, Value v) {
    bool good = true;
    for (size_t root = 0; root < c->size; root = next_root(c, root, n)) {
        Tensor t = vector(a, v, c->rank, 0, n);
        comm_reduce(c, t, root);
        good = good && (c->rank == root ? holds(t, sum_in_order, v, c->size, 0)
                                        : holds(t, value_of, v, c->rank, 0));
    }
    return good;
}

static bool doubles(Comm *c, Arena *a, size_t n, Value v) {
    (void)a;
    double *x = host_alloc(n * sizeof *x), *want = host_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        for (size_t rank = 0; rank < c->size; rank++)
            want[i] = rank == 0 ? v(0, i) / 3.0 : want[i] + v(rank, i) / 3.0;
        x[i] = v(c->rank, i) / 3.0;
    }
    comm_all_reduce_doubles(c, x, n);
    bool good = memcmp(x, want, n * sizeof *x) == 0;
    free(x);
    free(want);
    return good;
}

static const struct {
    const char *name;
    bool (*run)(Comm *c, Arena *a, size_t n, Value v);
} collective[] = {
    { "all-reduce, sum and maximum", all_reduces },
    { "reduce-scatter", reduce_scatters },
    { "all-gather", all_gathers },
    { "reduce-scatter of rows", reduce_scatters_of_rows },
    { "all-gather of rows", all_gathers_of_rows },
    { "all-to-all", all_to_alls },
    { "broadcast from every root", broadcasts },
    { "reduce to every root", reduces },
    { "all-reduce of doubles", doubles },
};
enum { COLLECTIVES = sizeof collective / sizeof collective[0] };

static void test_collectives(Test *t, Comm *c, const char *where, Value v) {
    // The last size is for integers only. The MPI transport adds a vector of this size in several
    // pieces.
    size_t sizes[] = { 0,  1,  c->size - 1, c->size, c->size + 1,
                       13, 64, 1000,        30011,   v == integer ? 300007 : 0 };
    for (size_t kind = 0; kind < COLLECTIVES; kind++) {
        bool good = true;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            Arena a = arena(MEM_WORKSPACE);
            good = collective[kind].run(c, &a, sizes[i], v) && good;
            arena_free(&a);
        }
        const char *what = v == rough ? "rough values in rank order" : "integers";
        ok(t, good, "%s of %s in %s on %s", collective[kind].name, what, element_name(element),
           where);
    }
}

// Also with --fast all ranks must hold the same bits of a sum, close to the sum in rank order.
static void test_agreement(Test *t, size_t n) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor sum = vector(&a, rough, t->world->rank, 0, n),
           first = vector(&a, rough, t->world->rank, 0, n);
    comm_all_reduce(t->world, sum);
    comm_all_reduce(t->world, first);
    comm_broadcast(t->world, first, 0);
    real *x = host_alloc(n * sizeof *x), *y = host_alloc(n * sizeof *y);
    tensor_download(x, sum);
    tensor_download(y, first);
    bool near = true;
    for (size_t i = 0; i < n; i++) {
        near = near && fabs(x[i] - sum_in_order(rough, t->world->size, i)) < 1;
        uint64_t bits = 0;
        memcpy(&bits, &x[i], sizeof x[i]);
        t->bits = random_key(t->bits, bits);
    }
    ok(t, near && memcmp(x, y, n * sizeof *x) == 0, "all ranks hold the same bits of a sum of %zu",
       n);
    free(x);
    free(y);
    arena_free(&a);
}

static void test_nan(Test *t) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor max = fresh(&a, 1, 9), sum = fresh(&a, 1, 9);
    tensor_fill(max, t->world->rank == t->world->size / 2 ? (real)NAN : 1);
    tensor_copy(sum, max);
    comm_all_reduce_max(t->world, max);
    comm_all_reduce(t->world, sum);
    ok(t, isnan(tensor_sum(max)) && isnan(tensor_sum(sum)),
       "after a sum or a maximum with one rank's NaN every rank has NaN");
    arena_free(&a);
}

// ---- 3. Point to point ----

static size_t neighbour(const Comm *c, size_t step) { return (c->rank + step) % c->size; }

static void test_started_sends(Test *t, Comm *c) {
    size_t sizes[] = { 3, 300000, 0, 1, 5000 }, n = sizeof sizes / sizeof *sizes;
    size_t next = neighbour(c, 1), previous = neighbour(c, c->size - 1);
    Arena a = arena(MEM_WORKSPACE);
    bool good = true;
    Request *r[5];
    for (size_t i = 0; i < n; i++)
        r[i] = comm_start_send(c, vector(&a, integer, c->rank + i, 0, sizes[i]), next);
    for (size_t i = 0; i < n; i++) {
        Tensor got = fresh(&a, 1, sizes[i]);
        comm_recv(c, got, previous);
        good = holds(got, value_of, integer, previous + i, 0) && good;
    }
    for (size_t i = n; i-- > 0;) comm_wait(r[i]); // in the opposite order
    ok(t, good, "started sends around the ring arrive in order");
    comm_wait(NULL);
    arena_free(&a);
}

static void test_blocking_sends(Test *t, Comm *c) {
    size_t sizes[] = { 0, 1, 40000 };
    bool good = true;
    for (size_t i = 0; i < 3; i++) {
        Arena a = arena(MEM_WORKSPACE);
        Tensor local = vector(&a, integer, c->rank, 0, sizes[i]), got = fresh(&a, 1, sizes[i]);
        for (size_t from = 0; from < c->size; from++) { // rank `from` to all other ranks
            for (size_t to = 0; to < c->size; to++) {
                if (to == from) continue;
                if (c->rank == from) comm_send(c, local, to);
                if (c->rank != to) continue;
                comm_recv(c, got, from);
                good = holds(got, value_of, integer, from, 0) && good;
            }
        }
        arena_free(&a);
    }
    ok(t, good, "blocking sends, every pair in both directions");
}

// With two ranks both neighbours are the same rank. With one rank both neighbours are the rank
// itself.
static void test_exchanges(Test *t, Comm *c) {
    size_t sizes[] = { 0, 1, 100000 }, next = neighbour(c, 1), previous = neighbour(c, c->size - 1);
    bool good = true;
    for (size_t i = 0; i < 3; i++) {
        Arena a = arena(MEM_WORKSPACE);
        Tensor up = vector(&a, integer, c->rank, 0, sizes[i]),
               down = vector(&a, integer, c->rank + 3, 0, sizes[i]);
        Tensor from_below = fresh(&a, 1, sizes[i]), from_above = fresh(&a, 1, sizes[i]);
        Request *both[] = { comm_start_send(c, up, next), comm_start_recv(c, from_below, previous),
                            comm_start_send(c, down, previous),
                            comm_start_recv(c, from_above, next) };
        good = good && poisoned(from_below);
        for (size_t k = 0; k < 4; k++) comm_wait(both[k]);
        good = good && holds(from_below, value_of, integer, previous, 0) &&
               holds(from_above, value_of, integer, next + 3, 0);
        Request *sent = comm_start_send(c, up, next); // then in one direction only
        comm_recv(c, from_above, previous);
        comm_wait(sent);
        good = good && holds(from_above, value_of, integer, previous, 0);
        arena_free(&a);
    }
    ok(t, good, "both neighbours of the ring at once");
}

// ---- 4. Started and waited ----

static void test_started(Test *t, Comm *c) {
    size_t n = 20011, next = neighbour(c, 1), previous = neighbour(c, c->size - 1);
    Range part = shard_range(n, c->size, c->rank);
    Arena a = arena(MEM_WORKSPACE);
    Tensor first = vector(&a, integer, c->rank, 0, n), second = vector(&a, another, c->rank, 0, n);
    Tensor whole = vector(&a, integer, c->rank, 0, n), shard = fresh(&a, 1, range_size(part));
    Tensor local = vector(&a, integer, 5, part.lo, part.hi), gathered = fresh(&a, 1, n),
           got = fresh(&a, 1, n);
    Tensor scattered = vector(&a, rough, c->rank, 0, n),
           place = tensor_flat_range(scattered, part.lo, part.hi);
    Request *r[] = {
        comm_start_all_reduce(c, first),  comm_start_reduce_scatter(c, shard, whole),
        comm_start_send(c, whole, next),  comm_start_all_gather(c, gathered, local),
        comm_start_all_reduce(c, second), comm_start_reduce_scatter(c, place, scattered)
    };
    const size_t started = sizeof r / sizeof *r;
    Tensor between =
        vector(&a, integer, c->rank, 0, 7); // other operations may run between start and wait
    comm_all_reduce(c, between);
    comm_recv(c, got, previous);
    comm_barrier(c);
    bool untouched =
        poisoned(shard) && poisoned(gathered) && holds(first, value_of, integer, c->rank, 0);
    untouched = untouched && holds(scattered, value_of, rough, c->rank, 0);
    for (size_t i = 0; i < started; i++) comm_wait(r[i]);
    ok(t, untouched, "the output of a started operation arrives with the wait, not before");
    bool good = holds(first, sum_in_order, integer, c->size, 0) &&
                holds(second, sum_in_order, another, c->size, 0);
    good = good && holds(shard, sum_in_order, integer, c->size, part.lo);
    good = good && holds(place, sum_in_order, rough, c->size, part.lo);
    good = good && holds(gathered, value_of, integer, 5, 0) &&
           holds(got, value_of, integer, previous, 0);
    good = good && holds(between, sum_in_order, integer, c->size, 0) &&
           holds(whole, value_of, integer, c->rank, 0);
    ok(t, good, "six operations in flight at the same time");
    arena_free(&a);
}

// Receives two messages from each rank, including itself, and waits in the opposite order. Other
// operations run between the starts and the waits.
static void test_started_receives(Test *t, Comm *c) {
    size_t n = 3001, ranks = c->size;
    Arena a = arena(MEM_WORKSPACE);
    Request **recv = host_alloc(2 * ranks * sizeof *recv),
            **send = host_alloc(2 * ranks * sizeof *send);
    Tensor *got = host_alloc(2 * ranks * sizeof *got);
    bool untouched = true, good = true, steady = true;
    for (size_t i = 0; i < 2 * ranks; i++)
        recv[i] = comm_start_recv(c, got[i] = fresh(&a, 1, n + i), i % ranks);
    for (size_t i = 0; i < 2 * ranks; i++) {
        Tensor local = vector(&a, integer, c->rank + i / ranks, 0, n + c->rank + i / ranks * ranks);
        send[i] = comm_start_send(c, local, i % ranks);
    }
    comm_ledger_reset(c);
    // comm_arrival() waits until a message has arrived, but must not change the tensor yet.
    for (size_t i = 0; i < ranks; i++) {
        Picoseconds at = comm_arrival(recv[2 * i]);
        steady = steady && comm_arrival(recv[2 * i]) == at && at <= clock_now();
        untouched = untouched && poisoned(got[2 * i]);
    }
    Tensor over = vector(&a, integer, c->rank, 0, 9), under = fresh(&a, 1, 9);
    comm_all_reduce(c, over);
    Request *sent = comm_start_send(c, over, neighbour(c, 1));
    comm_recv(c, under, neighbour(c, ranks - 1));
    comm_wait(sent);
    untouched = untouched && poisoned(got[2 * ranks - 1]);
    for (size_t i = 2 * ranks; i-- > 0;) {
        comm_wait(recv[i]);
        good = good && holds(got[i], value_of, integer, i % ranks + i / ranks, 0);
        comm_wait(send[2 * ranks - 1 - i]);
    }
    ok(t, untouched && steady,
       "the message of a started receive arrives before the wait; the wait changes the tensor");
    ok(t, good && holds(under, sum_in_order, integer, ranks, 0),
       "started receives are waited for in any order");
    ok(t, c->ledger[COMM_SEND].calls == 1, "a receive is no call");
    comm_ledger_reset(c);
    free(recv);
    free(send);
    free(got);
    arena_free(&a);
}

static void a_step(Comm *c, Tensor big, Tensor part, Tensor got) {
    comm_all_reduce(c, big);
    Request *sent = comm_start_send(c, big, neighbour(c, 1)), *sum = comm_start_all_reduce(c, got);
    comm_wait(sum);
    comm_recv(c, got, neighbour(c, c->size - 1));
    comm_wait(sent);
    comm_reduce_scatter(c, part, big);
    comm_all_gather(c, big, part);
    comm_barrier(c);
}
// Comm keeps its buffers, so after a few steps no block of more than 16 KiB may be allocated.
static void test_allocations(Test *t, Comm *c) {
    size_t n = 30011;
    Arena a = arena(MEM_WORKSPACE);
    Tensor big = vector(&a, integer, c->rank, 0, n), got = vector(&a, integer, c->rank, 0, n);
    Tensor part = fresh(&a, 1, range_size(shard_range(n, c->size, c->rank)));
    for (size_t i = 0; i < 12; i++) a_step(c, big, part, got);
    size_t before = large_blocks;
    for (size_t i = 0; i < 12; i++) a_step(c, big, part, got);
    ok(t, large_blocks == before, "after the first steps a step allocates nothing");
    arena_free(&a);
}

// ---- 5. The ledger ----

static bool counted_both(Comm *c, CommKind kind, size_t calls, size_t bytes, size_t received) {
    bool good = c->ledger[kind].calls == calls && c->ledger[kind].bytes == bytes &&
                comm_bytes_sent(c) == bytes && c->ledger[kind].received == received &&
                comm_bytes_received(c) == received;
    for (size_t other = 0; other < COMM_KINDS; other++)
        good = good && (other == kind || c->ledger[other].calls == 0);
    if (!good)
        printf("# rank %zu: %s %zu calls, %zu bytes, %zu received\n", c->rank, comm_kind_name[kind],
               c->ledger[kind].calls, c->ledger[kind].bytes, c->ledger[kind].received);
    comm_ledger_reset(c);
    return good;
}
static bool counted(Comm *c, CommKind kind, size_t calls, size_t bytes) {
    return counted_both(c, kind, calls, bytes, bytes);
}

static void test_ledger(Test *t, Comm *c) {
    size_t sizes[] = { 0, 1, 5, c->size, 7 * c->size + 3 }, links = c->size - 1;
    bool good = true;
    comm_ledger_reset(c);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i], chunk = (n + c->size - 1) / c->size,
               whole_bytes = links > 0 ? n * element_size(element) : 0;
        Range part = shard_range(n, c->size, c->rank);
        Arena a = arena(MEM_WORKSPACE);
        Tensor whole = vector(&a, integer, c->rank, 0, n),
               local = tensor_flat_range(whole, part.lo, part.hi);
        double *x = host_alloc(n * sizeof *x);
        comm_all_reduce(c, whole);
        comm_all_reduce_max(c, whole);
        comm_wait(comm_start_all_reduce(c, whole));
        good =
            counted(c, COMM_ALL_REDUCE, 3, 3 * 2 * links * chunk * element_size(element)) && good;
        comm_all_reduce_doubles(c, x, n);
        good = counted(c, COMM_ALL_REDUCE, 1, 2 * links * chunk * 8) && good;
        comm_reduce_scatter(c, local, whole);
        good = counted(c, COMM_REDUCE_SCATTER, 1, links * chunk * element_size(element)) && good;
        comm_all_gather(c, whole, local);
        good = counted(c, COMM_ALL_GATHER, 1, links * chunk * element_size(element)) && good;
        comm_all_to_all(c, fresh(&a, c->size, range_size(part)), whole);
        good = counted(c, COMM_ALL_TO_ALL, 1, links * chunk * element_size(element)) && good;
        Tensor rows = matrix(&a, integer, c->rank, (Range){ 0, n }),
               own_rows = tensor_row_range(rows, part.lo, part.hi);
        comm_reduce_scatter_rows(c, own_rows, rows);
        good = counted(c, COMM_REDUCE_SCATTER, 1, links * chunk * WIDTH * element_size(element)) &&
               good;
        comm_all_gather_rows(c, rows, own_rows);
        good =
            counted(c, COMM_ALL_GATHER, 1, links * chunk * WIDTH * element_size(element)) && good;
        comm_broadcast(c, whole, links);
        bool last = c->rank == links;
        good = counted_both(c, COMM_BROADCAST, 1, last ? whole_bytes : 0, last ? 0 : whole_bytes) &&
               good;
        comm_reduce(c, whole, links);
        // The ledger counts a reduce as a chain of ranks, which ends at the root. Here the root is
        // the last rank, so rank 0 begins the chain.
        bool first = c->rank == 0;
        good = counted_both(c, COMM_REDUCE, 1, last ? 0 : whole_bytes, first ? 0 : whole_bytes) &&
               good;
        Request *r = comm_start_send(c, whole, neighbour(c, 1));
        comm_recv(c, fresh(&a, 1, n), neighbour(c, links));
        comm_wait(r);
        good = counted(c, COMM_SEND, 1, whole_bytes) && good;
        comm_barrier(c);
        ledger_pause();
        comm_all_reduce(c, whole);
        ledger_resume();
        good = counted(c, COMM_SEND, 0, 0) && good;
        free(x);
        arena_free(&a);
    }
    ok(t, good, "the ledger has the calls and bytes of comm.h, in %s", element_name(element));
}

// ---- 6. Communicators, and the side channel ----

static void test_split(Test *t) {
    Comm *w = t->world;
    // One group has the odd ranks and the other has the even ranks, in falling order.
    Comm *half = comm_split(w, w->rank % 2, w->size - w->rank, "half");
    comm_connect(half, COMM_EVERYBODY);
    size_t members = (w->size + 1 - w->rank % 2) / 2,
           last = (w->size - 1 - w->rank % 2) / 2 * 2 + w->rank % 2;
    ok(t, half->size == members && half->rank == (last - w->rank) / 2,
       "split by colour, ordered by key");
    test_collectives(t, half, "half of the world", integer);
    test_exchanges(t, half);
    test_blocking_sends(t, half);
    test_ledger(t, half);
    Comm *same = comm_split(w, 7, 0, "same"), *alone = comm_split(half, half->rank, 0, "alone");
    ok(t, same->size == w->size && same->rank == w->rank && alone->size == 1 && alone->rank == 0,
       "equal keys keep the parent's order; a group of one rank");
    comm_connect(alone, COMM_NEIGHBOURS);
    test_collectives(t, alone, "a group of one rank", rough);
    test_started(t, alone);
    test_started_receives(t, alone);
    test_exchanges(t, alone);
    test_ledger(t, alone);
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = vector(&a, integer, w->rank, 0, 50), y = vector(&a, integer, half->rank, 0, 50);
    Request *on_same = comm_start_all_reduce(same, x), *on_half = comm_start_all_reduce(half, y);
    comm_wait(on_half);
    comm_wait(on_same);
    ok(t,
       holds(x, sum_in_order, integer, w->size, 0) &&
           holds(y, sum_in_order, integer, half->size, 0),
       "operations of two communicators in flight at the same time");
    arena_free(&a);
    comm_free(alone);
    comm_free(same);
    comm_free(half);
}

// Returns whether a sum over one row, column or depth of a grid is right. The members are the ranks
// first, first + step, ... Rank n adds n into element n % 8.
static bool sums_over(Comm *line, size_t first, size_t step) {
    double sum[8] = { 0 }, want[8] = { 0 };
    size_t me = first + line->rank * step;
    sum[me % 8] = (double)me;
    comm_all_reduce_doubles(line, sum, 8);
    for (size_t i = 0; i < line->size; i++)
        want[(first + i * step) % 8] += (double)(first + i * step);
    return memcmp(sum, want, sizeof sum) == 0;
}
static void test_grids(Test *t) {
    Comm *w = t->world;
    size_t n = w->size, grids = 0;
    bool places = true, sums = true;
    for (size_t rows = 1; rows <= n; rows++)
        for (size_t cols = 1; rows * cols <= n; cols++) {
            if (n % (rows * cols) != 0) continue;
            CommGrid g = comm_grid(w, rows, cols, n / (rows * cols));
            size_t layer = rows * cols, column = w->rank % cols, row = w->rank % layer / cols;
            places = places && g.col == column && g.row == row && g.layer == w->rank / layer;
            places = places && g.in_row->size == cols && g.in_row->rank == column &&
                     g.in_col->size == rows;
            places = places && g.in_col->rank == row && g.in_depth->size == g.depth &&
                     g.in_depth->rank == g.layer;
            sums = sums_over(g.in_row, w->rank - column, 1) && sums;
            sums = sums_over(g.in_col, w->rank - row * cols, cols) && sums;
            sums = sums_over(g.in_depth, w->rank % layer, layer) && sums;
            comm_grid_free(&g);
            grids++;
        }
    ok(t, places, "%zu grids: every rank has its row, column and layer", grids);
    ok(t, sums, "sums over rows, columns and depths");
}

// The last rank starts the world's sum only after a message from rank 0. Rank 0 sends this message
// after its sum in `early`, the group of all ranks but the last, has ended.
static void test_late_member(Test *t) {
    Comm *w = t->world;
    bool last = w->rank == w->size - 1, first = w->rank == 0;
    Comm *early = comm_split(w, last, w->rank, "early");
    Arena a = arena(MEM_WORKSPACE);
    Tensor all = vector(&a, integer, w->rank, 0, 70),
           some = vector(&a, another, early->rank, 0, 70);
    Tensor word = vector(&a, integer, 0, 0, 1);
    if (last && !first) comm_recv(w, word, 0);
    Request *late = comm_start_all_reduce(w, all);
    if (!last) comm_all_reduce(early, some);
    bool good = last || holds(some, sum_in_order, another, early->size, 0);
    if (first && !last) comm_send(w, word, w->size - 1);
    comm_wait(late);
    ok(t, good && holds(all, sum_in_order, integer, w->size, 0),
       "a late member of one group does not delay another group");
    arena_free(&a);
    comm_free(early);
}

static void test_side_channel(Test *t) {
    size_t rank = t->world->rank, n = t->world->size, *sizes = NULL, total = 0;
    unsigned char *local = host_alloc(rank * 1000), number[5] = "none";
    unsigned char *all = NULL;
    memset(local, (int)rank, rank * 1000); // rank 0 has no data
    comm_ledger_reset(t->world);
    all = side_gather(local, rank * 1000, &sizes);
    bool good = true;
    for (size_t i = 0; rank == 0 && i < n; total += sizes[i++]) {
        good = good && sizes[i] == i * 1000;
        for (size_t j = 0; good && j < i * 1000; j++) good = all[total + j] == (unsigned char)i;
    }
    if (rank == 0) memcpy(number, "four", 5);
    side_broadcast(number, sizeof number);
    good = good && memcmp(number, "four", 5) == 0 && comm_bytes_sent(t->world) == 0;
    ok(t, good, "the side channel, which is not counted");
    free(local);
    if (rank == 0) {
        free(all);
        free(sizes);
    }
}

// Sends a long message on the side channel: from the last rank to rank 0, and then from rank 0 to
// all ranks. A message of 1 GiB or more is sent to rank 0 only.
static void test_long_messages(Test *t, size_t bytes) {
    bool last = t->world->rank == t->world->size - 1, good = true;
    size_t local = last ? bytes : 0, *sizes = NULL;
    unsigned char *data = host_alloc(bytes), *all = NULL;
    for (size_t i = 0; last && i < bytes; i += 4099) data[i] = (unsigned char)(1 + i % 251);
    all = side_gather(data, local, &sizes);
    if (t->world->rank == 0) {
        good = sizes[t->world->size - 1] == bytes;
        for (size_t i = 0; i < bytes && good; i++) good = all[i] == (i % 4099 ? 0 : 1 + i % 251);
        memcpy(data, all, bytes);
    }
    if (bytes < 1 << 30) {
        side_broadcast(data, bytes);
        for (size_t i = 0; i < bytes && good; i++) good = data[i] == (i % 4099 ? 0 : 1 + i % 251);
    }
    ok(t, good, "%zu bytes over the side channel", bytes);
    free(data);
    free(all);
    free(sizes);
}

// Sums of 16-bit tensors must have the bits of rank order, even with --fast.
static void test_halves(Test *t, Element e) {
    element = e;
    test_collectives(t, t->world, "world", rough);
    test_nan(t);
    test_started_sends(t, t->world);
    test_exchanges(t, t->world);
    test_started(t, t->world);
    test_started_receives(t, t->world);
    test_allocations(t, t->world);
    test_ledger(t, t->world);
    element = REALS;
}

static void test_everything(Test *t) {
    comm_connect(t->world, COMM_NEIGHBOURS);
    comm_connect(t->world, COMM_EVERYBODY);
    test_collectives(t, t->world, "world", integer);
    if (t->reduce == REDUCE_ORDERED) test_collectives(t, t->world, "world", rough);
    test_agreement(t, 1001);
    test_agreement(t, 300007);
    test_nan(t);
    test_started_sends(t, t->world);
    test_blocking_sends(t, t->world);
    test_exchanges(t, t->world);
    test_started(t, t->world);
    test_started_receives(t, t->world);
    test_allocations(t, t->world);
    test_ledger(t, t->world);
    test_split(t);
    test_grids(t);
    test_late_member(t);
    test_side_channel(t);
    test_long_messages(t, ((size_t)1 << 24) + 5);
    test_halves(t, BF16S);
    test_halves(t, FP16S);
    if (t->world->rank == 0)
        printf("# bits %016llx\n1..%zu\n", (unsigned long long)t->bits, t->tests);
}

// ---- 7. Each mistake must end all ranks with the right status ----

static void mistaken_collective(const char *mode, Comm *w, Tensor x) {
    bool first = w->rank == 0, last = w->rank == w->size - 1;
    Tensor four = tensor_flat_range(x, 0, 4), five = tensor_flat_range(x, 0, 5);
    if (strcmp(mode, "mismatch") == 0) {
        if (last) comm_broadcast(w, four, 0);
        else comm_all_reduce(w, four);
    } else if (strcmp(mode, "count") == 0) {
        comm_broadcast(w, last ? five : four, w->size - 1);
    } else if (strcmp(mode, "root") == 0) {
        comm_broadcast(w, four, last ? 1 : 0);
    } else if (strcmp(mode, "missing") == 0) {
        if (first) comm_recv(w, four, 1);
        else comm_all_reduce(w, four);
    } else if (strcmp(mode, "part") == 0) {
        comm_all_gather(w, x, four);
    } else if (strcmp(mode, "rows") == 0) {
        comm_all_gather_rows(w, tensor_reshape(x, 100, 10), tensor_flat_range(x, 0, 10));
    } else if (strcmp(mode, "rows-of-others") == 0) {
        Tensor whole = last ? tensor_reshape(x, 250, 4) : tensor_reshape(x, 125, 8);
        Range local = shard_range(whole.rows, w->size, w->rank);
        comm_all_gather_rows(w, whole, tensor_row_range(whole, local.lo, local.hi));
    } else if (strcmp(mode, "to-all") == 0) {
        comm_all_to_all(w, four, x);
    } else if (strcmp(mode, "overlap") == 0) {
        comm_all_to_all(w, tensor_flat_range(x, 5, 14), tensor_flat_range(x, 0, 9));
    } else if (strcmp(mode, "elements") == 0) {
        Arena a = arena(MEM_WORKSPACE);
        Range part = shard_range(1000, w->size, w->rank);
        comm_reduce_scatter(w, tensor_shaped(&a, tensor_shape(1, range_size(part), FP16S)), x);
    } else if (strcmp(mode, "other-element") == 0) {
        Arena a = arena(MEM_WORKSPACE);
        comm_all_reduce(w, tensor_shaped(&a, tensor_shape(1, 4, last ? BF16S : REALS)));
    } else if (strcmp(mode, "unwaited") == 0) {
        comm_start_all_reduce(w, four);
    } else if (strcmp(mode, "changed") == 0) {
        Request *r = comm_start_all_reduce(w, four);
        if (last) tensor_fill(tensor_flat_range(x, 3, 4), 9);
        comm_wait(r);
    } else if (strcmp(mode, "changed-late") == 0) {
        Arena a = arena(MEM_WORKSPACE);
        Tensor big = vector(&a, integer, w->rank, 0, 70001);
        Request *r = comm_start_all_reduce(w, big);
        if (last) tensor_fill(tensor_flat_range(big, 70000, 70001), 9);
        comm_wait(r);
        arena_free(&a);
    } else if (strcmp(mode, "order") == 0) {
        Request *r = comm_start_all_reduce(w, four);
        comm_wait(comm_start_all_reduce(w, five));
        comm_wait(r);
    } else if (strcmp(mode, "twice") == 0) {
        Request *r = comm_start_all_reduce(w, four);
        comm_wait(r);
        comm_wait(r);
    }
}

static void mistaken_message(const char *mode, Comm *w, Tensor x) {
    bool first = w->rank == 0, last = w->rank == w->size - 1;
    Tensor four = tensor_flat_range(x, 0, 4), five = tensor_flat_range(x, 0, 5);
    if (strcmp(mode, "deadlock") == 0) {
        if (w->rank < 2) comm_recv(w, x, 1 - w->rank);
    } else if (strcmp(mode, "rendezvous") == 0) { // both ranks send a small message first
        if (w->rank < 2) comm_send(w, four, 1 - w->rank);
        if (w->rank < 2) comm_recv(w, four, 1 - w->rank);
    } else if (strcmp(mode, "short") == 0 || strcmp(mode, "long") == 0) {
        if (first) comm_send(w, mode[0] == 's' ? four : five, w->size - 1);
        if (last) comm_recv(w, mode[0] == 's' ? five : four, 0);
    } else if (strcmp(mode, "unreceived") == 0) {
        if (first) comm_start_send(w, x, 1);
    } else if (strcmp(mode, "myself") == 0) {
        comm_send(w, x, w->rank);
    } else if (strcmp(mode, "unconnected") == 0) {
        if (first) comm_send(w, x, 1);
        if (w->rank == 1) comm_recv(w, x, 0);
    } else if (strcmp(mode, "nobody") == 0) {
        comm_recv(w, x, w->size);
    } else if (strcmp(mode, "gaps") == 0) {
        comm_broadcast(w, tensor_col_range(tensor_reshape(x, 10, 100), 0, 3), 0);
    } else if (strcmp(mode, "unwaited-recv") == 0) {
        if (first) comm_send(w, four, 1);
        if (w->rank == 1) comm_arrival(comm_start_recv(w, four, 0));
    } else if (strcmp(mode, "arrival-of-send") == 0) {
        comm_arrival(comm_start_send(w, four, (w->rank + 1) % w->size));
    } else if (strcmp(mode, "arrival-after-wait") == 0) {
        Request *r = comm_start_recv(w, five, w->rank);
        comm_wait(comm_start_send(w, five, w->rank));
        comm_wait(r);
        comm_arrival(r);
    } else if (strcmp(mode, "never-arrives") == 0) {
        if (first) comm_arrival(comm_start_recv(w, four, 1));
    } else if (strcmp(mode, "sent-changed") == 0) {
        Request *r = first ? comm_start_send(w, x, 1) : NULL;
        if (first) tensor_fill(x, 0);
        comm_wait(r);
        if (w->rank == 1) comm_recv(w, x, 0);
    }
}

static void make_mistake(Test *t) {
    Comm *w = t->world;
    Arena a = arena(MEM_WORKSPACE);
    Tensor x = vector(&a, integer, w->rank, 0, 1000);
    bool last = w->rank == w->size - 1;
    if (strcmp(t->mode, "unconnected") != 0) comm_connect(w, COMM_EVERYBODY);
    comm_barrier(w);
    if (strcmp(t->mode, "usage") == 0) usage_error("the same mistake on every rank");
    if (strcmp(t->mode, "grid") == 0) comm_grid(w, 2, 2, 1);
    if (strcmp(t->mode, "lonely-usage") == 0 && last) usage_error("the mistake of one rank");
    if (strcmp(t->mode, "fault") == 0 && last) fault("the fault of one rank");
    if (strcmp(t->mode, "leak") == 0 && last) return;
    if (strcmp(t->mode, "killed") == 0 && last) raise(SIGKILL);
    mistaken_collective(t->mode, w, x);
    mistaken_message(t->mode, w, x);
    if (strcmp(t->mode, "lonely-usage") == 0 || strcmp(t->mode, "fault") == 0 ||
        strcmp(t->mode, "killed") == 0)
        comm_barrier(w);
    arena_free(&a);
}

// Rank 0 sleeps longer than --timeout before the side channel's gather or broadcast. If `stopped`
// is true, rank 0 stops itself first and never goes on.
static void take_long(Comm *world, bool gathers, bool stopped) {
    char word = 0;
    void *all = NULL;
    size_t *sizes = NULL;
    if (world->rank == 0 && stopped) raise(SIGSTOP);
    if (world->rank == 0) sleep(25); // tests/comm.t sets --timeout 20
    if (gathers) all = side_gather(&word, sizeof word, &sizes);
    else side_broadcast(&word, sizeof word);
    free(all);
    free(sizes);
}

// Runs collectives made of point-to-point messages, in equal parts, and prints the ledger's bytes.
// tests/ledger.t compares these bytes with the bytes given to MPI.
static void print_sent(Comm *c) {
    size_t rows = 7 * c->size;
    Arena a = arena(MEM_WORKSPACE);
    Tensor whole = matrix(&a, integer, c->rank, (Range){ 0, rows }),
           out = tensor_new(&a, c->size, 7 * WIDTH);
    Tensor local = tensor_new(&a, 7, WIDTH);
    comm_reduce_scatter_rows(c, local, whole);
    comm_reduce_scatter_rows(c, local, whole);
    comm_all_to_all(c, out, whole);
    fprintf(stderr, "ledger rank %zu bytes %zu\n", c->rank, comm_bytes_sent(c));
    arena_free(&a);
}

static void body(Comm *world, void *context) {
    Context *c = context;
    Test t = { .world = world, .mode = c->mode, .reduce = c->reduce };
    if (c->mode && strncmp(c->mode, "slow-", 5) == 0)
        take_long(world, strcmp(c->mode, "slow-gather") == 0, strcmp(c->mode, "slow-stopped") == 0);
    else if (c->mode && strcmp(c->mode, "huge") == 0) test_long_messages(&t, ((size_t)1 << 31) + 5);
    else if (c->mode && strcmp(c->mode, "sent") == 0) print_sent(world);
    else if (c->mode) make_mistake(&t);
    else test_everything(&t);
    if (world->rank == 0) c->status = t.failed > 0 ? STATUS_CHECK_FAILED : 0;
}

static double number_after(char ***argument) {
    if (!(*argument)[1]) usage_error("%s needs a number", **argument);
    return atof(*++*argument);
}

int main(int argc, char **argv) {
    LaunchWish wish = { .default_ranks = 4 };
    Launch launch = { .timeout = 60 };
    Context context = { 0 };
    process_begin(&argc, &argv);
    for (char **argument = argv + 1; *argument; argument++) {
        if (strcmp(*argument, "--emulate") == 0) wish.emulate = (size_t)number_after(&argument);
        else if (strcmp(*argument, "--timeout") == 0) launch.timeout = number_after(&argument);
        else if (strcmp(*argument, "--deadlock") == 0) launch.deadlock = number_after(&argument);
        else if (strcmp(*argument, "--fast") == 0) launch.reduce = context.reduce = REDUCE_FAST;
        else if (strcmp(*argument, "--emu") == 0) wish.transport = "emu";
        else if (strcmp(*argument, "--mpi") == 0) wish.transport = "mpi";
        else if (**argument != '-') context.mode = *argument;
    }
    usage_wait = 1 + (long)(launch.timeout / 2);
    LaunchChoice choice = launch_choose(&wish);
    launch.transport = choice.transport;
    launch.ranks = choice.ranks;
    if (this_rank == 0)
        printf("# %s, %zu ranks (%s)\n", transport_name[choice.transport], choice.ranks,
               choice.why);
    comm_run(&launch, body, &context);
    process_end(context.status);
    return context.status;
}
