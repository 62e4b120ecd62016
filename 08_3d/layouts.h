// layouts.h declares functions that list the layouts dp x tp x pp of a world of ranks, and number
// the ranks in another order.
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include "08_3d/mesh.h"

enum { MOST_LAYOUTS = 64 };
// Writes all layouts of `world` ranks whose degrees are at most those of `most`. Returns the number
// of layouts.
size_t layouts_of(size_t world, Degrees most, Degrees layout[MOST_LAYOUTS]);
// A function of this type returns the rank in the world of the process that is rank r of the mesh.
typedef size_t LayoutOrder(Degrees n, size_t r);
LayoutOrder opposite_order; // pp varies fastest, tp slowest
// Returns a world in which process(n, r) is rank r. Collective. The caller calls comm_free().
Comm *layout_reordered(Comm *world, Degrees n, LayoutOrder *process);
#endif
