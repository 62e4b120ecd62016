// ranks: 4
// level: extra
// question: Can ranks exchange positions for heads, so that each rank computes its heads as one device does?
// vary: CHUNK 64|80|96, D 4|6, ranks 2|3|4|5|6
//
// Holds: each rank has all parameters. Outside attention a rank has T/N contiguous positions of
//     each of B sequences, inside attention all positions of H/N of the H heads.
// Sends: in forward of a layer an all-to-all takes q, k and v from [T/N positions, all heads] to
//     [all positions, H/N heads]. A second all-to-all takes the output back. Backward makes the
//     reverse of both calls, for the gradients. A rank sends (N-1)/N of each of these eight tensors
//     (q, k, v, the output and their gradients) of B T C/N elements.
// Saves: a rank keeps 1/N of the activations. Attention runs as on one device, with fewer heads.
// Costs: each rank sends 8(N-1)/N B T C/N elements per layer, N times less than tensor parallelism.
//     N is at most H, or with grouped heads at most the number of heads of k and v. All parts of an
//     all-to-all get the same size here, with room for the longest chunk and the most heads.
// Jacobs et al. 2023 (arXiv 2309.14509), section 3: DeepSpeed-Ulysses. Left out: heads of k and v
// that are copied so that N may be larger; Ulysses inside a ring.
#include "03_tensor_parallel/context_parallel.h"

// Returns the number of heads of k and of v on this rank. With grouped heads k has fewer heads than
// q, and q has `ratio` blocks, each as wide as k.
static size_t key_heads(const AttentionHeads *h) {
    return range_size(h->heads) / attention_ratio(h);
}

// Returns piece i of `rows` for rank j: this rank's positions of rank j's heads. Each sequence has
// `blocks` pieces. Without grouped heads these are q, k and v, or one piece of the output. rows is
// [B*T/N, blocks * H * D], where H counts the heads of k.
static Tensor part_of_rows(const AttentionHeads *h, Tensor rows, size_t blocks, size_t j,
                           size_t i) {
    size_t all = key_heads(h), sequence = i / blocks, block = i % blocks;
    Range heads = shard_range(all, h->cp->size, j);
    Tensor positions = tensor_row_range(rows, sequence * h->T, (sequence + 1) * h->T);
    size_t first = block * all + heads.lo; // the piece's first head, for k or v
    if (block < attention_ratio(h))        // for q or the output: `ratio` heads share k and v
        first = attention_ratio(h) * heads.lo + block * range_size(heads);
    return tensor_col_range(positions, first * h->D, (first + range_size(heads)) * h->D);
}
// Returns piece i of `heads` [B*T, blocks * H/N * D] for rank j: rank j's positions of this rank's
// heads.
static Tensor part_of_heads(const AttentionHeads *h, Tensor heads, size_t blocks, size_t j,
                            size_t i) {
    size_t sequence = i / blocks, block = i % blocks;
    Range own = shard_range(key_heads(h), h->cp->size, h->cp->rank);
    Range rows = context_positions_of(h, j).chunk[0];
    Tensor positions =
        tensor_row_range(heads, sequence * h->length + rows.lo, sequence * h->length + rows.hi);
    size_t width = range_size(own) * h->D;
    return tensor_col_range(positions, block * width, (block + 1) * width);
}

// Runs one exchange. If to_heads, sends the pieces of `rows` and receives the pieces of `heads`.
// Otherwise sends the pieces of `heads` and receives the pieces of `rows`. Attention of one head
// needs all positions; the rest of a block needs all heads.
static void exchange(const AttentionHeads *h, Tensor rows, Tensor heads, size_t blocks,
                     bool to_heads) {
    Comm *cp = h->cp;
    const size_t most_rows = ceil_div(h->length, cp->size), pieces = h->B * blocks;
    const size_t width = ceil_div(key_heads(h), cp->size) * h->D;
    Arena room = arena(MEM_COMMUNICATION);
    const Shape all = tensor_shape(cp->size * pieces * most_rows, width, rows.element);
    Tensor out = tensor_shaped(&room, all), in = tensor_shaped(&room, all);
    // EXERCISE 03.14a (5 points): from positions to heads, and back. `out` is sent, and `in` is
    // received. Both tensors have room for cp->size parts. Part j of `out` goes to rank j, and part
    // j of `in` comes from rank j. A part has `pieces` pieces of most_rows rows each. Fill `out`
    // with zeros, because pieces may be smaller than their room. Copy piece i for rank j into the
    // first rows and columns of its room: part_of_rows(h, rows, blocks, j, i) if to_heads, else
    // part_of_heads(h, heads, blocks, j, i). Make ONE comm_all_to_all. Then copy the pieces out of
    // `in`, to the other of the two.
    tensor_fill(out, 0);
    for (size_t j = 0; j < cp->size; j++)
        for (size_t i = 0; i < pieces; i++) {
            Tensor from = to_heads ? part_of_rows(h, rows, blocks, j, i)
                                   : part_of_heads(h, heads, blocks, j, i);
            size_t line = (j * pieces + i) * most_rows;
            Tensor slot = tensor_row_range(out, line, line + from.rows);
            tensor_copy(tensor_col_range(slot, 0, from.cols), from);
        }
    comm_all_to_all(cp, in, out); // sends (N-1)/N of the elements of `rows`
    for (size_t j = 0; j < cp->size; j++)
        for (size_t i = 0; i < pieces; i++) {
            Tensor to = to_heads ? part_of_heads(h, heads, blocks, j, i)
                                 : part_of_rows(h, rows, blocks, j, i);
            size_t line = (j * pieces + i) * most_rows;
            Tensor slot = tensor_row_range(in, line, line + to.rows);
            tensor_copy(to, tensor_col_range(slot, 0, to.cols));
        }
    // END
    arena_free(&room);
}

// Returns this rank's heads with all positions, for attention as on one device.
static AttentionHeads local_heads(const AttentionHeads *h) {
    AttentionHeads local = *h;
    Range r = shard_range(key_heads(h), h->cp->size, h->cp->rank);
    size_t ratio = attention_ratio(h);
    local.heads = (Range){ h->heads.lo + ratio * r.lo, h->heads.lo + ratio * r.hi };
    local.theta = 0; // S_QKV is rotated already
    local.T = h->length;
    local.position = NULL;
    local.kind = &attention_blockwise;
    return local;
}
// Returns the Saved that attention_forward() reads and writes. In this Saved S_QKV and S_MIX have
// all positions of this rank's heads.
static Saved inside(const Saved *s) {
    Saved inner = *s;
    inner.t[S_QKV] = s->t[S_HEADS_QKV];
    inner.t[S_MIX] = s->t[S_HEADS_MIX];
    return inner;
}

static void forward(const AttentionHeads *h, Saved *s) {
    AttentionHeads local = local_heads(h);
    size_t columns = range_size(local.heads) * h->D;
    size_t qkv = columns + 2 * attention_key_columns(&local);
    size_t ratio = attention_ratio(h);
    saved_tensor(s, S_HEADS_QKV, h->B * h->length, qkv);     // [B*T, 3A/N]
    saved_tensor(s, S_HEADS_MIX, h->B * h->length, columns); // [B*T, A/N]
    exchange(h, s->t[S_QKV], s->t[S_HEADS_QKV], ratio + 2, true);
    Saved inner = inside(s);
    attention_forward(&local, &inner);
    s->arena = inner.arena; // attention_forward() has kept lse in this arena
    s->t[S_LSE] = inner.t[S_LSE];
    exchange(h, s->t[S_MIX], s->t[S_HEADS_MIX], ratio, false);
}
static void backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    AttentionHeads local = local_heads(h);
    Saved inner = inside(s);
    size_t ratio = attention_ratio(h);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor d_in = tensor_like(&scratch, s->t[S_HEADS_MIX]);
    Tensor d_out = tensor_like(&scratch, s->t[S_HEADS_QKV]);
    exchange(h, dmix, d_in, ratio, true);
    attention_backward(&local, d_out, d_in, &inner);
    exchange(h, dqkv, d_out, ratio + 2, false);
    arena_free(&scratch);
}

const AttentionKind ulysses_attention = { .name = "Ulysses",
                                          .forward = forward,
                                          .backward = backward };
