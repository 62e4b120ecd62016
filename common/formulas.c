// formulas.c: see formulas.h.
#include "formulas.h"
#include <math.h>
#include "clock.h"

double ring_bytes(size_t passes, size_t n, size_t count, size_t size) {
    return (double)(passes * (n - 1) * ceil_div(count, n) * size);               // n - 1 chunks in a pass
}
double ring_time(size_t passes, size_t n, size_t count, size_t size) {
    ClockLink link = clock_config()->link;
    if (link.beta == 0) return 0;
    return round((double)(passes * (n - 1)) * link.alpha * 1e12 +
                 ring_bytes(passes, n, count, size) * 1e12 / link.beta);
}

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

size_t kept_scores(const ModelConfig *c, size_t heads) { return (c->dropout > 0 ? 2 : 1) * heads * c->context; }
size_t kept_block(const ModelConfig *c, size_t heads, size_t hidden) {
    size_t C = c->width, A = heads * (C / c->heads);
    // Statistics; q, k, v, output; fc, GELU.
    size_t norms = 2 * C + 2 * 2, attention = 3 * A + A, middle = C, mlp = 2 * hidden;
    return norms + attention + kept_scores(c, heads) + middle + mlp;
}
// Norm, statistics, logits, their sum.
size_t kept_head(const ModelConfig *c, size_t words) { return c->width + 2 + words + 1; }
