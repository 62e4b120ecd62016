// attention.h: declares blockwise attention, which works through tiles of queries and keys. The
// scores of a tile are temporary. For each row of a softmax, forward keeps only lse, the logarithm
// of the row's sum of exponentials. So memory grows with T, not with T * T (Milakov and Gimelshein
// 2018; Rabe and Staats 2021; Dao et al. 2022, algorithms 1 and 4).
//
// Queries and keys may be chunks of a sequence. In ring attention the queries are local, and the
// keys may come from another rank.
#ifndef ATTENTION_H
#define ATTENTION_H
#include "common/model/layer.h"

// attention_blockwise is blockwise attention of whole sequences on one rank. Backward computes the
// scores again, so backward has five products. The backward of plain attention has four.
extern const AttentionKind attention_blockwise;

// attention_queries() returns the queries [rows, A] of q|k|v [rows, A + 2K], or of its gradient.
// attention_keys_values() returns the keys and values [rows, 2K]. A is the number of columns of
// this rank's query heads. K is A, or with grouped heads A / ratio.
static inline Tensor attention_queries(const AttentionHeads *h, Tensor qkv) {
    return attention_part(h, qkv, 0);
}
static inline Tensor attention_keys_values(const AttentionHeads *h, Tensor qkv) {
    return tensor_col_range(qkv, range_size(h->heads) * h->D, qkv.cols);
}

// Positions has the positions that a rank holds of each sequence, in at most MOST_CHUNKS chunks.
// The chunks are in ascending order, and the rank's rows of a sequence have the same order.
enum { MOST_CHUNKS = 2 };
typedef struct {
    size_t n;
    Range chunk[MOST_CHUNKS];
} Positions;
size_t positions_count(const Positions *p);

// A tile is a range of neighbouring query positions times a range of key positions, each at most
// ATTENTION_TILE long. So the scores of a tile need at most [heads * ATTENTION_TILE,
// ATTENTION_TILE] per sequence. A tile whose keys all come after its queries is left out. A tile on
// the diagonal is computed as a triangle.
enum { ATTENTION_TILE = 64 };

// A tile's contribution to an output or to a gradient is added in reals, and the sum is rounded
// once at the end. attention_sums returns the memory for the sum that belongs to t. This memory is
// t, or a tensor of reals with the shape of t if t is stored in 16 bits. attention_round rounds the
// sum to t.
Tensor attention_sums(Tensor t, Arena *scratch);
void attention_round(Tensor t, Tensor sums);
// attention_begin allocates S_LSE [B*T, heads], filled with -inf, because there is no key yet.
// attention_begin returns `out`, the sums of S_MIX, filled with 0. attention_attend adds the
// contribution of the keys and values kv [B*Tk, 2K], k | v, to `out` and S_LSE. merge joins the
// results of the earlier tiles with the results of one more tile. merge is op_merge_heads, or a
// lesson's own function.
typedef void MergeHeads(Tensor out, Tensor lse, Tensor out_more, Tensor lse_more);
Tensor attention_begin(const AttentionHeads *h, Saved *s, Arena *scratch);
void attention_attend(const AttentionHeads *h, const Positions *queries, Tensor kv,
                      const Positions *keys, Tensor out, const Saved *s, MergeHeads *merge);
// Adds the contribution of the keys in kv to dq [B*T, A], and the gradient of kv to dkv [B*Tk, 2K].
// dq and dkv are in reals. dot [B*T, heads] is op_heads_dot of S_MIX and dmix. S_LSE must cover all
// keys.
void attention_attend_backward(const AttentionHeads *h, const Positions *queries, Tensor dq,
                               Tensor dkv, Tensor kv, const Positions *keys, Tensor dmix,
                               Tensor dot, const Saved *s);
#endif
