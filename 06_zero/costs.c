// costs.c: see costs.h.
#include "06_zero/costs.h"
#include "common/lesson/picture.h"
#include <stdio.h>

static void add(Share *s, size_t size, size_t n, size_t rank) {
    size_t part = range_size(shard_range(size, n, rank));
    s->units++;
    s->whole += size;
    s->mine += part;
    s->bytes += ring_bytes(ONE_PASS, n, size, sizeof(real));           // (n-1)/n of it, rounded up
    s->time += ring_time(ONE_PASS, n, size, sizeof(real));
    if (size <= s->largest) return;
    s->largest = size;
    s->largest_part = part;
}
Share share_of_wte(const ModelConfig *c, size_t n, size_t rank) {
    Share s = {0};
    add(&s, c->vocab * c->width, n, rank);
    return s;
}
Share share_of_others(const ModelConfig *c, size_t n, size_t rank) {
    Share s = {0};
    size_t C = c->width;
    add(&s, c->context * C, n, rank);
    for (size_t i = 0; i < c->layers; i++) add(&s, 12 * C * C + 13 * C, n, rank);
    add(&s, 2 * C, n, rank);
    return s;
}

// Micro-batch k of a rank.
static size_t sequences(const Training *t, size_t n, size_t rank, size_t k) {
    return range_size(shard_range(range_size(shard_range(t->sequences, n, rank)), t->micro_batches, k));
}
size_t activations(const Training *t, size_t n, size_t rank) {
    const ModelConfig *c = &t->model;
    size_t outputs = (1 + c->layers) * c->width;                       // of the embedding and the blocks
    size_t inside = c->layers * kept_block(c, c->heads, 4 * c->width) + kept_head(c, c->vocab);
    return sequences(t, n, rank, 0) * c->context * (outputs + inside);
}
double scalars_bytes(const ModelConfig *c, size_t n) {
    return ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)) +
           ring_bytes(ALL_REDUCE_PASSES, n, 1, sizeof(double));
}
static double scalars_time(const ModelConfig *c, size_t n) {
    return ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)) +
           ring_time(ALL_REDUCE_PASSES, n, 1, sizeof(double));
}

void cost_with(Run *run, size_t m, const char *name, const char *unit, double predicted, double measured) {
    char line[96];
    snprintf(line, sizeof line, "m = %zu: %s", m, name);
    cost(run, line, unit, predicted, measured);
}

// One forward and its backward, on a micro-batch of B sequences.
static Work forward_backward(const ModelConfig *c, size_t B) {
    Work blocks = work_times((double)c->layers, work_block(c, B, c->heads, 4 * c->width));
    return work_times(3, work_sum(blocks, work_head(c, B, c->vocab)));
}

void costs_in_time(Run *run, const Training *t, double traffic) {
    size_t N = run->world->size, m = t->micro_batches;
    Timing is = picture_timing(run);
    double computing = 0, talking = traffic + scalars_time(&t->model, N);
    double flops = forward_backward(&t->model, t->sequences).flops;
    cost_with(run, m, "FLOPs of all ranks: 3 forwards", "FLOPs", flops, is.flops);
    if (!clock_config()->simulated) return;            // real time is as it is
    // Rank 0 has most sequences, in each micro-batch: the others wait for it.
    for (size_t k = 0; k < m; k++) computing += forward_backward(&t->model, sequences(t, N, 0, k)).time;
    cost_with(run, m, "exposed: every ring, on every rank", "ps", (double)N * talking, (double)is.exposed);
    cost_with(run, m, "hidden: nothing", "ps", 0, (double)is.hidden);
    cost_with(run, m, "step: computing, and every ring", "ps", computing + talking, (double)is.step);
}

void show_step(Run *run, const Training *t, const char *stage) {
    char title[64];
    snprintf(title, sizeof title, "%s, m = %zu", stage, t->micro_batches);
    Timing timing = picture_timing(run);
    picture_show(run, title, PICTURE_MEMORY);
    picture_summary(run, &timing);
}
