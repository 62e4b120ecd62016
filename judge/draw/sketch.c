// sketch.c: draws a curve in the terminal.
#include "judge/draw/sketch.h"
#include <math.h>
#include <string.h>

enum { HEIGHT = 10, WIDTH = 64 };

void sketch_curve(Run *run, const char *title, const double *y, size_t n) {
    size_t width = n < WIDTH ? n : WIDTH;
    double column[WIDTH], lo = INFINITY, hi = -INFINITY;
    for (size_t x = 0; x < width; x++) {
        Range r = shard_range(n, width, x);
        column[x] = 0;
        for (size_t i = r.lo; i < r.hi; i++) column[x] += y[i] / (double)range_size(r);
        lo = fmin(lo, column[x]);
        hi = fmax(hi, column[x]);
    }
    if (!(hi > lo)) return; // no points, equal points, or NaN: nothing to draw
    say(run, "%s\n", title);
    for (size_t line = 0; line < HEIGHT; line++) {
        double top = hi - (hi - lo) * (double)line / HEIGHT,
               bottom = hi - (hi - lo) * (double)(line + 1) / HEIGHT;
        char text[WIDTH + 1];
        for (size_t x = 0; x < width; x++)
            text[x] = column[x] <= top && (column[x] > bottom || line + 1 == HEIGHT) ? '*' : ' ';
        text[width] = 0;
        say(run, "%9.3f |%s\n", (top + bottom) / 2, text);
    }
    char axis[WIDTH + 1];
    memset(axis, '-', width);
    axis[width] = 0;
    say(run, "%9s +%s\n", "", axis);
}
