// ranks: 4
// level: extra
// question: Softmax needs whole rows of scores. Can a rank have them, if the keys are spread over all ranks?
// vary: CHUNK 64|80|96, HEADS 6|8|10, D 4|6
//
// Holds: each rank has all parameters, T/N contiguous positions of each of B sequences, and all
//     scores of its queries, [B H T/N, T].
// Sends: in forward of a layer k, and then v, go round the ring of ranks. In backward v goes round
//     again for dP, and k for dQ. Each round has N-1 hops of B T C/N elements. Backward also makes
//     two all-reduces of B T C elements, for dK and dV.
// Saves: a rank keeps 1/N of the activations, but its scores grow with T^2/N.
// Costs: each rank sends 8(N-1) B T C/N elements per layer. Every score is computed, even if
//     the causal mask hides it. Per step the caller all-reduces all gradients.
// Attention's output and its gradients must equal those of one device within rounding.
// Li, Xue, Baranwal, Li and You 2021 (arXiv 2105.13120), section 3: Ring Self-Attention. The
// paper has no mask. Ring attention (08_ring_attention.c) merges partial results instead, so ring
// attention keeps no scores.
#include "03_tensor_parallel/context_parallel.h"
#include <math.h>

static HeadsPlace place_of(const AttentionHeads *h) { // own queries, and the keys of all positions
    return (HeadsPlace){ h->B, range_size(h->heads), h->position, NULL };
}
static real score_scale(const AttentionHeads *h) { return (real)(1 / sqrt((double)h->D)); }
static void drop(const AttentionHeads *h, Tensor y, Tensor x) {
    op_dropout_heads(y, x, h->key, h->drop, h->first_sequence, h->heads.lo, place_of(h));
}

// Sends x, this rank's keys or values [B*T/N, K], round the ring, because every query needs the
// rows of every rank. Without grouped heads K is A. visit() gets each rank's rows, and the columns
// of the scores that belong to these rows.
typedef void Visit(const AttentionHeads *h, Tensor scores, Tensor other, Tensor t);
static void round_the_ring(const AttentionHeads *h, Tensor x, Tensor scores, Tensor other,
                           Visit *visit) {
    Comm *cp = h->cp;
    Arena room[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Tensor here = tensor_like(&room[0], x), coming = { 0 };
    tensor_copy(here, x);
    for (size_t k = 0; k < cp->size; k++) {
        Range keys = context_positions_of(h, ring_owner(cp, k)).chunk[0];
        Request *leaves = NULL, *arrives = NULL;
        if (k + 1 < cp->size) {
            Range next = context_positions_of(h, ring_owner(cp, k + 1)).chunk[0];
            coming = tensor_shaped(&room[(k + 1) % 2],
                                   tensor_shape(h->B * range_size(next), x.cols, x.element));
            leaves = comm_start_send(cp, here, ring_next(cp)); // B T/N A elements
            arrives = comm_start_recv(cp, coming, ring_previous(cp));
        }
        visit(h, tensor_col_range(scores, keys.lo, keys.hi), other, here);
        comm_wait(leaves);
        comm_wait(arrives);
        arena_free(&room[k % 2]);
        here = coming;
    }
}
// Sets scores to the product of queries and keys^T. Forward computes q k^T, and backward dO v^T.
static void score(const AttentionHeads *h, Tensor scores, Tensor queries, Tensor keys) {
    Arena scratch = arena(MEM_WORKSPACE);
    op_heads_scores(scores, queries, attention_repeat(h, keys, &scratch), h->B,
                    range_size(h->heads));
    arena_free(&scratch);
}
// Adds the product of scores and values to out. Forward adds p v, and backward dS k.
static void mix(const AttentionHeads *h, Tensor scores, Tensor out, Tensor values) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor more = tensor_new(&scratch, out.rows, out.cols);
    op_heads_mix(more, scores, attention_repeat(h, values, &scratch), h->B, range_size(h->heads));
    op_add(out, out, more);
    arena_free(&scratch);
}

static void probabilities(const AttentionHeads *h, Saved *s) {
    Tensor qkv = s->t[S_QKV];
    Tensor p = tensor_new(&s->attention, qkv.rows * range_size(h->heads), h->length);
    Tensor q = attention_part(h, qkv, 0), k = attention_part(h, qkv, 1);
    round_the_ring(h, k, p, q, score); // k: N - 1 hops
    op_causal_softmax(p, p, score_scale(h), place_of(h));
    s->t[S_PROBS] = p;
    s->t[S_DROPPED] = p;
    if (h->drop == 0) return;
    s->t[S_DROPPED] = tensor_new(&s->attention, p.rows, p.cols);
    drop(h, s->t[S_DROPPED], p);
}
static void forward(const AttentionHeads *h, Saved *s) {
    probabilities(h, s);
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor v = attention_part(h, s->t[S_QKV], 2), out = attention_sums(s->t[S_MIX], &scratch);
    tensor_fill(out, 0);
    round_the_ring(h, v, s->t[S_DROPPED], out, mix); // v: N - 1 hops
    attention_round(s->t[S_MIX], out);
    arena_free(&scratch);
}

// Sets `to` [B*T/N, A] to this rank's rows of the sum over ranks of p^T times `with`. Each rank's
// product is a partial sum over its own queries, for the keys of all positions.
static void to_keys(const AttentionHeads *h, Tensor to, Tensor p, Tensor with) {
    Arena room = arena(MEM_COMMUNICATION);
    Range own = context_positions_of(h, h->cp->rank).chunk[0];
    Tensor whole = tensor_new(&room, h->B * h->length, with.cols);
    // EXERCISE 03.13a (4 points): the gradient of keys that other ranks hold. whole
    // [B h->length, A] is this rank's partial sum for the keys of all positions: p^T times `with`,
    // which has one row per local query (op_heads_mix_t). With grouped heads attention_fold() adds
    // the heads of a group and returns the narrower tensor. Make ONE all-reduce over h->cp. Then
    // copy this rank's rows to `to`: of sequence i, whole has rows i length + own.lo to i length +
    // own.hi, and `to` has rows i h->T to (i + 1) h->T.
    op_heads_mix_t(whole, p, with, h->B, range_size(h->heads));
    whole = attention_fold(h, whole, &room); // grouped heads: one sum per group
    // Every rank has a partial sum over its own queries. Sends 2(N-1) B T A/N elements, as in the
    // paper (Li et al. 2021). A reduce-scatter by rows would send half.
    comm_all_reduce(h->cp, whole);
    for (size_t i = 0; i < h->B; i++)
        tensor_copy(tensor_row_range(to, i * h->T, (i + 1) * h->T),
                    tensor_row_range(whole, i * h->length + own.lo, i * h->length + own.hi));
    // END
    arena_free(&room);
}
static void backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor q = attention_part(h, s->t[S_QKV], 0), dq = attention_part(h, dqkv, 0);
    Tensor k = attention_part(h, s->t[S_QKV], 1), dk = attention_part(h, dqkv, 1);
    Tensor v = attention_part(h, s->t[S_QKV], 2), dv = attention_part(h, dqkv, 2);
    Tensor dp = tensor_new(&scratch, s->t[S_PROBS].rows, h->length);
    to_keys(h, dv, s->t[S_DROPPED], dmix); // dV = dropout(P)^T dO
    // v, and then k, go round again, because a rank has kept only its own rows.
    round_the_ring(h, v, dp, dmix, score); // dP = dO V^T
    drop(h, dp, dp);
    op_causal_softmax_backward(dp, s->t[S_PROBS], dp, score_scale(h), place_of(h)); // dS
    Tensor sums = attention_sums(dq, &scratch);
    tensor_fill(sums, 0);
    round_the_ring(h, k, dp, sums, mix); // dQ = dS K
    attention_round(dq, sums);
    to_keys(h, dk, dp, q); // dK = dS^T Q
    arena_free(&scratch);
}

const AttentionKind ring_self_attention = {
    .name = "RSA", .forward = forward, .backward = backward, .rebuild = probabilities
};
