// collectives.c: see collectives.h. A sum is made where its parts meet, and copied from there: so all ranks hold the
// same bits, but which bits depends on the order in which the parts met.
#include "01_data_parallel/collectives.h"
#include "common/tensor/ops.h"

// ---------------------------------------------------------------- steps they are made of

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

// ---------------------------------------------------------------- ring

// Chunk i starts its way at rank i, so at step k rank r passes on chunk r - k, and gets chunk r - k - 1 from the rank
// before it. After n - 1 steps the chunk that came last, r + 1, is complete here.
void ring_all_reduce(Comm *c, Tensor t) {
    size_t n = c->size, r = c->rank, next = (r + 1) % n, previous = (r + n - 1) % n;
    Arena memory = arena(MEM_COMMUNICATION);
    Tensor scratch = tensor_new(&memory, 1, n > 1 ? tensor_count(chunk(t, n, 0)) : 0);   // chunk 0 is the largest
    comm_connect(c, COMM_NEIGHBOURS);
    // EXERCISE 01.03a (8 points): the ring. t is this rank's tensor; afterwards it is the sum over all ranks, on every
    // rank. Only the neighbours `next` and `previous` may be spoken to, with exchange(); chunk(t, n, i) is part i of n
    // (write r + n - k for r - k: sizes have no sign), and what comes in to be added has room in `scratch`, cut to the
    // chunk's length by tensor_flat_range. First n - 1 steps in which chunks are added (op_add), then n - 1 in which
    // they are copied: these can be received in their place. Every rank sends 2 (n - 1) messages of one chunk.
    for (size_t k = 0; k < n - 1; k++) {                                           // reduce-scatter
        Tensor mine = chunk(t, n, r + n - k - 1), in = tensor_flat_range(scratch, 0, tensor_count(mine));
        exchange(c, chunk(t, n, r + n - k), next, in, previous);
        op_add(mine, mine, in);
    }
    for (size_t k = 0; k < n - 1; k++)                                             // all-gather
        exchange(c, chunk(t, n, r + n + 1 - k), next, chunk(t, n, r + n - k), previous);
    // END
    arena_free(&memory);
}

// ---------------------------------------------------------------- gather and broadcast

void gather_broadcast_all_reduce(Comm *c, Tensor t) {
    Arena memory = arena(MEM_COMMUNICATION);
    comm_connect(c, COMM_EVERYBODY);
    if (c->rank == 0) {
        Tensor scratch = tensor_new(&memory, 1, c->size > 1 ? tensor_count(t) : 0);
        for (size_t peer = 1; peer < c->size; peer++) receive_and_add(c, t, peer, scratch);
        for (size_t peer = 1; peer < c->size; peer++) comm_send(c, t, peer);
    } else {
        comm_send(c, t, 0);
        comm_recv(c, t, 0);
    }
    arena_free(&memory);
}

// ---------------------------------------------------------------- tree

// Up: in the round with distance d, ranks that are odd multiples of d hand their sum to the rank d below them, and are
// done. Down: the same rounds backwards.
void tree_all_reduce(Comm *c, Tensor t) {
    size_t n = c->size, r = c->rank, d = 1;
    Arena memory = arena(MEM_COMMUNICATION);
    Tensor scratch = tensor_new(&memory, 1, r % 2 == 0 && r + 1 < n ? tensor_count(t) : 0);       // leaves add nothing
    comm_connect(c, COMM_EVERYBODY);
    for (; d < n && r % (2 * d) == 0; d *= 2)
        if (r + d < n) receive_and_add(c, t, r + d, scratch);
    if (r > 0) {
        comm_send(c, t, r - d);                // r is an odd multiple of d
        comm_recv(c, t, r - d);
    }
    for (d /= 2; d > 0; d /= 2)
        if (r + d < n) comm_send(c, t, r + d);
    arena_free(&memory);
}

// ---------------------------------------------------------------- recursive halving and doubling

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
        exchange(c, chunks(t, n, yours, yours + d), partner, in, partner);
        op_add(half, half, in);
    }
    for (size_t d = 1; d < n; d *= 2) {
        size_t partner = r ^ d, mine = r / d * d, yours = partner / d * d;
        exchange(c, chunks(t, n, mine, mine + d), partner, chunks(t, n, yours, yours + d), partner);
    }
    // END
}

void halving_doubling_all_reduce(Comm *c, Tensor t) {
    size_t r = c->rank, n = 1;
    while (2 * n <= c->size) n *= 2;           // ranks n, n + 1, ... are folded into ranks 0, 1, ...
    size_t rest = c->size - n, count = tensor_count(t);
    comm_connect(c, COMM_EVERYBODY);
    if (r >= n) {
        comm_send(c, t, r - n);
        comm_recv(c, t, r - n);
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
