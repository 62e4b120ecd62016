// step_groups.c makes the groups of a mesh for the player of expected steps, and tests how the
// groups are placed on nodes.
#include "08_3d/experiments/step_ops.h"
#include <stdlib.h>

void step_groups(Play *play, Degrees n, unsigned axes, const char *name, size_t *group) {
    size_t world = n.dp * n.tp * n.pp * mesh_cp(n), *member = host_alloc(world * sizeof *member);
    for (size_t first = 0; first < world; first++) {
        Coordinates a = mesh_coordinates(n, first);
        if (((axes & MESH_TP) && a.tp) || ((axes & MESH_DP) && a.dp) ||
            ((axes & MESH_PP) && a.pp) || ((axes & MESH_CP) && a.cp))
            continue;
        size_t members = 0;
        for (size_t r = first; r < world; r++) {
            Coordinates b = mesh_coordinates(n, r);
            bool same = ((axes & MESH_TP) || a.tp == b.tp) && ((axes & MESH_DP) || a.dp == b.dp) &&
                        ((axes & MESH_PP) || a.pp == b.pp) && ((axes & MESH_CP) || a.cp == b.cp);
            if (same) member[members++] = r;
        }
        size_t made = play_group_of(play, name, members, member);
        for (size_t i = 0; i < members; i++) group[member[i]] = made;
    }
    free(member);
}

bool step_cp_near(Degrees n, Coordinates at) {
    bool near = true;
    for (size_t t = 0; t < n.tp; t++)
        for (size_t k = 1; k < mesh_cp(n); k++) {
            Coordinates a = at, b = at;
            a.tp = t;
            a.cp = 0;
            b.tp = t;
            b.cp = k;
            near = near && clock_same_node(mesh_rank(n, a), mesh_rank(n, b));
        }
    return near;
}

// If the result is true, all groups of `ranks` neighbouring ranks are placed on nodes alike.
static bool divides(size_t ranks, size_t node) { return ranks % node == 0 || node % ranks == 0; }

bool mesh_groups_alike(Degrees n) {
    size_t node = clock_config()->node, near = n.tp * mesh_cp(n), stage = near * n.dp;
    size_t world = stage * n.pp;
    return node == 0 || world <= node ||
           (divides(n.tp, node) && divides(near, node) && divides(stage, node) &&
            divides(world, node));
}
