// attention.c: computes attention in tiles of queries and keys, forward and backward.
#include "common/model/attention.h"
#include <math.h>
#include <stdlib.h>

// ---- tiles ----

size_t positions_count(const Positions *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) n += range_size(p->chunk[i]);
    return n;
}
static size_t tiles_of(Range chunk) { return ceil_div(range_size(chunk), ATTENTION_TILE); }
static Range tile_of(Range chunk, size_t i) {
    size_t lo = chunk.lo + i * ATTENTION_TILE;
    return (Range){ lo, lo + ATTENTION_TILE < chunk.hi ? lo + ATTENTION_TILE : chunk.hi };
}

// `query` and `key` are ranges of positions. query_row and key_row are the first rows of these
// ranges, counted from the first row of a sequence in q and in kv. Rows and positions differ if q
// or kv holds only a part of a sequence.
typedef struct {
    Range query, key;
    size_t query_row, key_row;
} Tile;

// Calls visit for each tile that the causal mask leaves, in a fixed order. Chunks of queries and
// keys must be equal or disjoint, so that a tile on the diagonal is a square.
static void attention_tiles(const Positions *queries, const Positions *keys,
                            void (*visit)(void *context, const Tile *t), void *context) {
    size_t query_row = 0, key_row;
    for (size_t i = 0; i < queries->n; query_row += range_size(queries->chunk[i++]))
        for (size_t k = 0; k < tiles_of(queries->chunk[i]); k++) {
            Range query = tile_of(queries->chunk[i], k);
            key_row = 0;
            for (size_t j = 0; j < keys->n; key_row += range_size(keys->chunk[j++]))
                for (size_t l = 0; l < tiles_of(keys->chunk[j]); l++) {
                    Range key = tile_of(keys->chunk[j], l);
                    if (key.lo >= query.hi) continue; // every key comes after every query
                    if (key.hi > query.lo && key.lo != query.lo)
                        fault("attention of positions %zu to %zu to keys %zu to %zu: chunks are "
                              "the same or apart",
                              query.lo, query.hi, key.lo, key.hi);
                    visit(context, &(Tile){ query, key, query_row + k * ATTENTION_TILE,
                                            key_row + l * ATTENTION_TILE });
                }
        }
}

// ---- the arguments of a tile ----

typedef struct {
    const AttentionHeads *h;
    size_t Tq, Tk;            // rows of a sequence in q, and in kv
    size_t A, K;              // columns of this rank's heads of the query, and of the key
    Tensor q, kv, o, lse;     // o: only in forward
    Tensor dq, dkv, d_o, dot; // only in backward
    const int *position;      // 0, 1, 2, ..., h->length - 1
    MergeHeads *merge;        // only in forward
} Attending;

static Tensor rows(Tensor t, size_t sequence, size_t T, size_t row, Range positions) {
    size_t lo = sequence * T + row;
    return tensor_row_range(t, lo, lo + range_size(positions));
}
static Tensor local_rows(const Attending *a, Tensor t, size_t sequence, const Tile *tile) {
    return rows(t, sequence, a->Tq, tile->query_row, tile->query);
}
// Returns the rows of a tile's keys (which = 0) or values (which = 1).
static Tensor their_rows(const Attending *a, Tensor t, size_t sequence, const Tile *tile,
                         size_t which) {
    Tensor both = rows(t, sequence, a->Tk, tile->key_row, tile->key);
    return tensor_col_range(both, which * a->K, (which + 1) * a->K);
}
static real score_scale(const AttentionHeads *h) { return (real)(1 / sqrt((double)h->D)); }
static HeadsPlace place_of(const Attending *a, const Tile *t) {
    return (HeadsPlace){ 1, range_size(a->h->heads), a->position + t->query.lo,
                         a->position + t->key.lo };
}
static void drop(const Attending *a, size_t sequence, const Tile *t, Tensor y, Tensor x) {
    const AttentionHeads *h = a->h;
    op_dropout_heads(y, x, h->key, h->drop, h->first_sequence + sequence, h->heads.lo,
                     place_of(a, t));
}
typedef void Product(Tensor to, Tensor a, Tensor b, size_t B, size_t heads);
static Product *product(const Tile *t, Product *whole, Product *triangle) {
    return t->key.lo == t->query.lo ? triangle : whole;
}

static int *count_up(Arena *scratch, size_t n) {
    int *device = ints_new(scratch, n), *host = host_alloc((n + 1) * sizeof *host);
    for (size_t i = 0; i < n; i++) host[i] = (int)i;
    ints_upload(device, host, n);
    free(host);
    return device;
}
static Attending attending(const AttentionHeads *h, const Positions *queries, Tensor kv,
                           const Positions *keys, const Saved *s, Arena *scratch) {
    size_t A = range_size(h->heads) * h->D;
    if (positions_count(queries) != h->T || kv.rows != h->B * positions_count(keys))
        fault("attention: %zu positions for %zu rows, and %zu keys a sequence for %zu rows of %zu "
              "sequences",
              positions_count(queries), h->T, positions_count(keys), kv.rows, h->B);
    return (Attending){ .h = h,
                        .Tq = h->T,
                        .Tk = positions_count(keys),
                        .A = A,
                        .K = attention_key_columns(h),
                        .kv = kv,
                        .q = tensor_col_range(s->t[S_QKV], 0, A),
                        .lse = s->t[S_LSE],
                        .position = count_up(scratch, h->length) };
}

// ---- forward: scores, their softmax, the product with v, a merge ----

static void attend_tile(void *attending, const Tile *t) {
    const Attending *a = attending;
    size_t heads = range_size(a->h->heads), n = range_size(t->query), m = range_size(t->key);
    for (size_t i = 0; i < a->h->B; i++) {
        Arena scratch = arena(MEM_WORKSPACE);
        Tensor p = tensor_new(&scratch, heads * n, m), o = tensor_new(&scratch, n, a->A);
        Tensor lse = tensor_new(&scratch, n, heads), q = local_rows(a, a->q, i, t);
        Tensor k = attention_repeat(a->h, their_rows(a, a->kv, i, t, 0), &scratch),
               v = attention_repeat(a->h, their_rows(a, a->kv, i, t, 1), &scratch);
        product(t, op_heads_scores, op_heads_scores_triangle)(p, q, k, 1, heads);
        op_causal_softmax_lse(p, lse, p, score_scale(a->h), place_of(a, t));
        drop(a, i, t, p, p);
        product(t, op_heads_mix, op_heads_mix_triangle)(o, p, v, 1, heads);
        a->merge(local_rows(a, a->o, i, t), local_rows(a, a->lse, i, t), o, lse);
        arena_free(&scratch);
    }
}

Tensor attention_sums(Tensor t, Arena *scratch) {
    return element_is_half(t.element) ? tensor_new(scratch, t.rows, t.cols) : t;
}
void attention_round(Tensor t, Tensor sums) {
    if (element_is_half(t.element)) tensor_copy(t, sums);
}
Tensor attention_begin(const AttentionHeads *h, Saved *s, Arena *scratch) {
    Tensor out = attention_sums(s->t[S_MIX], scratch);
    saved_reals(s, S_LSE, h->B * h->T, range_size(h->heads));
    tensor_fill(out, 0);
    tensor_fill(s->t[S_LSE], -(real)HUGE_VAL);
    return out;
}
void attention_attend(const AttentionHeads *h, const Positions *queries, Tensor kv,
                      const Positions *keys, Tensor out, const Saved *s, MergeHeads *merge) {
    Arena scratch = arena(MEM_WORKSPACE);
    Attending a = attending(h, queries, kv, keys, s, &scratch);
    tensor_need_reals("attention in blocks", "its sum over the keys", out);
    a.o = out;
    a.merge = merge;
    attention_tiles(queries, keys, attend_tile, &a);
    arena_free(&scratch);
}

// ---- backward: scores again, then four products ----

static void attend_tile_backward(void *attending, const Tile *t) {
    const Attending *a = attending;
    size_t heads = range_size(a->h->heads), n = range_size(t->query), m = range_size(t->key);
    real scale = score_scale(a->h);
    for (size_t i = 0; i < a->h->B; i++) {
        Arena scratch = arena(MEM_WORKSPACE);
        Tensor p = tensor_new(&scratch, heads * n, m), dp = tensor_new(&scratch, heads * n, m);
        Tensor dq = tensor_new(&scratch, n, a->A);
        Tensor dk = tensor_new(&scratch, m, a->A), dv = tensor_new(&scratch, m, a->A);
        Tensor q = local_rows(a, a->q, i, t), d_o = local_rows(a, a->d_o, i, t);
        Tensor k = attention_repeat(a->h, their_rows(a, a->kv, i, t, 0), &scratch),
               v = attention_repeat(a->h, their_rows(a, a->kv, i, t, 1), &scratch);
        Product *scores = product(t, op_heads_scores, op_heads_scores_triangle);
        Product *mix = product(t, op_heads_mix, op_heads_mix_triangle);
        Product *mix_t = product(t, op_heads_mix_t, op_heads_mix_t_triangle);
        scores(p, q, k, 1, heads);
        op_causal_probabilities(p, p, local_rows(a, a->lse, i, t), scale, place_of(a, t));
        drop(a, i, t, dp, p);
        mix_t(dv, dp, d_o, 1, heads); // dV = dropout(P)^T dO
        scores(dp, d_o, v, 1, heads); // d(dropout(P)) = dO V^T
        drop(a, i, t, dp, dp);
        op_causal_scores_backward(dp, p, dp, local_rows(a, a->dot, i, t), scale,
                                  place_of(a, t)); // dS
        mix(dq, dp, k, 1, heads);                  // dQ = dS K
        mix_t(dk, dp, q, 1, heads);                // dK = dS^T Q
        op_add(local_rows(a, a->dq, i, t), local_rows(a, a->dq, i, t), dq);
        dk = attention_fold(a->h, dk, &scratch);
        dv = attention_fold(a->h, dv, &scratch);
        op_add(their_rows(a, a->dkv, i, t, 0), their_rows(a, a->dkv, i, t, 0), dk);
        op_add(their_rows(a, a->dkv, i, t, 1), their_rows(a, a->dkv, i, t, 1), dv);
        arena_free(&scratch);
    }
}
void attention_attend_backward(const AttentionHeads *h, const Positions *queries, Tensor dq,
                               Tensor dkv, Tensor kv, const Positions *keys, Tensor dmix,
                               Tensor dot, const Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Attending a = attending(h, queries, kv, keys, s, &scratch);
    tensor_need_reals("attention in blocks", "the gradient of its queries", dq);
    tensor_need_reals("attention in blocks", "the gradient of its keys", dkv);
    a.dq = dq;
    a.dkv = dkv;
    a.d_o = dmix;
    a.dot = dot;
    attention_tiles(queries, keys, attend_tile_backward, &a);
    arena_free(&scratch);
}

// ---- a whole sequence on this rank ----

static Positions whole(const AttentionHeads *h) { return (Positions){ 1, { { 0, h->T } } }; }

static void blockwise_forward(const AttentionHeads *h, Saved *s) {
    Positions all = whole(h);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor out = attention_begin(h, s, &scratch);
    attention_attend(h, &all, attention_keys_values(h, s->t[S_QKV]), &all, out, s, op_merge_heads);
    attention_round(s->t[S_MIX], out);
    arena_free(&scratch);
}
static void blockwise_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    Positions all = whole(h);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor dot = tensor_new(&scratch, dmix.rows, range_size(h->heads));
    op_heads_dot(dot, s->t[S_MIX], dmix);
    Tensor dq = attention_sums(attention_queries(h, dqkv), &scratch);
    Tensor dkv = attention_sums(attention_keys_values(h, dqkv), &scratch);
    tensor_fill(dq, 0);
    tensor_fill(dkv, 0);
    attention_attend_backward(h, &all, dq, dkv, attention_keys_values(h, s->t[S_QKV]), &all, dmix,
                              dot, s);
    attention_round(attention_queries(h, dqkv), dq);
    attention_round(attention_keys_values(h, dqkv), dkv);
    arena_free(&scratch);
}
const AttentionKind attention_blockwise = { .name = "blockwise",
                                            .forward = blockwise_forward,
                                            .backward = blockwise_backward };
