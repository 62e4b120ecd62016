// collectives.h: four ways to add a tensor over all ranks, by hand, from sends and receives. Afterwards every rank
// holds the sum. S: bytes of the tensor; a chunk is a part of it by shard_range, so any size can be cut.
#ifndef COLLECTIVES_H
#define COLLECTIVES_H
#include "common/comm/comm.h"

// Patarasuk and Yuan 2009: everybody only ever talks to its two neighbours. In N-1 steps a chunk goes around and
// everybody adds its own; in N-1 more steps the finished chunk goes around. 2 (N-1) messages of S / N from every rank.
void ring_all_reduce(Comm *c, Tensor t);

// Rank 0 takes everybody's tensor, adds them in rank order, and sends everybody the sum. Rank 0: (N-1) S in, (N-1) S
// out.
void gather_broadcast_all_reduce(Comm *c, Tensor t);

// A binomial tree, up and down: log2 N rounds (rounded up) of whole tensors each way.
void tree_all_reduce(Comm *c, Tensor t);

// Rabenseifner 2004: partners swap halves, then halves of halves, until everybody owns a chunk of the sum; then back.
// 2 log2 N steps, and the bytes of a ring. Where N is no power of two, the ranks beyond it first send all they have to
// a rank below it, and get the result at the end.
void halving_doubling_all_reduce(Comm *c, Tensor t);
#endif
