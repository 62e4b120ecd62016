// ulysses.c: DeepSpeed-Ulysses (Jacobs et al. 2023, section 3.1), one of the kinds of context
// parallelism that the experiment of 08_ring_attention.c compares.
//
// Holds: all parameters; outside attention T/N contiguous positions of each of B sequences; inside
//     attention all positions of H/N of the H heads.
// Sends: per layer forward an all-to-all of q, k, v, from [T/N positions, all heads] to [all
//     positions, H/N heads], and one of the output back. Backward sends the same two in reverse.
//     Of each of these eight tensors of B T C/N elements, a rank sends (N-1)/N.
// Saves: 1/N of the activations per rank. Attention runs as on one device, with fewer heads.
// Costs: 8(N-1)/N B T C/N elements sent per layer, N times less than tensor parallelism. N is at
//     most H. The parts of an all-to-all have equal size, so each part has room for the longest
//     chunk and the most heads.
#include "03_tensor_parallel/context_parallel.h"

// One exchange. rows [B*T/N, blocks * H * D] has this rank's positions, heads [B*T, blocks * H/N *
// D] its heads; blocks is 3 for q | k | v. to_heads: rows are sent and heads received, else the
// reverse. Attention of one head needs all positions; the rest of a block needs all heads.
static void exchange(const AttentionHeads *h, Tensor rows, Tensor heads, size_t blocks,
                     bool to_heads) {
    Comm *cp = h->cp;
    size_t all = range_size(h->heads), most_heads = ceil_div(all, cp->size);
    size_t most_rows = ceil_div(h->length, cp->size);
    Range my_heads = shard_range(all, cp->size, cp->rank);
    Range my_rows = context_positions_of(h, cp->rank).chunk[0];
    Arena room = arena(MEM_COMMUNICATION);
    size_t lines = h->B * blocks * most_rows, width = most_heads * h->D;
    Tensor out = tensor_new(&room, cp->size * lines, width);
    Tensor in = tensor_new(&room, cp->size * lines, width);
    tensor_fill(out, 0);
    for (int pass = 0; pass < 2; pass++) {                 // 0: fill `out`; 1: empty `in`
        for (size_t j = 0; j < cp->size; j++) {
            Range their_heads = shard_range(all, cp->size, j);
            Range their_rows = context_positions_of(h, j).chunk[0];
            for (size_t i = 0; i < h->B * blocks; i++) {
                size_t sequence = i / blocks, block = i % blocks, D = h->D;
                // This rank's positions of the other rank's heads, and the reverse.
                size_t first = (block * all + their_heads.lo) * D;
                size_t own = block * range_size(my_heads) * D;
                Tensor r = tensor_row_range(rows, sequence * h->T, (sequence + 1) * h->T);
                Tensor t = tensor_row_range(heads, sequence * h->length + their_rows.lo,
                                            sequence * h->length + their_rows.hi);
                r = tensor_col_range(r, first, first + range_size(their_heads) * D);
                t = tensor_col_range(t, own, own + range_size(my_heads) * D);
                size_t line = (j * h->B * blocks + i) * most_rows;
                bool of_rows = to_heads == (pass == 0);
                size_t count = of_rows ? range_size(my_rows) : range_size(their_rows);
                Tensor part = tensor_row_range(pass == 0 ? out : in, line, line + count);
                part = tensor_col_range(part, 0, (of_rows ? r : t).cols);
                if (pass == 0) tensor_copy(part, of_rows ? r : t);
                else tensor_copy(of_rows ? r : t, part);
            }
        }
        if (pass == 0) comm_all_to_all(cp, in, out);       // (N-1)/N of blocks * B T A/N elements
    }
    arena_free(&room);
}

// This rank's heads with all positions: attention as on one device.
static AttentionHeads my_heads(const AttentionHeads *h) {
    AttentionHeads mine = *h;
    Range r = shard_range(range_size(h->heads), h->cp->size, h->cp->rank);
    mine.heads = (Range){ h->heads.lo + r.lo, h->heads.lo + r.hi };
    mine.T = h->length;
    mine.position = NULL;
    mine.kind = &attention_blockwise;
    return mine;
}
// Saved as attention_forward() wants it: S_QKV and S_MIX have all positions of this rank's heads.
static Saved inside(const Saved *s) {
    Saved inner = *s;
    inner.t[S_QKV] = s->t[S_HEADS_QKV];
    inner.t[S_MIX] = s->t[S_HEADS_MIX];
    return inner;
}

static void forward(const AttentionHeads *h, Saved *s) {
    AttentionHeads mine = my_heads(h);
    size_t columns = range_size(mine.heads) * h->D;
    saved_tensor(s, S_HEADS_QKV, h->B * h->length, 3 * columns);       // [B*T, 3A/N]
    saved_tensor(s, S_HEADS_MIX, h->B * h->length, columns);           // [B*T, A/N]
    exchange(h, s->t[S_QKV], s->t[S_HEADS_QKV], 3, true);
    Saved inner = inside(s);
    attention_forward(&mine, &inner);
    s->arena = inner.arena;                                // attention_forward() has kept lse there
    s->t[S_LSE] = inner.t[S_LSE];
    exchange(h, s->t[S_MIX], s->t[S_HEADS_MIX], 1, false);
}
static void backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    AttentionHeads mine = my_heads(h);
    Saved inner = inside(s);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d_in = tensor_new(&scratch, h->B * h->length, s->t[S_HEADS_MIX].cols);
    Tensor d_out = tensor_new(&scratch, h->B * h->length, s->t[S_HEADS_QKV].cols);
    exchange(h, dmix, d_in, 1, true);
    attention_backward(&mine, d_out, d_in, &inner);
    exchange(h, dqkv, d_out, 3, false);
    arena_free(&scratch);
}

const AttentionKind ulysses_attention = { .name = "Ulysses", .forward = forward,
                                          .backward = backward };
