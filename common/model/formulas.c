// formulas.c: see formulas.h.
#include "common/model/formulas.h"
#include <math.h>
#include "common/measure/clock.h"

size_t part_size(size_t n, size_t parts, size_t i) { return n / parts + (i < n % parts); }

double ring_bytes(size_t passes, size_t n, size_t count, size_t size) {
    return (double)(passes * (n - 1) * ceil_div(count, n) * size);               // n - 1 chunks in a pass
}
static double time_of(size_t messages, double bytes) {
    ClockLink link = clock_config()->link;
    return link.beta == 0 ? 0 : round((double)messages * link.alpha * 1e12 + bytes * 1e12 / link.beta);
}
double ring_time(size_t passes, size_t n, size_t count, size_t size) {
    return time_of(passes * (n - 1), ring_bytes(passes, n, count, size));
}
double send_time(size_t bytes) { return time_of(1, (double)bytes); }

Work work_product(size_t m, size_t n, size_t k) {
    double flops = 2 * (double)m * (double)n * (double)k;        // a multiplication and an addition each
    return (Work){ flops, round(flops * 1e12 / clock_config()->device.flops) };
}
Work work_times(double times, Work w) { return (Work){ times * w.flops, times * w.time }; }
Work work_sum(Work a, Work b) { return (Work){ a.flops + b.flops, a.time + b.time }; }

Work work_scores(const ModelConfig *c, size_t B, size_t heads) {
    return work_times((double)(B * heads), work_product(c->context, c->context, c->width / c->heads));
}
// With all heads and columns: 24 M C^2 + 4 M T C, PTD-P's 24 B s h^2 + 4 B s^2 h.
Work work_block(const ModelConfig *c, size_t B, size_t heads, size_t hidden) {
    size_t M = B * c->context, C = c->width, A = heads * (C / c->heads);
    Work attention = work_sum(work_product(M, 3 * A, C), work_product(M, C, A));                 // q, k, v; projection
    Work mlp = work_sum(work_product(M, hidden, C), work_product(M, C, hidden));                 // fc, out
    // q k^T, and its product with v.
    return work_sum(work_sum(attention, mlp), work_times(2, work_scores(c, B, heads)));
}
Work work_head(const ModelConfig *c, size_t B, size_t words) { return work_product(B * c->context, words, c->width); }
Work work_model(const ModelConfig *c, size_t B) {
    Work blocks = work_times((double)c->layers, work_block(c, B, c->heads, 4 * c->width));
    return work_times(3, work_sum(blocks, work_head(c, B, c->vocab)));           // backward is twice the work
}

size_t kept_scores(const ModelConfig *c, size_t heads) { return (c->dropout > 0 ? 2 : 1) * heads * c->context; }
size_t kept_block(const ModelConfig *c, size_t heads, size_t hidden) {
    size_t C = c->width, A = heads * (C / c->heads);
    // Statistics; q, k, v, output; fc, GELU.
    size_t norms = 2 * C + 2 * 2, attention = 3 * A + A, middle = C, mlp = 2 * hidden;
    return norms + attention + kept_scores(c, heads) + middle + mlp;
}
// Norm, statistics, logits, their sum.
size_t kept_head(const ModelConfig *c, size_t words) { return c->width + 2 + words + 1; }
size_t kept_model(const ModelConfig *c) {
    return (1 + c->layers) * c->width + c->layers * kept_block(c, c->heads, 4 * c->width) + kept_head(c, c->vocab);
}
