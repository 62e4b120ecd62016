// 08_costs.h: the time that messages add to ring attention, as a closed form. 12_compare.c and
// chapter 08's experiments predict their steps with it.
#ifndef RING_ATTENTION_COSTS_H
#define RING_ATTENTION_COSTS_H
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

// Returns the time of a block's ring attention over n equal zigzag chunks, beyond the time of its
// products. own: the products of step 0. other: the products of each of the other n-1 steps. hop:
// one message of k | v, or of dk | dv. Forward sends nothing in the last step:
//     max(own, hop) + (n-2) max(other, hop) + other
// Backward sends dk | dv after the products, on the same lane behind the next k | v. The last hop
// is never hidden:
//     max(own, hop) + (n-2) max(other, 2 hop) + max(other, hop) + hop
static inline double context_ring_waits(size_t n, double own, double other, double hop,
                                        bool backward) {
    if (n == 1) return 0;
    const double hops = backward ? 2 : 1;
    const double wait = fmax(0, hop - own) + (double)(n - 2) * fmax(0, hops * hop - other);
    return backward ? wait + fmax(0, hop - other) + hop : wait;
}
#endif
