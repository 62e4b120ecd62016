// step_groups.h: the groups of a mesh for the player of expected steps (step_time.c).
#ifndef STEP_GROUPS_H
#define STEP_GROUPS_H
#include "08_3d/mesh.h"
#include "judge/play/play.h"

// group[r] <- the group of rank r: the ranks that differ from it along these axes only.
void step_groups(Play *play, Degrees n, unsigned axes, const char *name, size_t *group);
// Do the ranks of cp share a node, in this stage and in each group that keeps step with it?
bool step_cp_near(Degrees n, Coordinates at);
#endif
