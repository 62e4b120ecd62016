// grid_linear.h: the first half of the experiment of 09_summa.c: one linear layer on a grid.
#ifndef GRID_LINEAR_H
#define GRID_LINEAR_H
#include "common/comm/comm.h"
#include "judge/frame/lesson.h"

typedef struct { size_t M, K, N; } GridLinear;     // X [M, K], A [K, N]
// Compares the layer's output and gradients with the unsplit ones. Checks the bytes that a rank
// receives, its memory and its time where q divides all sizes, and shows the picture of the layer.
void grid_linear_compare(Run *run, const CommGrid *g, GridLinear z);
#endif
