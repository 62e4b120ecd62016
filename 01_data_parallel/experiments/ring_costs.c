// ring_costs.c: predicts messages, bytes, scratch and time of the four ways of 03_ring, from the
// sizes alone.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>

const char *const way_name[WAYS] = { "ring", "gather + broadcast", "tree", "halving-doubling" };

size_t way_height(size_t N) {
    size_t h = 0;
    while (((size_t)1 << h) < N) h++;
    return h;
}
// Returns the largest power of two that is at most N.
static size_t power_below(size_t N) { return (size_t)1 << (way_height(N + 1) - 1); }

// Returns the number of elements of chunks [lo, hi) when `count` elements are cut in n chunks.
static size_t elements(size_t count, size_t n, size_t lo, size_t hi) {
    size_t sum = 0;
    for (size_t i = lo; i < hi; i++) sum += part_size(count, n, i);
    return sum;
}

// Returns way_costs() in elements instead of bytes.
static WayCosts in_elements(Way way, size_t N, size_t r, size_t count) {
    size_t n = power_below(N), rest = N - n, children = 0, sent = 0;
    switch (way) {
    case RING: // sends every chunk but one, twice: 2 (N-1)/N of the elements if N divides `count`
        sent = 2 * count - part_size(count, N, (r + 1) % N) - part_size(count, N, (r + 2) % N);
        return (WayCosts){ 2 * (N - 1), sent, N > 1 ? part_size(count, N, 0) : 0 };
    case GATHER: // every message is the whole tensor, to or from rank 0
        return r > 0 ? (WayCosts){ 1, count, 0 }
                     : (WayCosts){ N - 1, (N - 1) * count, N > 1 ? count : 0 };
    case TREE: // to the parent, and to every child
        for (size_t d = 1; r % (2 * d) == 0 && d < N; d *= 2) children += r + d < N;
        return (WayCosts){ children + (r > 0), (children + (r > 0)) * count, children ? count : 0 };
    default: break;
    }
    if (r >= n) return (WayCosts){ 1, count, 0 };
    // Halving: sends all but chunk r. Doubling: ranges of 1, 2, 4, ... chunks with chunk r in them.
    sent = count - part_size(count, n, r);
    for (size_t d = 1; d < n; d *= 2) sent += elements(count, n, r / d * d, r / d * d + d);
    return (WayCosts){ 2 * way_height(n) + (r < rest), sent + (r < rest ? count : 0),
                       r < rest ? count : elements(count, n, 0, n / 2) };
}
WayCosts way_costs(Way way, size_t N, size_t r, size_t count, size_t e) {
    WayCosts b = in_elements(way, N, r, count);
    return (WayCosts){ b.messages, b.bytes * e, b.scratch * e };
}

static double message(const ClockLink *l, size_t bytes) {
    return l->beta == 0 ? 0 : round(l->alpha * 1e12 + (double)bytes * 1e12 / l->beta);
}

// Adds the times of the messages that follow one another. In the ring and in halving the first
// chunks are the largest, so these chunks decide the time.
double way_time_on(const ClockLink *l, Way way, size_t N, size_t count, size_t e) {
    size_t n = power_below(N);
    double time = n < N ? 2 * message(l, count * e) : 0; // to a rank below n, and back
    switch (way) {
    case RING: return (double)(2 * (N - 1)) * message(l, ceil_div(count, N) * e);
    case GATHER: return (double)(2 * (N - 1)) * message(l, count * e);
    case TREE: return (double)(2 * way_height(N)) * message(l, count * e);
    default: break;
    }
    for (size_t d = 1; d < n; d *= 2) time += 2 * message(l, elements(count, n, 0, d) * e);
    return time;
}
size_t way_ring_overtakes(size_t N, size_t e) {
    const ClockLink *l = &clock_config()->between;
    size_t count = N;
    while (way_time_on(l, RING, N, count, e) > way_time_on(l, TREE, N, count, e)) count += N;
    return count * e;
}
