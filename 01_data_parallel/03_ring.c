// ranks: 4
// level: core
// question: What does an all-reduce do inside, and which way of doing it is the fastest?
// vary: UNEVEN 50..1500, LARGE 5000..20000
//
// Every rank holds a tensor of S bytes, and in the end all hold the sum. Four ways to get there, from sends and
// receives only: a ring, everything through rank 0, a tree, and recursive halving and doubling. Each is compared with
// the library's all-reduce; its bytes, messages and time with closed forms (experiments/03_costs.c). A sum is made where
// its parts meet, and copied from there: so all ranks hold the same bits; which bits depends on the order of the parts.
// A fifth one is for ranks in nodes, made of the library's collectives over two groups: what goes to other nodes is
// divided among the ranks of a node.
// A rank has one port: it sends one message and receives one message at a time, each taking alpha + bytes / beta.
// Left out: links that several messages share, and cutting messages in pieces that follow each other along a tree.
#include <stdio.h>
#include <string.h>
#include "01_data_parallel/experiments/03_costs.h"
#include "01_data_parallel/experiments/03_page.h"
#include "01_data_parallel/experiments/03_reference.h"
#include "01_data_parallel/experiments/03_times.h"
#include "common/tensor/ops.h"

// ================================ the technique ================================

// Chunk i modulo n of t.
static Tensor chunk(Tensor t, size_t n, size_t i) {
    Range r = shard_range(tensor_count(t), n, i % n);
    return tensor_flat_range(t, r.lo, r.hi);
}
// Chunks [lo, hi) of n, which are neighbours in memory.
static Tensor chunks(Tensor t, size_t n, size_t lo, size_t hi) {
    size_t count = tensor_count(t);
    return tensor_flat_range(t, shard_range(count, n, lo).lo, shard_range(count, n, hi - 1).hi);
}

// Sends and receives at the same time. Were the send to wait for its receiver before anybody receives, all would wait.
static void exchange(Comm *c, Tensor out, size_t to, Tensor in, size_t from) {
    comm_group_start(c);
    comm_send(c, out, to);
    comm_recv(c, in, from);
    comm_group_end(c);
}
// t += what comes from there.
static void receive_and_add(Comm *c, Tensor t, size_t from, Tensor scratch) {
    Tensor in = tensor_flat_range(scratch, 0, tensor_count(t));
    comm_recv(c, in, from);
    op_add(t, t, in);
}

// Patarasuk and Yuan 2009. A rank sends to `next` and receives from `previous` only: 2 (N-1) messages of S / N bytes.
// Chunk i starts its way at rank i, so at step k rank r passes on chunk r - k, and gets chunk r - k - 1 from the rank
// before it. After n - 1 steps the chunk that came last, r + 1, is complete here.
static void ring_all_reduce(Comm *c, Tensor t) {
    size_t n = c->size, r = c->rank, next = (r + 1) % n, previous = (r + n - 1) % n;
    Arena memory = arena(MEM_COMMUNICATION);
    Tensor scratch = tensor_new(&memory, 1, n > 1 ? tensor_count(chunk(t, n, 0)) : 0);   // chunk 0 is the largest
    comm_connect(c, COMM_NEIGHBOURS);
    // EXERCISE 01.03a (8 points): the ring. t is this rank's tensor; afterwards it is the sum over all ranks, on every
    // rank. Messages go to `next` and come from `previous` only, with exchange(); chunk(t, n, i) is part i of n
    // (write r + n - k for r - k: sizes have no sign), and what comes in to be added has room in `scratch`, cut to the
    // chunk's length by tensor_flat_range. First n - 1 steps in which chunks are added (op_add), then n - 1 in which
    // they are copied: these can be received in their place. Every rank sends 2 (n - 1) messages of one chunk.
    for (size_t k = 0; k < n - 1; k++) {                                           // reduce-scatter
        Tensor mine = chunk(t, n, r + n - k - 1), in = tensor_flat_range(scratch, 0, tensor_count(mine));
        exchange(c, chunk(t, n, r + n - k), next, in, previous);                   // S / n bytes: [count / n] elements
        op_add(mine, mine, in);
    }
    for (size_t k = 0; k < n - 1; k++)                                             // all-gather, S / n bytes each
        exchange(c, chunk(t, n, r + n + 1 - k), next, chunk(t, n, r + n - k), previous);
    // END
    arena_free(&memory);
}

// Rank 0 receives every rank's tensor, adds them in rank order, and sends every rank the sum: (N-1) S bytes in, and
// (N-1) S out.
static void gather_broadcast_all_reduce(Comm *c, Tensor t) {
    Arena memory = arena(MEM_COMMUNICATION);
    comm_connect(c, COMM_EVERYBODY);
    if (c->rank == 0) {
        Tensor scratch = tensor_new(&memory, 1, c->size > 1 ? tensor_count(t) : 0);
        for (size_t peer = 1; peer < c->size; peer++) receive_and_add(c, t, peer, scratch);        // S bytes each
        for (size_t peer = 1; peer < c->size; peer++) comm_send(c, t, peer);                           // S bytes each
    } else {
        comm_send(c, t, 0);                    // S bytes, my tensor
        comm_recv(c, t, 0);                    // S bytes, the sum
    }
    arena_free(&memory);
}

// A binomial tree, up and down: log2 N rounds (rounded up) of whole tensors each way, S bytes a message.
// Up: in the round with distance d, ranks that are odd multiples of d send their sum to the rank d below them, and are
// done. Down: the same rounds backwards.
static void tree_all_reduce(Comm *c, Tensor t) {
    size_t n = c->size, r = c->rank, d = 1;
    Arena memory = arena(MEM_COMMUNICATION);
    Tensor scratch = tensor_new(&memory, 1, r % 2 == 0 && r + 1 < n ? tensor_count(t) : 0);       // leaves add nothing
    comm_connect(c, COMM_EVERYBODY);
    for (; d < n && r % (2 * d) == 0; d *= 2)
        if (r + d < n) receive_and_add(c, t, r + d, scratch);
    if (r > 0) {
        comm_send(c, t, r - d);                // S bytes; r is an odd multiple of d
        comm_recv(c, t, r - d);                // S bytes, the sum
    }
    for (d /= 2; d > 0; d /= 2)
        if (r + d < n) comm_send(c, t, r + d);
    arena_free(&memory);
}

// Rabenseifner 2004: partners swap halves, then halves of halves, until each rank owns a chunk of the sum; then back.
// 2 log2 N messages, of S/2, S/4, ... S/N and S/N, ... S/4, S/2 bytes: as many bytes as in a ring. Where N is no power
// of two, each rank beyond it first sends its tensor (S bytes) to a rank below, and gets the sum (S bytes) at the end.

// Among the first `n` ranks, n a power of two. Rank r keeps the half of its range in which chunk r lies.
static void halve_and_double(Comm *c, Tensor t, size_t n, Tensor scratch) {
    size_t r = c->rank;
    // EXERCISE 01.03b (8 points): halving and doubling. n is a power of two and r < n. Halving: the distance d goes
    // n / 2, n / 4, ... 1; the partner is r ^ d. Both hold sums of the same range of chunks, n chunks at first: send
    // the partner its half of the range, add the half that comes (it has room in `scratch`), and go on with that half,
    // the one with chunk r. Doubling: d goes 1, 2, ... n / 2; both hold a finished range of d chunks, side by side:
    // swap them with exchange(). chunks(t, n, lo, hi) are the chunks lo <= i < hi of t, one piece of memory.
    for (size_t d = n / 2; d > 0; d /= 2) {
        size_t partner = r ^ d, mine = r / d * d, yours = partner / d * d;         // where the halves begin
        Tensor half = chunks(t, n, mine, mine + d), in = tensor_flat_range(scratch, 0, tensor_count(half));
        exchange(c, chunks(t, n, yours, yours + d), partner, in, partner);         // d S / n bytes
        op_add(half, half, in);
    }
    for (size_t d = 1; d < n; d *= 2) {
        size_t partner = r ^ d, mine = r / d * d, yours = partner / d * d;
        exchange(c, chunks(t, n, mine, mine + d), partner, chunks(t, n, yours, yours + d), partner);   // d S / n
    }
    // END
}

static void halving_doubling_all_reduce(Comm *c, Tensor t) {
    size_t r = c->rank, n = 1;
    while (2 * n <= c->size) n *= 2;           // ranks n, n + 1, ... are folded into ranks 0, 1, ...
    size_t rest = c->size - n, count = tensor_count(t);
    comm_connect(c, COMM_EVERYBODY);
    if (r >= n) {
        comm_send(c, t, r - n);                // S bytes
        comm_recv(c, t, r - n);                // S bytes, the sum
        return;
    }
    Arena memory = arena(MEM_COMMUNICATION);
    size_t half = n > 1 ? tensor_count(chunks(t, n, 0, n / 2)) : 0;
    Tensor scratch = tensor_new(&memory, 1, r < rest ? count : half);
    if (r < rest) receive_and_add(c, t, r + n, scratch);
    halve_and_double(c, t, n, scratch);
    if (r < rest) comm_send(c, t, r + n);
    arena_free(&memory);
}

// Over nodes, M of n ranks each. inside: the ranks of my node; between: the rank with my place in every node. Each rank
// sums one n-th of the tensor over its node, and that alone goes to other nodes: all n ranks send there at once.
static void hierarchical_all_reduce(Comm *inside, Comm *between, Tensor t) {
    Range r = shard_range(tensor_count(t), inside->size, inside->rank);
    Tensor mine = tensor_flat_range(t, r.lo, r.hi);        // [count / n]
    comm_reduce_scatter(inside, mine, t);                  // sends (n-1)/n S to ranks of my node
    comm_all_reduce(between, mine);                        // 2 (M-1)/M S/n to other nodes
    comm_all_gather(inside, t, mine);                      // (n-1)/n S to ranks of my node
}

// ================================ the experiment ================================

// ---------------------------------------------------------------- data and sizes

enum { UNEVEN = 1003, LARGE = 10007, SIZES = 8, EVEN = 5 };            // EVEN: the size that N divides
typedef struct { size_t count[SIZES]; } Sizes;
static Sizes sizes_of(size_t N) { return (Sizes){{ 0, 1, N - 1, N, N + 1, 100 * N, UNEVEN, LARGE }}; }
static const char *const size_name[SIZES] = { "empty", "one", "N - 1", "N", "N + 1", "100 N", "uneven", "large" };

static AllReduce *const all_reduce[WAYS] = {
    [RING] = ring_all_reduce, [GATHER] = gather_broadcast_all_reduce,
    [TREE] = tree_all_reduce, [HALVING] = halving_doubling_all_reduce };

// ---------------------------------------------------------------- the same sum, four times

// Sums of all sizes into s; what they cost is added to `seen`. library: by comm_all_reduce.
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
            *seen = (WaySeen){ seen->messages + c->ledger[COMM_SEND].calls, seen->bytes + c->ledger[COMM_SEND].bytes,
                                scratch > seen->scratch ? scratch : seen->scratch,
                                i == EVEN ? c->ledger[COMM_SEND].bytes : seen->even };
        if (!library || run->is_root) snapshot_put(s, size_name[i], 1, tensor_count(t), t, 0, 0);
        arena_free(&memory);
    }
}

static void compare(Run *run, WaySeen seen[WAYS]) {
    // Rank 0 adds in rank order, as the library's ordered sum does; the other ways have orders of their own.
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
            snprintf(what, sizeof what, "%s = library, %s", way_name[way], whole ? "whole numbers" : "real numbers");
            if (whole) check_equal(run, what, got, library);
            else check_close(run, what, got, library, way == GATHER ? same_order : LIMIT_ROUNDING);
            if (!whole && way == RING) check_equal(run, "ring = unsplit in its order", got, order);
            snapshot_free(got);
        }
        snapshot_free(library);
        snapshot_free(order);
    }
}

// ---------------------------------------------------------------- over nodes

enum { ACROSS = 24000 };                       // elements of the timed tensor: most numbers of ranks divide them

// From a common start until this rank is done, in picoseconds.
static double flat_time(Comm *c, Tensor t) {
    Picoseconds begin = clock_now();
    comm_all_reduce(c, t);
    return (double)(clock_now() - begin);
}
static double hierarchical_time(Comm *inside, Comm *between, Tensor t) {
    Picoseconds begin = clock_now();
    hierarchical_all_reduce(inside, between, t);
    return (double)(clock_now() - begin);
}

static void over_nodes(Run *run) {
    Comm *c = run->world;
    size_t node = clock_config()->node, n = node < c->size ? node : c->size;
    if (c->size % n > 0) {
        say(run, "\n%zu ranks do not fill nodes of %zu: no hierarchical all-reduce.\n", c->size, n);
        return;
    }
    Comm *inside = comm_split(c, c->rank / n, c->rank, "node"), *between = comm_split(c, c->rank % n, c->rank, "nodes");
    for (size_t whole = 2; whole-- > 0;) {
        Snapshot *flat = snapshot_new(run), *got = snapshot_new(run);
        all_sizes(run, flat, RING, whole, true, NULL);
        for (size_t i = 0; i < SIZES; i++) {
            Arena memory = arena(MEM_GRADIENTS);
            Tensor t = tensor_new(&memory, 1, sizes_of(c->size).count[i]);
            ring_fill(t, run->seed, c->rank, whole);
            hierarchical_all_reduce(inside, between, t);
            snapshot_put(got, size_name[i], 1, tensor_count(t), t, 0, 0);
            arena_free(&memory);
        }
        if (whole) check_equal(run, "hierarchical = library, whole numbers", got, flat);
        else check_close(run, "hierarchical = library, real numbers", got, flat, LIMIT_ROUNDING);
        snapshot_free(flat);
        snapshot_free(got);
    }
    Arena memory = arena(MEM_GRADIENTS);
    Tensor t = tensor_new(&memory, 1, ACROSS);
    tensor_fill(t, 0);
    comm_all_reduce(c, t);                     // a collective ends for all at the same moment
    Comm *all[] = { c, inside, between };
    for (size_t i = 0; i < 3; i++) comm_ledger_reset(all[i]);
    NodesSeen seen = { .flat_time = flat_time(c, t), .time = hierarchical_time(inside, between, t) };
    seen.flat = comm_bytes_sent(c);
    seen.inside = comm_bytes_sent(inside);
    seen.between = comm_bytes_sent(between);
    way_compare_nodes(run, &seen, n, ACROSS);
    arena_free(&memory);
    comm_free(inside);
    comm_free(between);
}

static void ring(Run *run) {
    WaySeen seen[WAYS] = {{0}};
    const Sizes sizes = sizes_of(run->world->size);
    compare(run, seen);
    way_compare_costs(run, seen, sizes.count, SIZES, EVEN);
    way_times(run, all_reduce, option_text(run, "svg") || strcmp(option_text(run, "picture"), "times") == 0);
    over_nodes(run);
    ring_say_steps(run);
    ring_say_fastest(run);
    ring_say_nodes(run, ACROSS);
}

static const Option options[] = {
    { "picture", "none|times", "none", "times: a chart of the four ways' times by size, as --svg writes it" },
    { "link", "NAME[,NAME]", "fast,slow", NULL }, { "node", "N", "2", "N neighbouring ranks share a node" }, {0} };
EXPERIMENT(ring, options);
