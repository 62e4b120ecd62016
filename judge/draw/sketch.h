// sketch.h: a curve in the terminal.
#ifndef SKETCH_H
#define SKETCH_H
#include "judge/frame/lesson.h"

// Draws y[0..n) on rank 0: 10 lines high, at most 64 columns wide, each column the mean of its
// share of the points.
void sketch_curve(Run *run, const char *title, const double *y, size_t n);
#endif
