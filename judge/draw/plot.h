// plot.h: declares a line chart of measured numbers, such as losses, or times against sizes.
#ifndef PLOT_H
#define PLOT_H
#include "judge/draw/picture.h"

// A line has y[n]. NAN means no point, and the line continues to the next point. A log axis has no
// points at or below 0.
typedef struct {
    const char *name;
    const double *y;
} PlotLine;
typedef struct {
    const char *title, *x_label, *y_label;
    const double *x; // [n], from left to right
    size_t n;
    const PlotLine *lines;
    size_t n_lines; // at most 8
    bool log_x, log_y;
} Plot;
// Draws in the terminal on rank 0, with PICTURE_DETAIL only if --verbose is given. Writes --svg
// unless `what` has PICTURE_NO_FILES. Other ranks do not read p.
void plot_show(Run *run, const Plot *p, int what);
#endif
