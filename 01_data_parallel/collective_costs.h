// collective_costs.h: what the four ways of collectives.h must cost, from the sizes alone.
#ifndef COLLECTIVE_COSTS_H
#define COLLECTIVE_COSTS_H
#include "common/model/layer.h"

typedef enum { RING, GATHER, TREE, HALVING, WAYS } Way;
size_t power_below(size_t N);                      // the largest power of two that is at most N

// What rank r of N sends of `count` elements, and its scratch memory in bytes.
typedef struct { size_t messages, bytes, scratch; } Bill;
Bill way_bill(Way way, size_t N, size_t r, size_t count);

// Picoseconds until the last rank is done, each with one port.
double way_time(Way way, size_t N, size_t count);
// From how many times `unit` elements on the ring is no slower than another way. `unit` is divided by N, and by the
// number of chunks of the other way.
size_t ring_overtakes(Way way, size_t N, size_t unit);
#endif
