// 03_page.h: what 03_ring shows besides its checks: the steps of the ring, which way is the fastest where,
// and what nodes change.
#ifndef RING_PAGE_H
#define RING_PAGE_H
#include "01_data_parallel/experiments/03_costs.h"

// A line for each step of the ring on this world's ranks: which chunk travels from whom to whom.
void ring_say_steps(Run *run);
// The table of results: by size, ranks and link, the fastest of ring, tree, and gather and broadcast.
void ring_say_fastest(Run *run);
// What one all-reduce of so many elements over nodes took, flat and hierarchical. After way_compare_nodes.
void ring_say_nodes(Run *run, size_t count);
#endif
