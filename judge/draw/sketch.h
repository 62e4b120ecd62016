// sketch.h: declares the drawing of a curve in the terminal.
#ifndef SKETCH_H
#define SKETCH_H
#include "judge/frame/lesson.h"

// Draws y[0..n) on rank 0: 10 lines high, at most 64 columns wide. Each column is the mean of its
// points.
void sketch_curve(Run *run, const char *title, const double *y, size_t n);
#endif
