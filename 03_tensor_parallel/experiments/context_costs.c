// context_costs.c: predicts bytes, calls, memory, FLOPs and times of the four kinds of context
// parallelism, from sizes alone, and checks the measurements. The predictions hold for one sequence
// of T positions on n ranks, where n divides T.
#include "03_tensor_parallel/experiments/experiments.h"
#include <math.h>

const char *const context_id[CONTEXT_KINDS] = { "ring", "zigzag", "rsa", "ulysses" };

// ---------------------------------------------------------------- messages, memory, work

// Returns a rank's messages, kept bytes, buffers and FLOPs, of forward and backward together. c
// counts the positions of a chunk, and A counts the columns of the keys.
static Attended share(int kind, ContextSizes z, size_t n, size_t rank) {
    const size_t c = z.T / n, A = z.key_heads * z.D, ratio = z.heads / z.key_heads;
    const size_t e = element_size(z.storage), r = sizeof(real);
    if (kind == CONTEXT_RSA) {
        const double sums = 2 * ring_bytes(ALL_REDUCE_PASSES, n, z.T * A, r); // of dk, dv
        return (Attended){ .sent = 4 * (n - 1) * c * A * e + (size_t)sums,    // k, v, each twice
                           .calls = 4 * (n - 1) + 2,      // four passes, two all-reduces
                           .kept = z.heads * c * z.T * r, // scores with all keys
                           .buffers = n * c * A * r,      // dk or dv of all keys
                           .flops = 6 * (double)z.heads * work_product(c, z.T, z.D).flops };
    }
    if (kind == CONTEXT_ULYSSES) {
        const size_t most = ceil_div(z.key_heads, n), keys = part_size(z.key_heads, n, rank);
        const size_t heads = keys * ratio, part = c * most * z.D * e, pairs = z.T * (z.T + 1) / 2;
        return (Attended){ // sends q, k, v, out and their gradients; q and out are `ratio` parts
                           .sent = 4 * (ratio + 1) * (n - 1) * part,
                           .calls = 4,
                           // keeps q, out and lse, and k and v
                           .kept = z.T * (heads * (2 * z.D * e + r) + 2 * keys * z.D * e),
                           .buffers = 2 * (ratio + 2) * n * part, // q, k, v: sent, received
                           .flops = 7 * (double)heads * work_product(pairs, 1, z.D).flops
        };
    }
    const size_t hops = n > 1 ? n : 0; // of dk | dv; k | v make n-1 in forward and in backward
    const size_t square = c * c;
    const size_t others = kind == CONTEXT_RING ? rank * square : (n - 1) * square / 2;
    const size_t pairs = c * (c + 1) / 2 + others; // pairs that the causal mask leaves
    return (Attended){ .sent = (4 * (n - 1) * e + 2 * hops * r) * c * A,
                       .calls = n > 1 ? 3 * n - 2 : 0,
                       .kept = z.heads * c * r, // lse
                       // At the peak there is room for the present block of k | v, and with n > 2
                       // for the coming block. There is also room for the present block of dk | dv,
                       // and with n > 1 for the leaving and the coming block.
                       .buffers = ((n > 2 ? 2 : 1) * e + (n > 1 ? 3 : 1) * r) * c * 2 * A,
                       .flops = 7 * (double)z.heads * work_product(pairs, 1, z.D).flops };
}
double context_bytes_sent(int kind, ContextSizes z, size_t n) {
    return (double)share(kind, z, n, 0).sent;
}

// ---------------------------------------------------------------- time of attention alone

// Returns the time of one product of attention for one head, of n queries with n keys, or of the
// triangle of the causal mask. The sum runs over tiles, and over rows on the diagonal, because the
// clock rounds each tile or row to a picosecond.
static double pairs_time(size_t n, size_t D, bool triangle) {
    double time = 0;
    for (size_t i = 0; i < n; i += ATTENTION_TILE)
        for (size_t j = 0; j < (triangle ? i + 1 : n); j += ATTENTION_TILE) {
            const size_t rows = n - i < ATTENTION_TILE ? n - i : ATTENTION_TILE;
            const size_t cols = n - j < ATTENTION_TILE ? n - j : ATTENTION_TILE;
            const bool diagonal = triangle && i == j;
            for (size_t r = 1; diagonal && r <= rows; r++) time += work_product(1, r, D).time;
            if (!diagonal) time += work_product(rows, cols, D).time;
        }
    return time;
}
// Returns the time of one product of attention for one head in step k, with the keys of the rank k
// places before. A zigzag rank has two half chunks. In step 0 these have two triangles and a square
// of scores. In each later step the half chunks have two of the four squares.
static double product_time(int kind, size_t chunk, size_t D, size_t rank, size_t k) {
    const size_t half = chunk / 2;
    if (kind == CONTEXT_RING) return k > rank ? 0 : pairs_time(chunk, D, k == 0);
    const double square = pairs_time(half, D, false);
    return k == 0 ? 2 * pairs_time(half, D, true) + square : 2 * square;
}

// Plays the steps of all ranks. Forward has two products, backward five. Rank r sends on one lane
// to the next rank. A message starts when the lane is free. In backward the gradient follows its
// block a step behind.
RingTime context_ring_time(int kind, ContextSizes z, size_t n, bool backward) {
    enum { MOST = 256 };
    const size_t elements = z.T / n * 2 * z.heads * z.D;
    const double takes = send_time(elements * element_size(z.storage));
    const double sum_takes = send_time(elements * sizeof(real));
    const double products = backward ? 5 : 2;
    const bool sums = backward && n > 1;
    double now[MOST] = { 0 }, lane[MOST] = { 0 };
    // Times of arrival on each rank.
    double block[MOST] = { 0 }, sum[MOST] = { 0 }, next_sum[MOST] = { 0 };
    RingTime t = { 0 };
    if (n > MOST) fault("predictions for at most %d ranks", MOST);
    for (size_t k = 0; k < n; k++) {
        for (size_t r = 0; r < n; r++) {
            if (k + 1 < n) lane[r] = fmax(lane[r], now[r]) + takes;
            block[(r + 1) % n] = k + 1 < n ? lane[r] : 0;
            double work = products * (double)z.heads * product_time(kind, z.T / n, z.D, r, k);
            t.busy += work;
            now[r] += work;
        }
        for (size_t r = 0; sums && r < n; r++) {
            now[r] = fmax(now[r], sum[r]);
            lane[r] = fmax(lane[r], now[r]) + sum_takes;
            next_sum[(r + 1) % n] = lane[r];
        }
        for (size_t r = 0; r < n; r++) {
            now[r] = fmax(now[r], block[r]);
            if (sums) sum[r] = next_sum[r];
        }
    }
    for (size_t r = 0; r < n; r++) t.step = fmax(t.step, fmax(now[r], sum[r]));
    return t;
}

// Returns the time of a forward or backward in RSA or Ulysses. In RSA every rank does the same. A
// pass of k or v sends a message during each product but the last. The products for dK and dV need
// no pass. In Ulysses rank 0 has the most heads, so the other ranks wait for rank 0.
static double pass_time(int kind, ContextSizes z, size_t n, bool backward) {
    const size_t c = z.T / n, A = z.heads * z.D, ratio = z.heads / z.key_heads;
    const size_t e = element_size(z.storage);
    if (kind == CONTEXT_RSA) {
        double work = (double)z.heads * work_product(c, c, z.D).time;
        double pass = work + (double)(n - 1) * fmax(work, send_time(c * A * e));
        double keys = (double)z.heads * work_product(c, z.T, z.D).time +
                      ring_time(ALL_REDUCE_PASSES, n, z.T * A, sizeof(real));
        return 2 * pass + (backward ? 2 * keys : 0);
    }
    const size_t most = ceil_div(z.key_heads, n), part = z.T * most * z.D;
    const double product = (double)(most * ratio) * pairs_time(z.T, z.D, true);
    return ring_time(ONE_PASS, n, (ratio + 2) * part, e) + ring_time(ONE_PASS, n, ratio * part, e) +
           (backward ? 5 : 2) * product;
}

// ---------------------------------------------------------------- the check

void attend_costs(Run *run, int kind, ContextSizes z, const Attended *r, const char *id) {
    const size_t n = run->world->size;
    const Attended want = share(kind, z, n, run->world->rank);
    const char *ids = page_text(run, "%%s.%s", id), *names = page_text(run, "%s: %%s", id);
    check_costs(run, ids, names,
                (CostRow[]){
                    { "sent", "sent in both", "bytes", BY_FORMULA(want.sent), r->sent },
                    { "calls", "sends and collectives", "calls", BY_FORMULA(want.calls), r->calls },
                    { "kept", "kept by attention", "bytes", BY_FORMULA(want.kept), r->kept },
                    { "buffers", "buffers, peak", "bytes", BY_FORMULA(want.buffers), r->buffers },
                    { "flops", "computed", "FLOPs", BY_FORMULA(want.flops), r->flops },
                    { 0 } });
    if (!clock_config()->simulated) return;
    const double forward = (double)r->forward.step, backward = (double)r->backward.step;
    if (kind == CONTEXT_RSA || kind == CONTEXT_ULYSSES) {
        check_costs(run, ids, names,
                    (const CostRow[]){ { "forward", "forward", "ps",
                                         BY_FORMULA(pass_time(kind, z, n, false)), forward },
                                       { "backward", "backward", "ps",
                                         BY_FORMULA(pass_time(kind, z, n, true)), backward },
                                       { 0 } });
        return;
    }
    // The times of the rings have no formula, so context_ring_time() plays their steps. busy is the
    // share of forward in which a rank computes, as the mean of the ranks.
    const RingTime ring = context_ring_time(kind, z, n, false);
    const double busy = ring.busy / ((double)n * ring.step);
    check_costs(run, ids, names,
                (const CostRow[]){ { "forward", "forward", "ps", BY_PLAY(ring.step), forward },
                                   { "busy", "busy in forward", "millionths",
                                     BY_PLAY(round(1e6 * busy)),
                                     round(1e6 * (1 - r->forward.idle_of_total)) },
                                   { "backward", "backward", "ps",
                                     BY_PLAY(context_ring_time(kind, z, n, true).step), backward },
                                   { 0 } });
}
