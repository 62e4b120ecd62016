// attention.h: attention in blocks of queries and keys. A block's scores live while it is worked
// on; what is kept of a softmax is one element a row, lse, the logarithm of its sum of
// exponentials. So memory grows with T, not with T * T (Milakov and Gimelshein 2018; Rabe and
// Staats 2021; Dao et al. 2022, algorithms 1 and 4).
//
// Queries and keys may be any chunks of a sequence: ring attention has its own queries and the keys
// of another rank.
#ifndef ATTENTION_H
#define ATTENTION_H
#include "common/model/layer.h"

// All of a sequence on one rank. Backward computes the scores again: five products, where the plain
// one has four.
extern const AttentionKind attention_blockwise;

// The columns of q|k|v [rows, 3A], or of its gradient: queries [rows, A]; keys and values [rows,
// 2A].
static inline Tensor attention_queries(Tensor qkv) {
    return tensor_col_range(qkv, 0, qkv.cols / 3);
}
static inline Tensor attention_keys_values(Tensor qkv) {
    return tensor_col_range(qkv, qkv.cols / 3, qkv.cols);
}

// Which positions of its sequences a rank has: at most two chunks, ascending. Its rows of a
// sequence have their order.
enum { MOST_CHUNKS = 2 };
typedef struct {
    size_t n;
    Range chunk[MOST_CHUNKS];
} Positions;
size_t positions_count(const Positions *p);

// A tile: neighbouring positions, of queries and of keys. No tile has more than ATTENTION_TILE of
// either, so that the scores of one sequence's tile are [heads * tile, tile] at most. A tile whose
// keys all come after its queries is left out; one on the diagonal is computed as its triangle.
enum { ATTENTION_TILE = 64 };

// S_MIX and S_LSE [B*T, heads] of no keys at all; then of more and more keys, kv [B*Tk, 2A]: k | v.
// merge joins out and lse of the keys so far with those of other keys, a tile at a time:
// op_merge_heads, or a lesson that shows it.
typedef void MergeHeads(Tensor out, Tensor lse, Tensor out_more, Tensor lse_more);
void attention_begin(const AttentionHeads *h, Saved *s);
void attention_attend(const AttentionHeads *h, const Positions *queries, Tensor kv,
                      const Positions *keys, Saved *s, MergeHeads *merge);
// Adds what these keys do to dq [B*T, A] and to their own gradient, dkv [B*Tk, 2A]. dot [B*T,
// heads] is op_heads_dot of S_MIX and dmix. All keys must be in S_LSE.
void attention_attend_backward(const AttentionHeads *h, const Positions *queries, Tensor dq,
                               Tensor dkv, Tensor kv, const Positions *keys, Tensor dmix,
                               Tensor dot, const Saved *s);
#endif
