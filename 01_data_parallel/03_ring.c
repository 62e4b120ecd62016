// ranks: 4
// level: core
// question: What does an all-reduce do inside, and which way of doing it is the fastest?
// vary: UNEVEN 50..20000
//
// Holds:  each rank has a tensor of S bytes. At the end every rank has the sum, in the same bits.
//         Scratch memory holds at most one incoming message.
// Sends:  a rank of the ring sends 2(N-1) messages of S/N bytes. In gather and broadcast rank 0
//         receives (N-1) S bytes and sends as many. The tree has h rounds up and as many down, with
//         messages of S bytes. h is log2 N, rounded up. In halving and doubling a rank sends
//         2 log2 N messages, two each of S/2, S/4, ... S/N bytes, if N is a power of two.
// Saves:  bytes and messages. No way has fewer bytes on the busiest rank than the ring, which has
//         2(N-1)/N S. Halving and doubling has as few, if N is a power of two. Tree and halving
//         need the fewest messages in a row.
// Costs:  time. Ring: 2(N-1)(alpha + S/(N beta)). Gather and broadcast: 2(N-1)(alpha + S/beta).
//         Tree: 2h(alpha + S/beta). Halving and doubling, if N is a power of two:
//         2h alpha + 2(N-1)/N S/beta. alpha is the latency of a message, beta the bytes per second
//         of a link.
// Patarasuk and Yuan 2009; Rabenseifner 2004. One rank makes the last addition of an element, and
// the other ranks copy the sum, so all ranks hold the same bits. The order of the additions decides
// the bits. Different ways add in different orders, so their sums are equal only within rounding.
// Left out: links that several messages share, and pipelined trees.
#include "01_data_parallel/data_parallel.h"
#include "common/tensor/ops.h"

// Returns chunk i % n of the n chunks of t, as a view.
static Tensor chunk(Tensor t, size_t n, size_t i) {
    Range r = shard_range(tensor_count(t), n, i % n);
    return tensor_flat_range(t, r.lo, r.hi);
}
// Returns chunks lo to hi - 1 of the n chunks of t as one view, because these chunks are adjacent
// in memory.
static Tensor chunks(Tensor t, size_t n, size_t lo, size_t hi) {
    size_t count = tensor_count(t);
    return tensor_flat_range(t, shard_range(count, n, lo).lo, shard_range(count, n, hi - 1).hi);
}

// Returns scratch memory for `count` elements of the type of t. A rank receives a message in this
// memory before adding the message to t.
static Tensor scratch_for(Arena *memory, Tensor t, size_t count) {
    return tensor_shaped(memory, tensor_shape(1, count, t.element));
}

// Sends and receives at the same time. If every rank first sent and then received, all ranks would
// wait for ever, because a send ends only when its receiver receives.
static void exchange(Comm *c, Tensor out, size_t to, Tensor in, size_t from) {
    Request *sent = comm_start_send(c, out, to);
    comm_recv(c, in, from);
    comm_wait(sent);
}
// Adds to t the tensor that rank `from` sends.
static void receive_and_add(Comm *c, Tensor t, size_t from, Tensor scratch) {
    Tensor in = tensor_flat_range(scratch, 0, tensor_count(t));
    comm_recv(c, in, from);
    op_add(t, t, in);
}

// Sums t over the ranks in a ring (Patarasuk and Yuan 2009). A rank sends to `next` and receives
// from `previous` only. Each rank sends 2 (n-1) messages of S / n bytes. Chunk i starts at rank i.
// So at step k rank r sends chunk r - k and receives chunk r - k - 1 (modulo n). After n - 1 steps
// rank r has the complete chunk r + 1. In n - 1 more steps the complete chunks go around the ring.
void ring_all_reduce(Comm *c, Tensor t) {
    size_t n = c->size, r = c->rank, next = (r + 1) % n, previous = (r + n - 1) % n;
    Arena memory = arena(MEM_COMMUNICATION);
    // No chunk is larger than chunk 0.
    Tensor scratch = scratch_for(&memory, t, n > 1 ? tensor_count(chunk(t, n, 0)) : 0);
    comm_connect(c, COMM_NEIGHBOURS);
    // EXERCISE 01.03a (8 points): the ring. t is this rank's tensor, and must become the sum over
    // all ranks, on every rank. Send to `next` and receive from `previous` only, with exchange().
    // chunk(t, n, i) is part i of n. (Write r + n - k for r - k, because sizes have no sign.)
    // If a chunk is to be added, receive it in `scratch`. tensor_flat_range cuts `scratch` to the
    // length of the chunk. First come n - 1 steps that add chunks (op_add), then n - 1 steps that
    // copy them. A copied chunk can be received in its place. Every rank sends 2 (n - 1) messages
    // of one chunk.
    for (size_t k = 0; k < n - 1; k++) { // reduce-scatter
        Tensor own = chunk(t, n, r + n - k - 1);
        Tensor in = tensor_flat_range(scratch, 0, tensor_count(own));
        // S / n bytes: [count / n] elements
        exchange(c, chunk(t, n, r + n - k), next, in, previous);
        op_add(own, own, in);
    }
    for (size_t k = 0; k < n - 1; k++) // all-gather, S / n bytes each
        exchange(c, chunk(t, n, r + n + 1 - k), next, chunk(t, n, r + n - k), previous);
    // END
    arena_free(&memory);
}

// Sums t over the ranks on rank 0. Rank 0 receives (N-1) S bytes, adds the tensors in rank order,
// and sends the sum to every other rank, (N-1) S bytes. So the bits are those of comm_all_reduce in
// rank order. The ring, the tree and halving and doubling add in other orders.
void gather_broadcast_all_reduce(Comm *c, Tensor t) {
    Arena memory = arena(MEM_COMMUNICATION);
    comm_connect(c, COMM_EVERYBODY);
    if (c->rank == 0) {
        Tensor scratch = scratch_for(&memory, t, c->size > 1 ? tensor_count(t) : 0);
        // S bytes each
        for (size_t peer = 1; peer < c->size; peer++) receive_and_add(c, t, peer, scratch);
        for (size_t peer = 1; peer < c->size; peer++) comm_send(c, t, peer); // S bytes each
    } else {
        comm_send(c, t, 0); // S bytes, this rank's tensor
        comm_recv(c, t, 0); // S bytes, the sum
    }
    arena_free(&memory);
}

// Sums t over the ranks in a binomial tree. log2 N rounds (rounded up) go up the tree, and as many
// go down. Every message has S bytes. The rounds that go up have the distances d = 1, 2, 4, ... In
// each of these rounds, every rank r that is an odd multiple of d sends its sum to rank r - d. The
// rounds that go down run in reverse order, and each parent sends the sum to its child.
void tree_all_reduce(Comm *c, Tensor t) {
    size_t n = c->size, r = c->rank, d = 1;
    Arena memory = arena(MEM_COMMUNICATION);
    // A leaf of the tree adds nothing, so it needs no scratch.
    Tensor scratch = scratch_for(&memory, t, r % 2 == 0 && r + 1 < n ? tensor_count(t) : 0);
    comm_connect(c, COMM_EVERYBODY);
    for (; d < n && r % (2 * d) == 0; d *= 2)
        if (r + d < n) receive_and_add(c, t, r + d, scratch);
    if (r > 0) {
        comm_send(c, t, r - d); // S bytes; r is an odd multiple of d
        comm_recv(c, t, r - d); // S bytes, the sum
    }
    for (d /= 2; d > 0; d /= 2)
        if (r + d < n) comm_send(c, t, r + d);
    arena_free(&memory);
}

// Halving and doubling follows Rabenseifner 2004. Partners swap halves, then halves of halves,
// until each rank owns a chunk of the sum. Then the same steps run backwards. If N is a power of
// two, each rank sends 2 log2 N messages, of S/2, S/4, ... S/N and S/N, ... S/4, S/2 bytes. In a
// ring a rank sends as many bytes. If N is not a power of two, some ranks are left over. Each such
// rank first sends its tensor (S bytes) to a lower rank, and at the end receives the sum (S bytes).

// Runs halving and doubling among the first n ranks, where n is a power of two. While halving, rank
// r keeps the half of its range that contains chunk r.
static void halve_and_double(Comm *c, Tensor t, size_t n, Tensor scratch) {
    size_t r = c->rank;
    // EXERCISE 01.03b (8 points): halving and doubling. n is a power of two and r < n. Halving: the
    // distance d is n / 2, n / 4, ... 1, and the partner is r ^ d. Both partners hold sums of the
    // same range of chunks, n chunks at first. Send the partner its half of the range. Receive your
    // half, the one with chunk r, in `scratch`, add it, and go on with this half. Doubling: d is 1,
    // 2, ... n / 2. Both partners hold a finished range of d chunks, side by side. Swap the ranges
    // with exchange(). chunks(t, n, lo, hi) are the chunks lo <= i < hi of t, one piece of memory.
    for (size_t d = n / 2; d > 0; d /= 2) {
        // own and other are the first chunks of this rank's half and of the partner's half.
        size_t partner = r ^ d, own = r / d * d, other = partner / d * d;
        Tensor half = chunks(t, n, own, own + d);
        Tensor in = tensor_flat_range(scratch, 0, tensor_count(half));
        exchange(c, chunks(t, n, other, other + d), partner, in, partner); // d S / n bytes
        op_add(half, half, in);
    }
    for (size_t d = 1; d < n; d *= 2) {
        size_t partner = r ^ d, own = r / d * d, other = partner / d * d;
        // d S / n bytes
        exchange(c, chunks(t, n, own, own + d), partner, chunks(t, n, other, other + d), partner);
    }
    // END
}

void halving_doubling_all_reduce(Comm *c, Tensor t) {
    size_t r = c->rank, n = 1;
    while (2 * n <= c->size) n *= 2; // ranks n, n + 1, ... send their t to ranks 0, 1, ...
    size_t rest = c->size - n, count = tensor_count(t);
    comm_connect(c, COMM_EVERYBODY);
    if (r >= n) {
        comm_send(c, t, r - n); // S bytes
        comm_recv(c, t, r - n); // S bytes, the sum
        return;
    }
    Arena memory = arena(MEM_COMMUNICATION);
    size_t half = n > 1 ? tensor_count(chunks(t, n, 0, n / 2)) : 0;
    Tensor scratch = scratch_for(&memory, t, r < rest ? count : half);
    if (r < rest) receive_and_add(c, t, r + n, scratch);
    halve_and_double(c, t, n, scratch);
    if (r < rest) comm_send(c, t, r + n);
    arena_free(&memory);
}

// There are M nodes with n ranks each. Each rank sums one n-th of the tensor over its node. Only
// this part goes to other nodes, and all n ranks of a node send at the same time. A rank sends as
// many bytes as in one ring of all M n ranks, but only 2(M-1)/M S/n of these bytes go to other
// nodes.
void hierarchical_all_reduce(Comm *inside, Comm *between, Tensor t) {
    Range r = shard_range(tensor_count(t), inside->size, inside->rank);
    Tensor part = tensor_flat_range(t, r.lo, r.hi); // [count / n]
    comm_reduce_scatter(inside, part, t);           // sends (n-1)/n S to ranks of this node
    comm_all_reduce(between, part);                 // sends 2 (M-1)/M S/n to other nodes
    comm_all_gather(inside, t, part);               // sends (n-1)/n S to ranks of this node
}
