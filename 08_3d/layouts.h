// layouts.h: the layouts dp x tp x pp that a world of ranks can have, and a world whose ranks
// are numbered otherwise.
#ifndef LAYOUTS_H
#define LAYOUTS_H
#include "08_3d/mesh.h"

enum { MOST_LAYOUTS = 64 };
// Writes all layouts of `world` ranks with at most tp heads, pp blocks and dp sequences. Returns
// how many.
size_t layouts_of(size_t world, Degrees most, Degrees layout[MOST_LAYOUTS]);
// The process, a rank of the world, that is rank r of the mesh.
typedef size_t LayoutOrder(Degrees n, size_t r);
LayoutOrder wrong_way_round; // pp varies fastest, tp slowest
// Collective; comm_free() it.
Comm *layout_reordered(Comm *world, Degrees n, LayoutOrder *process);
#endif
