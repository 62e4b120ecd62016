// context_parallel.h: context parallelism. The ranks of a group, cp, have different positions of
// the same sequences. All of a GPT but its attention works on one position at a time, so only
// attention communicates. Parameters are whole on every rank, and their gradients are summed over
// the group, as in data parallelism.
//
//     kind                     elements sent per layer and rank    keeps of the scores
//     ring_attention           (6N-4) bsh/N                        one element per query and head
//     ring_attention_zigzag    the same, equal work on all ranks   the same
//     ring_self_attention      8(N-1) bsh/N                        [b a s/N, s]: rows of all keys
//     ulysses_attention        8(N-1)/N bsh/N                      one per query and head of a rank
#ifndef CONTEXT_PARALLEL_H
#define CONTEXT_PARALLEL_H
#include "common/model/data.h"
#include "common/model/model.h"

// ---- 08_ring_attention.c ----
extern const AttentionKind ring_attention, ring_attention_zigzag;
// Which of a sequence's T positions rank i of n has: the i-th of n chunks; zigzag: the i-th and the
// last but i of 2n. Chunks are shard_range's: T need not divide.
Positions context_positions(size_t T, size_t n, size_t i, const AttentionKind *kind);
// Gives the blocks of a described model this attention over cp; before recompute(). Returns which
// positions of each sequence this rank has: for Data.positions. usage_error() where there are fewer
// positions than ranks, or, for Ulysses, fewer heads.
Positions context_parallel(Model *m, Comm *cp, const AttentionKind *kind);

// ---- ring_self_attention.c (Li et al. 2021), ulysses.c (Jacobs et al. 2023) ----
extern const AttentionKind ring_self_attention, ulysses_attention;

// ---- pieces that they share ----
Positions context_positions_of(const AttentionHeads *h, size_t rank);     // of a rank of h->cp
static inline size_t ring_next(const Comm *c) { return (c->rank + 1) % c->size; }
static inline size_t ring_previous(const Comm *c) { return (c->rank + c->size - 1) % c->size; }
// Whose block is here after `step` hops? Blocks move to the next rank.
static inline size_t ring_owner(const Comm *c, size_t step) {
    return (c->rank + 2 * c->size - step) % c->size;
}
#endif
