// 08_costs.c: see 08_costs.h. N ranks; s positions of a sequence, of b; width h; c = s/N positions of a rank.
#include "03_tensor_parallel/experiments/08_costs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/model/costs.h"

enum { RING, ZIGZAG, RSA, ULYSSES };
static const char *const kind_name[CONTEXT_KINDS] = { "ring", "zigzag", "RSA", "Ulysses" };

static void cost_of(Run *run, int kind, const char *what, const char *unit, double predicted, double measured) {
    char name[80];
    snprintf(name, sizeof name, "%s: %s", kind_name[kind], what);
    cost(run, name, unit, predicted, measured);
}

// ---------------------------------------------------------------- bytes that a rank sends in one layer

typedef struct { size_t b, s, heads, D; } LayerSizes;

static size_t positions_of(int kind, size_t s, size_t n, size_t i) {
    return kind == ZIGZAG ? part_size(s, 2 * n, i) + part_size(s, 2 * n, 2 * n - 1 - i) : part_size(s, n, i);
}
static double layer_bytes(Run *run, int kind, LayerSizes z) {
    const size_t n = run->world->size, A = z.heads * z.D, e = sizeof(real);
    if (kind == ULYSSES) {                                 // q, k, v; out; their gradients; parts as the largest
        size_t part = z.b * ceil_div(z.s, n) * ceil_div(z.heads, n) * z.D;
        return (double)(8 * (n - 1) * part * e);
    }
    size_t visits = 0, all = n > 1 ? z.s : 0;              // positions of the blocks that leave me
    for (size_t k = 0; k + 1 < n; k++) visits += positions_of(kind, z.s, n, (run->world->rank + n - k) % n);
    if (kind == RSA)                                       // k; v; v, k again; the sums of dk and dv
        return (double)(4 * visits * z.b * A * e) + 2 * ring_bytes(ALL_REDUCE_PASSES, n, z.b * z.s * A, e);
    return (double)((2 * visits + 2 * visits + 2 * all) * z.b * A * e);        // k, v; again; dk, dv of every block
}

// ---------------------------------------------------------------- the GPT

void context_trained_costs(Run *run, const Training *t, int kind, const ContextTrained *r) {
    const ModelConfig *c = &t->model;
    const size_t n = run->world->size, e = sizeof(real), b = t->sequences;
    const size_t T = positions_of(kind, c->context, n, run->world->rank);
    LayerSizes layer = { b, c->context, c->heads, c->width / c->heads };
    CutSizes whole = cut_sizes(c, 1, 0), z = whole;
    z.T = T;                                               // queries here; a row of scores has all keys
    z.online = kind != RSA;
    size_t kept = b * T * kept_stage(&z), mine = part_size(c->heads, n, run->world->rank);
    // Ulysses keeps q, k, v, out and lse of its heads, for all positions; and no lse of its positions.
    size_t heads = b * c->context * mine * (4 * layer.D + 1), lse = b * T * c->heads;
    if (kind == ULYSSES) kept += c->layers * (heads - lse);
    cost_of(run, kind, "sent in the layers, a step", "bytes", (double)c->layers * layer_bytes(run, kind, layer),
            (double)r->sent);
    cost_of(run, kind, "sent for the sum of gradients", "bytes",
            ring_bytes(ALL_REDUCE_PASSES, n, elements_stage(&whole), e), (double)r->sums);
    cost_of(run, kind, "parameters", "bytes", (double)(elements_stage(&whole) * e), (double)r->parameters);
    cost_of(run, kind, "gradients", "bytes", (double)(elements_gradients(&whole) * e), (double)r->gradients);
    cost_of(run, kind, "activations, peak", "bytes", (double)(kept * e), (double)r->activations);
}

// ---------------------------------------------------------------- attention alone: bytes that grow with a chunk

static size_t kept_elements(int kind, const ContextSizes *z, size_t n, size_t rank) {
    size_t mine = part_size(z->heads, n, rank);
    if (kind == RSA) return z->heads * z->chunk * n * z->chunk;                // rows of scores, of all keys
    if (kind == ULYSSES) return n * z->chunk * mine * (4 * z->D + 1);          // q, k, v, out, lse of my heads
    return z->heads * z->chunk;                                                // lse
}
static size_t buffer_elements(int kind, const ContextSizes *z, size_t n) {
    size_t c = z->chunk, A = z->heads * z->D;
    if (kind == RSA) return n * c * A;                                         // dk of all keys, before its sum
    if (kind == ULYSSES) return 2 * n * 3 * c * ceil_div(z->heads, n) * z->D;  // q, k, v: leaving, coming
    return (n > 2 ? 5 : 2 * n) * c * 2 * A;        // k, v: here and coming; dk, dv: here, leaving and coming
}
// The most positions of a rank for which q, k, v, out, what is kept and buffers have room in so many bytes.
static size_t longest_chunk(int kind, ContextSizes z, size_t n, size_t bytes) {
    size_t lo = 0, hi = bytes;
    while (hi - lo > 1) {
        z.chunk = (lo + hi) / 2;
        size_t all = 4 * z.chunk * z.heads * z.D + kept_elements(kind, &z, n, 0) + buffer_elements(kind, &z, n);
        if (all * sizeof(real) <= bytes) lo = z.chunk;
        else hi = z.chunk;
    }
    return lo;
}

// ---------------------------------------------------------------- attention alone: time

// Pairs of a query and a key that a rank computes in step k, when it has rank j's keys.
static double pairs(int kind, double c, size_t n, size_t rank, size_t k) {
    size_t j = (rank + n - k) % n;
    if (kind == RING) return j < rank ? c * c : j == rank ? c * (c + 1) / 2 : 0;
    return k == 0 ? c * (c + 1) / 2 : c * c / 2;   // zigzag: two triangles and a square; then two quarters, whoever's
}
typedef struct { double step, busy; } RingTime;    // until the last rank is done; of all ranks together, computing
static double later(double a, double b) { return a > b ? a : b; }

// products: of pairs x D, 2 in forward and 5 in backward, where the gradient follows a step behind.
static RingTime ring_pass(Run *run, int kind, const ContextSizes *z, int products) {
    enum { MOST = 256 };
    const size_t n = run->world->size;
    const double takes = send_time(z->chunk * 2 * z->heads * z->D * sizeof(real));
    double at[MOST] = {0}, lane[MOST] = {0}, block[MOST], sum[MOST] = {0}, next_sum[MOST];
    RingTime t = {0};
    if (n > MOST) fault("predictions for at most %d ranks", MOST);
    for (size_t k = 0; k < n; k++) {
        for (size_t r = 0; r < n; r++) {           // lane: from r to the next; a message leaves when it is free
            block[(r + 1) % n] = k + 1 < n ? lane[r] = later(lane[r], at[r]) + takes : 0;
            size_t computed = (size_t)pairs(kind, (double)z->chunk, n, r, k);
            double work = products * (double)z->heads * work_product(computed, 1, z->D).time;
            t.busy += work;
            at[r] += work;
        }
        if (products == 5 && n > 1)
            for (size_t r = 0; r < n; r++) {
                at[r] = later(at[r], sum[r]);
                next_sum[(r + 1) % n] = lane[r] = later(lane[r], at[r]) + takes;
            }
        for (size_t r = 0; r < n; r++) {
            at[r] = later(at[r], block[r]);
            if (products == 5 && n > 1) sum[r] = next_sum[r];
        }
    }
    for (size_t r = 0; r < n; r++) t.step = later(t.step, later(at[r], sum[r]));
    return t;
}
static double forward_time(Run *run, int kind, const ContextSizes *z, bool backward) {
    const size_t n = run->world->size, c = z->chunk, T = n * c, A = z->heads * z->D, e = sizeof(real);
    if (kind == RING || kind == ZIGZAG) return ring_pass(run, kind, z, backward ? 5 : 2).step;
    if (kind == RSA) {                             // every rank the same: a product of all rows in a pass, or alone
        double work = (double)z->heads * work_product(c, c, z->D).time;
        double pass = work + (double)(n - 1) * later(work, send_time(c * A * e));
        return 2 * pass + (backward ? 2 * ((double)n * work + ring_time(ALL_REDUCE_PASSES, n, T * A, e)) : 0);
    }
    size_t most = ceil_div(z->heads, n), part = n * c * most * z->D;           // rank 0 has most heads
    return ring_time(ONE_PASS, n, 3 * part, e) + ring_time(ONE_PASS, n, part, e)
         + (backward ? 5 : 2) * (double)most * work_product(T * (T + 1) / 2, 1, z->D).time;
}

void context_attention_costs(Run *run, const ContextSizes *z, int kind, const ContextMeasured *r) {
    const size_t n = run->world->size, e = sizeof(real), bsh = n * z->chunk * z->heads * z->D;
    LayerSizes layer = { 1, n * z->chunk, z->heads, z->D };
    double sent = layer_bytes(run, kind, layer);
    cost_of(run, kind, "sent in both", "bytes", sent, (double)r->sent);
    cost_of(run, kind, "kept by attention", "bytes", (double)(kept_elements(kind, z, n, run->world->rank) * e),
            (double)r->kept);
    cost_of(run, kind, "buffers, peak", "bytes", (double)(buffer_elements(kind, z, n) * e), (double)r->buffers);
    // Of bsh/N elements.
    double N = (double)n, units[] = { n > 1 ? 6 * N - 4 : 0, n > 1 ? 6 * N - 4 : 0, 8 * (N - 1), 8 * (N - 1) / N };
    if (kind != ULYSSES || z->heads % n == 0)
        check_true(run, "closed form", "sent", fabs(sent - units[kind] * (double)(bsh / n * e)) < 1e-6);
    if (!clock_config()->simulated) return;
    cost_of(run, kind, "forward", "ps", forward_time(run, kind, z, false), (double)r->forward.step);
    cost_of(run, kind, "backward", "ps", forward_time(run, kind, z, true), (double)r->backward.step);
    if (kind == RSA || kind == ULYSSES) return;
    RingTime t = ring_pass(run, kind, z, 2);
    double busy = t.busy / (N * t.step), c = (double)z->chunk;
    cost_of(run, kind, "busy in forward", "millionths", round(1e6 * busy),
            round(1e6 * (1 - r->forward.idle_of_total)));
    // Where messages are hidden. With long chunks N/(2N-1); a triangle has its diagonal, which is the rest.
    double closed = kind == RING ? (N * c + 1) / ((2 * N - 1) * c + 1) : 1;
    double triangle = 2 * (double)z->heads * work_product(z->chunk * z->chunk / 2, 1, z->D).time;
    if (send_time(2 * z->chunk * z->heads * z->D * e) < triangle)
        check_true(run, "closed form", "busy", fabs(busy - closed) < 1e-9);
}

// ---------------------------------------------------------------- the page

void context_results(Run *run, const ContextSizes *z) {
    enum { LONGEST = 1000000 };
    const size_t n = run->world->size;
    char chunk[CONTEXT_KINDS][40], busy[80];
    for (int k = 0; k < CONTEXT_KINDS; k++) {
        size_t end = (size_t)snprintf(chunk[k], sizeof chunk[k], "=%zu", longest_chunk(k, *z, 4, LONGEST));
        if (k == ULYSSES) continue;                // has no more ranks than heads
        snprintf(chunk[k] + end, sizeof chunk[k] - end, ", %zu", longest_chunk(k, *z, 64, LONGEST));
    }
    snprintf(busy, sizeof busy, "N/(2N-1) = %.1f %%; 1", 100 * (double)n / (2 * (double)n - 1));
    const char *const columns[] = { "ring", "zigzag", "RSA", "Ulysses", NULL };
    const Result rows[] = {
        { "forward", "the slowest rank, and messages",
          { "ring: forward", "zigzag: forward", "RSA: forward", "Ulysses: forward" } },
        { "  busy, mean of ranks", busy,
          { "ring: busy in forward", "zigzag: busy in forward", NULL, NULL } },
        { "backward", "5 products for 2; RSA 4",
          { "ring: backward", "zigzag: backward", "RSA: backward", "Ulysses: backward" } },
        { "sent in both", "bsh/N x 6N-4; 8(N-1); 8(N-1)/N",
          { "ring: sent in both", "zigzag: sent in both", "RSA: sent in both", "Ulysses: sent in both" } },
        { "kept besides q, k, v, out", "ac; acs; (4h+a)c",
          { "ring: kept by attention", "zigzag: kept by attention", "RSA: kept by attention",
            "Ulysses: kept by attention" } },
        { "longest c in 1 MB, N = 4, 64", "q, k, v, out; kept; buffers", 
          { chunk[0], chunk[1], chunk[2], chunk[3] } }, {0} };
    enum { TIMES = 3 };                            // rows that the simulated clock has
    results(run, columns, clock_config()->simulated ? rows : rows + TIMES);
    say(run, "  attention alone: b = 1 sequence of s = %zu, c = s/N = %zu, N = %zu; h = %zu in a = %zu heads",
        n * z->chunk, z->chunk, n, z->heads * z->D, z->heads);
}

double context_ring_waits(size_t n, double own, double other, double hop, bool backward) {
    if (n == 1) return 0;
    double wait = fmax(0, hop - own) + (double)(n - 2) * fmax(0, (backward ? 2 : 1) * hop - other);
    return backward ? wait + fmax(0, hop - other) + hop : wait;
}
