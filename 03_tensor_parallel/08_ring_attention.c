// ranks: 4
// level: extra
// question: How can ranks share a sequence that is too long for one of them?
// vary: SEQUENCES 2..4, layers 1..3, context 19..40, vocab 45..70, chunk 96|128|160
//
// Holds: parameters whole; of each sequence s/N positions: contiguous, or (zigzag) one of 2N chunks
//     from the front and one as far from the back.
// Sends: per layer round the ring: forward k, v, N-1 hops of 2bsh/N elements; backward k, v again,
//     N-1 hops; dk, dv, N hops. Per step the all-reduce of data parallelism, of whole gradients.
// Saves: activations divided by N; no scores are kept, but one element per query and head.
// Costs: (6N-4) bsh/N elements sent per layer; scores are computed twice. Contiguous and causal:
//     the first rank has 1/2 block to compute, the last N - 1/2. Zigzag: every rank the same.
// Liu, Zaharia and Abbeel 2023; Brandon et al. 2023 (striped); zigzag as in Llama 3 and in
// zhuzilin/ring-flash-attention. Left out: 16-bit floats, documents packed in a sequence.
//
// Norms, linear layers, embedding and loss work on one position at a time, so only attention
// communicates. Relatives: ring_self_attention.c (Li et al. 2021: two passes, whole rows of scores)
// and ulysses.c (Jacobs et al. 2023: all-to-all, by heads).
#include "03_tensor_parallel/context_parallel.h"

// ---------------------------------------------------------------- who has which positions

//     4 ranks   contiguous   000111222333        2 of 8 chunks each:   zigzag   0 1 2 3 3 2 1 0
Positions context_positions(size_t T, size_t n, size_t i, const AttentionKind *kind) {
    if (kind != &ring_attention_zigzag) return (Positions){ 1, { shard_range(T, n, i) } };
    return (Positions){ 2, { shard_range(T, 2 * n, i), shard_range(T, 2 * n, 2 * n - 1 - i) } };
}
Positions context_positions_of(const AttentionHeads *h, size_t rank) {
    return context_positions(h->length, h->cp->size, rank, h->kind);
}

// -------------------------------------------------- online softmax: two partial results become one
// Softmax divides by a sum over all keys, and the keys come a block at a time. Over the keys that
// it has seen, a query keeps (per head) the maximum m of its scores, the sum l of exp(score - m),
// and out, the sum of exp(score - m) v, divided by l. m and l are kept as one number, which is
// lse = m + log l. The keys of another block alone give out_b and lse_b. The two are joined:
//
//     m'   = max(lse, lse_b)                      subtracted before exp, which would overflow
//     w    = exp(lse - m')                        both sums of exponentials, relative to exp(m'):
//     w_b  = exp(lse_b - m')                      neither is above 1, and one of them is 1
//     out  = (w out + w_b out_b) / (w + w_b)      each mean weighs as its sum
//     lse  = m' + log(w + w_b)
//
// No key yet: lse = -inf, so w = 0. The order of the blocks changes rounding only.
static void merge(Tensor out, Tensor lse, Tensor out_b, Tensor lse_b) {
    op_merge_heads(out, lse, out_b, lse_b);                // the five lines, per query and head
}

// ---------------------------------------------------------------- the ring
// In step k = 0 .. N-1 a rank has the block of rank ring_owner(cp, k), k places before it. Two
// rooms in turn: one has the block that is here and leaves, the other the block that comes.

// Room for k | v, or their gradients, of one rank's positions: [B*T/N, 2A]. A: columns of the heads
// on this rank, h, or h/tp where heads are cut too.
static Tensor block_of(const AttentionHeads *h, size_t owner, Arena *room) {
    Positions p = context_positions_of(h, owner);
    return tensor_new(room, h->B * positions_count(&p), 2 * range_size(h->heads) * h->D);
}
// A copy of this rank's k | v that can be sent.
static Tensor own_block(const AttentionHeads *h, Tensor qkv, Arena *room) {
    Tensor copy = block_of(h, h->cp->rank, room);
    tensor_copy(copy, attention_keys_values(qkv));
    return copy;
}

// The block that is here goes on to the next rank while this rank's queries attend to it: every k,
// v must visit every rank, because every later query sees them. Keys after a query are left out.
static void ring_forward(const AttentionHeads *h, Saved *s) {
    Comm *cp = h->cp;
    Positions queries = context_positions_of(h, cp->rank);
    Arena room[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Tensor here = own_block(h, s->t[S_QKV], &room[0]), coming = {0};
    attention_begin(h, s);                                // out (S_MIX) = 0, lse = -inf: no key yet
    for (size_t k = 0; k < cp->size; k++) {
        Positions keys = context_positions_of(h, ring_owner(cp, k));
        Request *leaves = NULL, *arrives = NULL;
        if (k + 1 < cp->size) {
            coming = block_of(h, ring_owner(cp, k + 1), &room[(k + 1) % 2]);
            leaves = comm_start_send(cp, here, ring_next(cp));          // k | v: 2 B T/N A elements
            arrives = comm_start_recv(cp, coming, ring_previous(cp));
        }
        attention_attend(h, &queries, here, &keys, s, merge);  // out, lse <- joined with this block
        comm_wait(leaves);
        comm_wait(arrives);
        arena_free(&room[k % 2]);
        here = coming;
    }
}

// k and v make their round again, because they were not kept. dk and dv of a block are sums over
// the queries of all ranks, so they follow their block a step behind: each rank adds its queries'
// part and sends the sum on. dq needs no message: a rank's queries meet every block at home.
static void ring_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    Comm *cp = h->cp;
    Positions queries = context_positions_of(h, cp->rank);
    Arena scratch = arena(MEM_WORKSPACE);
    Arena room[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Arena sums[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Tensor here = own_block(h, s->t[S_QKV], &room[0]), coming = {0}, sum = {0}, sum_coming = {0};
    Tensor home = block_of(h, cp->rank, &scratch);           // dk | dv of my keys, from all queries
    Tensor dq = attention_queries(dqkv);
    Tensor dot = tensor_new(&scratch, dmix.rows, range_size(h->heads));
    Request *sum_leaves = NULL, *sum_arrives = NULL;
    // ds = p (dp - dot), with dot the sum of p dp over ALL keys. dp = dout . v and out = sum p v,
    // so dot = dout . out, which is known at home.
    op_heads_dot(dot, s->t[S_MIX], dmix);
    tensor_fill(dq, 0);
    for (size_t k = 0; k < cp->size; k++) {
        Positions keys = context_positions_of(h, ring_owner(cp, k));
        Request *leaves = NULL, *arrives = NULL;
        if (k + 1 < cp->size) {
            coming = block_of(h, ring_owner(cp, k + 1), &room[(k + 1) % 2]);
            leaves = comm_start_send(cp, here, ring_next(cp));          // k | v: 2 B T/N A elements
            arrives = comm_start_recv(cp, coming, ring_previous(cp));
        }
        sum = block_of(h, ring_owner(cp, k), &sums[k % 2]);  // my part of dk | dv of the block here
        tensor_fill(sum, 0);
        // p again, from the final lse; adds to dq and to sum
        attention_attend_backward(h, &queries, dq, sum, here, &keys, dmix, dot, s);
        // EXERCISE 03.08a (4 points): bring dk | dv home. sum [B*T/N, 2A] is what my queries do to
        // the keys that are here. From step 1 on, the parts of all ranks that had these keys before
        // have been received from the previous rank in sum_coming: add them. Then start to send the
        // sum to the next rank, which has these keys next, or owns them, and to receive in
        // sum_coming the previous rank's sum, of the keys that are here in step k + 1: block_of
        // gives it room in sums[k % 2]. After the last step those keys are mine; their place is
        // home. sum_leaves and sum_arrives are the requests: wait for those of step k - 1, then
        // free their room, sums[(k + 1) % 2]. A group of one rank sends nothing: home is a copy of
        // sum.
        comm_wait(sum_arrives);
        if (k > 0) op_add(sum, sum, sum_coming);
        comm_wait(sum_leaves);
        arena_free(&sums[(k + 1) % 2]);
        sum_coming = k + 1 == cp->size ? home : block_of(h, ring_owner(cp, k + 1), &sums[k % 2]);
        if (cp->size > 1) {
            sum_leaves = comm_start_send(cp, sum, ring_next(cp));    // dk | dv: N hops of 2 B T/N A
            sum_arrives = comm_start_recv(cp, sum_coming, ring_previous(cp));
        } else {
            tensor_copy(home, sum);
        }
        // END
        comm_wait(leaves);
        comm_wait(arrives);
        arena_free(&room[k % 2]);
        here = coming;
    }
    comm_wait(sum_leaves);
    comm_wait(sum_arrives);                                            // the N-th hop: mine is home
    tensor_copy(attention_keys_values(dqkv), home);
    arena_free(&sums[0]);
    arena_free(&sums[1]);
    arena_free(&scratch);
}

const AttentionKind ring_attention = { .name = "ring", .forward = ring_forward,
                                       .backward = ring_backward };
const AttentionKind ring_attention_zigzag = { .name = "zigzag", .forward = ring_forward,
                                              .backward = ring_backward };

// ---------------------------------------------------------------- the model

Positions context_parallel(Model *m, Comm *cp, const AttentionKind *kind) {
    const ModelConfig *c = &m->config;
    REQUIRE(cp->size <= c->context,
            "%zu context-parallel ranks need as many positions; a sequence has %zu: choose "
            "fewer ranks, or more --context", cp->size, c->context);
    REQUIRE(kind != &ulysses_attention || cp->size <= c->heads,
            "Ulysses on %zu ranks needs as many heads; the model "
            "has %zu: choose fewer ranks, or more --heads", cp->size, c->heads);
    comm_connect(cp, COMM_NEIGHBOURS);                          // messages go to the next rank only
    for (size_t i = 0; i < m->n_layers; i++) {
        m->layers[i].cp = cp;
        m->layers[i].attention = kind;                                     // only blocks read it
    }
    return context_positions(c->context, cp->size, cp->rank, kind);
}
