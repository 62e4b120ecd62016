// context_costs.h: the predictions of the experiment of 08_ring_attention.c for the four kinds of
// context parallelism: bytes sent, elements kept, and the time of attention alone.
#ifndef CONTEXT_COSTS_H
#define CONTEXT_COSTS_H
#include "common/comm/comm.h"

enum { RING, ZIGZAG, RSA, ULYSSES, KINDS };

// N ranks cut B sequences of T positions. Rank `rank` has this many positions of each.
size_t context_chunk(int kind, size_t T, size_t n, size_t rank);
// key_heads: of key and value, which groups of heads share. D: columns of one head
typedef struct { size_t B, T, heads, key_heads, D; } ContextLayer;
// Bytes that a rank sends in attention of one layer, forward and backward.
double context_layer_bytes(const Comm *cp, int kind, ContextLayer z);

// ---- attention alone: one sequence of n * chunk positions ----
typedef struct { size_t chunk, heads, D; } ContextSizes;
// Elements that attention keeps besides q, k, v and out, and elements of message buffers, their
// peak.
size_t context_kept(int kind, ContextSizes z, size_t n, size_t rank);
size_t context_buffers(int kind, ContextSizes z, size_t n);
// The most positions per rank for which q, k, v, out, kept elements and buffers fit in `bytes`.
size_t context_longest_chunk(int kind, ContextSizes z, size_t n, size_t bytes);
// RING and ZIGZAG, played step by step: the time of the last rank, and all ranks' computing, in ps.
typedef struct { double step, busy; } RingTime;
RingTime context_ring_time(int kind, ContextSizes z, size_t n, bool backward);
// RSA and ULYSSES: the time of one pass in ps, a formula.
double context_pass_time(int kind, ContextSizes z, size_t n, bool backward);
#endif
