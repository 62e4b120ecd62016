// 08_costs.h: how long the messages of ring attention show, a closed form for other experiments.
#ifndef RING_ATTENTION_COSTS_H
#define RING_ATTENTION_COSTS_H
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

// How much longer a block's ring attention over n equal zigzag chunks takes than its products. own:
// products of step 0; other: of each of the n-1 other steps; hop: a message of k | v, or of dk | dv.
// Forward, where nothing leaves in the last step:
//     max(own, hop) + (n-2) max(other, hop) + other
// Backward, where dk | dv leave after the products on the same lane, behind the next k | v
// (the last hop is never hidden):
//     max(own, hop) + (n-2) max(other, 2 hop) + max(other, hop) + hop
static inline double context_ring_waits(size_t n, double own, double other, double hop,
                                        bool backward) {
    if (n == 1) return 0;
    const double hops = backward ? 2 : 1;
    const double wait = fmax(0, hop - own) + (double)(n - 2) * fmax(0, hops * hop - other);
    return backward ? wait + fmax(0, hop - other) + hop : wait;
}
#endif
