// ranks: 4
// level: extra
// question: How can ranks share a sequence that is too long for one rank?
// vary: CHUNK 128|160|224, HEADS 6|10, D 6|8
//
// Holds: each rank has all parameters, and T/N of the T positions of each of B sequences.
//     With contiguous chunks rank i has chunk i of N. With zigzag chunks rank i has chunk i of 2N
//     from the front and chunk i from the back.
// Sends: in forward of a layer k and v make N-1 hops round the ring of ranks. In backward k and v
//     make N-1 hops, and dk and dv make N hops. In a hop a rank sends 2 B T C/N elements. Per step
//     the caller all-reduces all gradients.
// Saves: a rank has 1/N of the activations. Instead of scores a rank keeps one element per query
//     and head.
// Costs: each of N > 1 ranks sends (6N-4) B T C/N elements per layer. A rank computes scores twice,
//     in forward and in backward. The scores of one rank's queries with one rank's keys are a
//     square. With contiguous chunks and a causal mask the first rank computes 1/2 square, and the
//     last rank N - 1/2. With zigzag chunks every rank computes N/2.
// Attention's output and its gradients must equal those of one device within rounding.
// Liu, Zaharia and Abbeel 2023 (the ring), Brandon et al. 2023 (striped),
// zhuzilin/ring-flash-attention (zigzag). Left out: several documents in one sequence.
//
// Norms, linear layers, embedding and loss work on one position at a time, so in forward and
// backward only attention communicates.
#include "03_tensor_parallel/context_parallel.h"

// ---------------------------------------------------------------- the positions of each rank

// Returns rank i's chunks. With 4 ranks, contiguous chunks belong to the ranks 0 1 2 3, and zigzag
// chunks to the ranks 0 1 2 3 3 2 1 0.
Positions context_positions(size_t T, size_t n, size_t i, const AttentionKind *kind) {
    if (kind != &ring_attention_zigzag) return (Positions){ 1, { shard_range(T, n, i) } };
    return (Positions){ 2, { shard_range(T, 2 * n, i), shard_range(T, 2 * n, 2 * n - 1 - i) } };
}

// -------------------------------------------------- online softmax: two partial results become one
// Softmax divides by a sum over all keys, but the keys arrive one block at a time. For the keys
// seen so far, a query has three values per head:
//
//     m    the maximum of its scores
//     l    the sum of exp(score - m)
//     out  the sum of exp(score - m) v, divided by l
//
// A rank keeps m and l as one number, lse = m + log l. The keys of the next block alone give out_b
// and lse_b. merge() joins both results:
//
//     m'   = max(lse, lse_b)                      subtracted first, because exp(lse) may overflow
//     w    = exp(lse - m')                        the earlier keys' sum, divided by exp(m')
//     w_b  = exp(lse_b - m')                      the block's sum, divided by exp(m')
//     out  = (w out + w_b out_b) / (w + w_b)      the mean of out and out_b, weighted by the sums
//     lse  = m' + log(w + w_b)
//
// Before the first key, lse = -inf, so w = 0. The order of the blocks only changes rounding.
static void merge(Tensor out, Tensor lse, Tensor out_b, Tensor lse_b) {
    op_merge_heads(out, lse, out_b, lse_b); // sets out and lse, per query and head
}

// ---------------------------------------------------------------- the ring
// In step k = 0 .. N-1 a rank has the block of rank ring_owner(cp, k), which is k places before
// this rank. Two arenas, room[0] and room[1], take turns. One arena holds the present block, which
// the rank sends on. The other arena receives the next block. A block is [B*T/N, 2A]: k | v of one
// rank's positions. A is the number of columns of k on this rank: C, or C/tp where heads are cut,
// too. With grouped heads k has fewer columns than q.

// Sends the present block of k | v to the next rank while this rank's own queries attend to the
// block. Every block visits every rank, so each query meets all keys that come before the query.
// Pairs in which the key comes after the query are not computed.
static void ring_forward(const AttentionHeads *h, Saved *s) {
    Comm *cp = h->cp;
    Positions queries = context_positions_of(h, cp->rank);
    Arena room[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Tensor here = ring_own_block(h, s->t[S_QKV], &room[0]), coming = { 0 };
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor out = attention_begin(h, s, &scratch); // no key yet: out = 0, lse = -inf
    for (size_t k = 0; k < cp->size; k++) {
        Positions keys = context_positions_of(h, ring_owner(cp, k));
        Request *leaves = NULL, *arrives = NULL;
        if (k + 1 < cp->size) {
            coming = ring_block(h, ring_owner(cp, k + 1), here.element, &room[(k + 1) % 2]);
            leaves = comm_start_send(cp, here, ring_next(cp)); // k | v: 2 B T/N A elements
            arrives = comm_start_recv(cp, coming, ring_previous(cp));
        }
        attention_attend(h, &queries, here, &keys, out, s, merge); // joins this block to out, lse
        comm_wait(leaves);
        comm_wait(arrives);
        arena_free(&room[k % 2]);
        here = coming;
    }
    attention_round(s->t[S_MIX], out); // rounds once, if S_MIX has 16 bits
    arena_free(&scratch);
}

// Sends k and v round again, because a rank has not kept the blocks of other ranks. dk and dv of a
// block are sums over the queries of all ranks. So dk and dv follow their block one step later:
// each rank adds the part of its own queries and sends the sum on. dq needs no message, because
// every block comes to the rank of the query.
static void ring_backward(const AttentionHeads *h, Tensor dqkv, Tensor dmix, Saved *s) {
    Comm *cp = h->cp;
    Positions queries = context_positions_of(h, cp->rank);
    Arena scratch = arena(MEM_WORKSPACE);
    Arena room[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Arena sums[2] = { arena(MEM_COMMUNICATION), arena(MEM_COMMUNICATION) };
    Tensor here = ring_own_block(h, s->t[S_QKV], &room[0]), coming = { 0 }, sum_coming = { 0 };
    Tensor home = ring_sums(h, cp->rank, &scratch); // dk | dv of own keys, over all queries
    Tensor dq = attention_sums(attention_queries(h, dqkv), &scratch);
    Tensor dot = tensor_new(&scratch, dmix.rows, range_size(h->heads));
    Request *sum_leaves = NULL, *sum_arrives = NULL;
    // ds = p (dp - dot), where dot is the sum of p dp over ALL keys. dp = dout . v and out = sum p
    // v. So dot = dout . out, and this rank has dout and out already.
    op_heads_dot(dot, s->t[S_MIX], dmix);
    tensor_fill(dq, 0);
    for (size_t k = 0; k < cp->size; k++) {
        Positions keys = context_positions_of(h, ring_owner(cp, k));
        Request *leaves = NULL, *arrives = NULL;
        if (k + 1 < cp->size) {
            coming = ring_block(h, ring_owner(cp, k + 1), here.element, &room[(k + 1) % 2]);
            leaves = comm_start_send(cp, here, ring_next(cp)); // k | v: 2 B T/N A elements
            arrives = comm_start_recv(cp, coming, ring_previous(cp));
        }
        // sum is this rank's part of the block's dk | dv.
        Tensor sum = ring_sums(h, ring_owner(cp, k), &sums[k % 2]);
        tensor_fill(sum, 0);
        // Computes p again from the final lse, and adds to dq and to sum.
        attention_attend_backward(h, &queries, dq, sum, here, &keys, dmix, dot, s);
        // EXERCISE 03.08a (4 points): return dk and dv to their rank. sum [B*T/N, 2A] is the part
        // of this rank's queries, for the present keys. In step 1 and later, sum_coming receives
        // the parts of all ranks that had these keys before: add it to sum. Then start to send sum
        // to the next rank. Also start to receive the previous rank's sum in sum_coming. That sum
        // belongs to the keys of step k + 1, so ring_sums makes its room in sums[k % 2]. In the
        // last step these keys are this rank's own: receive in home. sum_leaves and sum_arrives are
        // the requests. Before all this, wait for those of step k - 1; after the addition, free
        // their room, sums[(k + 1) % 2]. A group of one rank sends nothing and copies sum to home.
        comm_wait(sum_arrives);
        if (k > 0) op_add(sum, sum, sum_coming);
        comm_wait(sum_leaves);
        arena_free(&sums[(k + 1) % 2]);
        sum_coming = k + 1 == cp->size ? home : ring_sums(h, ring_owner(cp, k + 1), &sums[k % 2]);
        if (cp->size > 1) {
            sum_leaves = comm_start_send(cp, sum, ring_next(cp)); // dk | dv: N hops of 2 B T/N A
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
    comm_wait(sum_arrives); // the N-th hop has arrived in home
    tensor_copy(attention_keys_values(h, dqkv), home);
    attention_round(attention_queries(h, dqkv), dq);
    arena_free(&sums[0]);
    arena_free(&sums[1]);
    arena_free(&scratch);
}

const AttentionKind ring_attention = { .name = "ring",
                                       .forward = ring_forward,
                                       .backward = ring_backward };
const AttentionKind ring_attention_zigzag = { .name = "zigzag",
                                              .forward = ring_forward,
                                              .backward = ring_backward };
