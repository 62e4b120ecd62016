// mesh.h declares the coordinates of a rank in a mesh of dp x tp x pp ranks, with context
// parallelism dp x cp x tp x pp. The file also declares the groups in which a rank communicates.
// The number of a rank is
//     rank = tp_rank + tp * (cp_rank + cp * (dp_rank + dp * pp_rank))
#ifndef MESH_H
#define MESH_H
#include "common/comm/comm.h"

// cp 0 means 1: every rank has whole sequences.
typedef struct {
    size_t dp, tp, pp, cp;
} Degrees;
typedef struct {
    size_t dp, tp, pp, cp;
} Coordinates;
static inline size_t mesh_cp(Degrees n) { return n.cp ? n.cp : 1; }
Coordinates mesh_coordinates(Degrees n, size_t rank);
size_t mesh_rank(Degrees n, Coordinates c);

// Completes the degrees that a user has chosen (0: not chosen) to a mesh of `world` ranks. The
// defaults are cp 1, tp 2, then pp 2, if the number of ranks allows them; dp takes the remaining
// ranks. Calls usage_error() if the product of the chosen degrees does not divide `world`.
Degrees mesh_degrees(size_t world, Degrees chosen);

// The axes of the mesh, as bits. A set of axes is a sum of these bits.
enum { MESH_TP = 1, MESH_DP = 2, MESH_PP = 4, MESH_CP = 8 };
enum { MESH_ALL = MESH_TP | MESH_DP | MESH_PP | MESH_CP };

typedef struct {
    Degrees n;
    Coordinates at;
    Comm *world;
    Comm *group[MESH_ALL + 1]; // [axes along which its ranks differ]; NULL: not made yet
    Comm *dp, *tp, *pp;        // ranks that differ from this rank only in this coordinate
    Comm *cp;                  // ranks that differ only in cp; NULL without context parallelism
    // dp x cp: ranks with the same parameters. Gradients are summed over these ranks, and ZeRO
    // shards over them.
    Comm *replicas;
    // tp x pp: together these ranks hold one replica. For the gradient norm, squares are summed
    // over these ranks, or over the world if gradients are sharded.
    Comm *model;
    // first and last stage, which sum a tied table's gradient; NULL on other stages and with pp 1
    Comm *tied;
} Mesh;
// Makes the mesh of this world, with this rank's groups. Collective. Calls usage_error() if the
// product of the degrees is not the number of ranks.
Mesh mesh_new(Comm *world, Degrees n);
// Returns the group of ranks that differ from this rank only along these axes, in the order of the
// world. All axes give the world, and no axis gives a group of this rank alone. The first call for
// these axes is collective over the world. mesh_free() frees the group.
Comm *mesh_group(Mesh *m, unsigned axes);
void mesh_free(Mesh *m);
#endif
