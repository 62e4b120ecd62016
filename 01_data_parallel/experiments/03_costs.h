// 03_costs.h: what the four ways of 03_ring to make an all-reduce must cost, from the sizes alone.
#ifndef RING_COSTS_H
#define RING_COSTS_H
#include "judge/frame/lesson.h"
#include "common/comm/clock.h"

typedef enum { RING, GATHER, TREE, HALVING, WAYS } Way;
extern const char *const way_name[WAYS];
size_t way_power_below(size_t N);                      // the largest power of two that is at most N

// What rank r of N sends of `count` elements, and its scratch memory in bytes.
typedef struct { size_t messages, bytes, scratch; } WayCosts;
WayCosts way_costs(Way way, size_t N, size_t r, size_t count);

// Picoseconds until the last rank is done, each with one port; over this run's link between nodes, or any other.
double way_time(Way way, size_t N, size_t count);
double way_time_on(const ClockLink *l, Way way, size_t N, size_t count);
// From how many times `unit` elements on the ring is no slower than another way. `unit` is divided by N, and by the
// number of chunks of the other way.
size_t way_ring_overtakes(Way way, size_t N, size_t unit);

// What a rank was seen to do: messages and bytes sent for all sizes, scratch at its peak, bytes sent for one size.
typedef struct { size_t messages, bytes, scratch, even; } WaySeen;
// The cost lines. count[sizes]; N divides count[even].
void way_compare_costs(Run *run, const WaySeen is[WAYS], const size_t *count, size_t sizes, size_t even);

// Of one all-reduce over nodes of n ranks: bytes that a rank sent, and the time in picoseconds; flat (a ring over all
// ranks) and hierarchical (inside the node, between nodes).
typedef struct { size_t flat, inside, between; double flat_time, time; } NodesSeen;
void way_compare_nodes(Run *run, const NodesSeen *is, size_t n, size_t count);
#endif
