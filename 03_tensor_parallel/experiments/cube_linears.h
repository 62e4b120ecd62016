// cube_linears.h: the first half of the experiment of 11_cube.c: two linear layers on a cube.
#ifndef CUBE_LINEARS_H
#define CUBE_LINEARS_H
#include "03_tensor_parallel/tensor_parallel.h"
#include "judge/frame/lesson.h"

typedef struct { size_t B, T, K, N; } CubeSizes;           // X [B*T, K], V [K, N], W [N, K]
// Compares Y = X V and Z = Y W and their gradients with the unsplit ones, and checks the bytes sent
// along each axis. shown: the page has a picture of this run.
void cube_two_linears(Run *run, const Cube *c, CubeSizes z, bool shown);
#endif
