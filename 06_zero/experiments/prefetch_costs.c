// prefetch_costs.c: the predicted memory in flight and the predicted times of a step of ZeRO-3 with
// prefetch, from sizes alone.
#include "06_zero/experiments/experiments.h"
#include <stdlib.h>

// ---------------------------------------------------------------- sizes

// Layer i of n = L + 2 gathers one unit: the embedding gathers wpe, a block its own, the head the
// last norm.
static size_t unit_size(const ModelConfig *c, size_t i) {
    CutSizes z = cut_sizes(c, 1, 0);
    return elements_unit(&z, i);
}

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// wte is held for the whole step: its weights and two gradients. The peak of all other units is in
// the backward of a layer:
//     weights     of this layer and of the one below, which is being gathered; if weights are kept
//                 from forward (reshard: no), of all layers up to this one
//     gradients   of this layer and of the one above, whose reduction is under way
//     sum         a copy of the gradient above, which comm.c holds for a started reduction
//     part        for m > 1, the reduced part of the gradient above, which is added to own_g
size_t prefetch_in_flight(const Training *t, size_t N, size_t rank, bool reshard) {
    const ModelConfig *c = &t->model;
    size_t n = c->layers + 2, peak = 0, below = 0, kept = 0;
    for (size_t i = 0; i < n; i++) {
        size_t unit = unit_size(c, i), reducing = 0;
        kept += unit;
        if (i + 1 < n) {
            size_t above = unit_size(c, i + 1);
            reducing = above;
            if (N > 1) reducing += N * ceil_div(above, N);
            if (t->micro_batches > 1) reducing += range_size(shard_range(above, N, rank));
        }
        size_t weights = reshard ? unit + below : kept;
        peak = most(peak, weights + unit + reducing);
        below = unit;
    }
    return 3 * c->vocab * c->width + peak;
}

// ---------------------------------------------------------------- time

// Simulates prefetch_step() on N ranks together. Each rank has a compute row, and all ranks share
// one communication lane. A communication begins when the last rank has started it and the previous
// communication has ended. All ranks start and wait for the same communications in the same order.
// They differ only in how long they compute.
typedef struct {
    double begin, end;
} Span;
typedef struct {
    const Training *t;
    size_t N, n; // ranks, layers
    double *now; // [N] the time on each rank's compute row
    Span *sent;  // communications in order
    size_t count;
    double hidden; // time of communication while a rank computes; sum over ranks
    double total;  // time of all communication; sum over ranks
} Steps;

static double last_of(const Steps *s) {
    double last = 0;
    for (size_t r = 0; r < s->N; r++)
        if (s->now[r] > last) last = s->now[r];
    return last;
}
// Starts a communication and returns its end.
static double start(Steps *s, double takes) {
    double begin = last_of(s), free = s->count ? s->sent[s->count - 1].end : 0;
    if (free > begin) begin = free;
    s->sent[s->count++] = (Span){ begin, begin + takes };
    s->total += (double)s->N * takes;
    return begin + takes;
}
static void wait(Steps *s, double end) {
    for (size_t r = 0; r < s->N; r++)
        if (end > s->now[r]) s->now[r] = end;
}
static double ring(const Steps *s, size_t elements) {
    return ring_time(ONE_PASS, s->N, elements, sizeof(real));
}

// Every rank computes `products` times the work of layer i's forward, for micro-batch k. Adds the
// overlap with all communications under way to `hidden`.
static void compute(Steps *s, size_t i, size_t k, double products) {
    const ModelConfig *c = &s->t->model;
    CutSizes z = cut_sizes(c, 1, 0);
    for (size_t r = 0; r < s->N; r++) {
        size_t B = zero_sequences(s->t, s->N, r, k);
        Work one = { 0 }; // the embedding has no product of matrices
        if (i > 0) one = i <= c->layers ? work_block(&z, B) : work_head(&z, B);
        double begin = s->now[r], end = begin + products * one.time;
        for (size_t j = s->count; j-- > 0 && s->sent[j].end > begin;) {
            double from = s->sent[j].begin > begin ? s->sent[j].begin : begin;
            double until = s->sent[j].end < end ? s->sent[j].end : end;
            if (until > from) s->hidden += until - from;
        }
        s->now[r] = end;
    }
}

static void micro_batch(Steps *s, size_t k, bool reshard) {
    const ModelConfig *c = &s->t->model;
    double gather = start(s, ring(s, unit_size(c, 0))), reduction = 0;
    for (size_t i = 0; i < s->n; i++) {
        double next = i + 1 < s->n ? start(s, ring(s, unit_size(c, i + 1))) : 0;
        wait(s, gather);
        compute(s, i, k, 1);
        gather = next;
    }
    if (reshard) gather = start(s, ring(s, unit_size(c, s->n - 1)));
    for (size_t i = s->n; i-- > 0;) {
        double before = reshard && i > 0 ? start(s, ring(s, unit_size(c, i - 1))) : 0;
        wait(s, gather);
        compute(s, i, k, 2);
        wait(s, reduction);
        reduction = start(s, ring(s, unit_size(c, i)));
        gather = before;
    }
    wait(s, reduction); // by the next forward, or the end of the step
}

PrefetchTimes prefetch_times(const Training *t, size_t N, bool reshard) {
    const ModelConfig *c = &t->model;
    Steps s = { .t = t,
                .N = N,
                .n = c->layers + 2,
                .now = host_alloc(N * sizeof *s.now),
                .sent = host_alloc((4 + 3 * t->micro_batches * (c->layers + 2)) * sizeof *s.sent) };
    for (size_t r = 0; r < N; r++) s.now[r] = 0;
    double wte = ring(&s, c->vocab * c->width);
    wait(&s, start(&s, wte)); // its weights are gathered
    for (size_t k = 0; k < t->micro_batches; k++) micro_batch(&s, k, reshard);
    wait(&s, start(&s, wte)); // its gradient is reduced
    double norm = ring_time(ALL_REDUCE_PASSES, N, config_tensors(c), sizeof(double));
    double loss = ring_time(ALL_REDUCE_PASSES, N, 1, sizeof(double));
    wait(&s, start(&s, norm));
    wait(&s, start(&s, loss));
    PrefetchTimes times = { s.total - s.hidden, s.hidden, last_of(&s) };
    free(s.now);
    free(s.sent);
    return times;
}
