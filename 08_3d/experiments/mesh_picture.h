// mesh_picture.h: a mesh as lines of text, and which link its groups use.
#ifndef MESH_PICTURE_H
#define MESH_PICTURE_H
#include "08_3d/mesh.h"

// A line for each stage, its replicas side by side: [ ] is a tensor-parallel group. stage_blocks: how many blocks each
// stage has, or NULL: without them.
void mesh_show(Run *run, Degrees n, const size_t *stage_blocks);
// For results(): "=fast", the link on which the group's messages travel; NULL for one rank, no group or the wall clock.
enum { LINK_NAME = 16 };
const char *mesh_link(const Comm *group, char text[LINK_NAME]);
#endif
