// context_parallel.h: declares context parallelism. The N ranks of a group, cp, have different
// positions of the same B sequences of T positions. In forward and backward only attention
// communicates, because all other parts of a GPT work on one position at a time. Every rank has all
// parameters, and their gradients are summed over the group, as in data parallelism. The table
// holds for N > 1, C columns and H heads, without dropout:
//
//     kind                     elements sent per layer and rank    elements kept for softmax
//     ring_attention           (6N-4) B T C/N                      B H T/N
//     ring_attention_zigzag    the same, equal work on all ranks   the same
//     ring_self_attention      8(N-1) B T C/N                      B H T/N T: rows of all keys
//     ulysses_attention        8(N-1)/N B T C/N                    B H/N T
#ifndef CONTEXT_PARALLEL_H
#define CONTEXT_PARALLEL_H
#include "common/model/data.h"
#include "common/model/model.h"

// ---- 08_ring_attention.c ----
extern const AttentionKind ring_attention, ring_attention_zigzag;
// Returns the positions of rank i of n in a sequence of T positions. With ring_attention_zigzag the
// rank has chunk i of 2n from the front and chunk i from the back. With any other kind the rank has
// chunk i of n. shard_range makes the chunks, so n need not divide T.
Positions context_positions(size_t T, size_t n, size_t i, const AttentionKind *kind);

// ---- context_parallel.c ----
// Makes the blocks of a described model use attention of this kind over cp. Call this function
// before recompute(), which wraps the blocks. Returns this rank's positions, for Data.positions.
// Calls usage_error() if there are fewer positions than ranks, or, for Ulysses, fewer heads of key
// and value than ranks.
Positions context_parallel(Model *m, Comm *cp, const AttentionKind *kind);

// ---- 13_ring_self_attention.c (Li et al. 2021), 14_ulysses.c (Jacobs et al. 2023) ----
extern const AttentionKind ring_self_attention, ulysses_attention;

// ---- for 08_ring_attention.c, 13_ring_self_attention.c and 14_ulysses.c ----
// Returns the positions of a rank of h->cp.
static inline Positions context_positions_of(const AttentionHeads *h, size_t rank) {
    return context_positions(h->length, h->cp->size, rank, h->kind);
}
static inline size_t ring_next(const Comm *c) { return (c->rank + 1) % c->size; }
static inline size_t ring_previous(const Comm *c) { return (c->rank + c->size - 1) % c->size; }
// Returns the rank whose block this rank has after `step` hops. A hop takes a block to the next
// rank.
static inline size_t ring_owner(const Comm *c, size_t step) {
    return (c->rank + 2 * c->size - step) % c->size;
}

// Returns room for a block of the ring: k | v of the positions of rank `owner`, [B*T/N, 2A]. A
// counts the columns of k on this rank, which are fewer than those of q if heads are grouped.
static inline Tensor ring_block(const AttentionHeads *h, size_t owner, Element element,
                                Arena *room) {
    Positions p = context_positions_of(h, owner);
    size_t rows = h->B * positions_count(&p);
    return tensor_shaped(room, tensor_shape(rows, 2 * attention_key_columns(h), element));
}
// Returns room for dk | dv of a block. dk and dv are sums over all ranks, so they are reals in any
// storage.
static inline Tensor ring_sums(const AttentionHeads *h, size_t owner, Arena *room) {
    return ring_block(h, owner, REALS, room);
}
// Returns a copy of this rank's k | v in one contiguous tensor, which can be sent.
static inline Tensor ring_own_block(const AttentionHeads *h, Tensor qkv, Arena *room) {
    Tensor copy = ring_block(h, h->cp->rank, qkv.element, room);
    tensor_copy(copy, attention_keys_values(h, qkv));
    return copy;
}
#endif
