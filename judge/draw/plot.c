// plot.c: draws line charts in characters and as SVG.
#include "judge/draw/plot.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "judge/frame/frame.h"
#include "common/base/output.h"
#include "judge/draw/svg.h"

enum { MOST_LINES = 8, MOST_TICKS = 12, TICK_TEXT = 16 };

// ---- axes ----

typedef struct {
    double lo, hi; // limits of the values, or of their log10 on a log axis
    bool log;
    size_t ticks;
    double tick[MOST_TICKS]; // in the unit of lo and hi
    char text[MOST_TICKS][TICK_TEXT];
} Axis;

static bool drawn(double value, bool log) { return isfinite(value) && (value > 0 || !log); }
static double place(const Axis *a, double value) {
    return ((a->log ? log10(value) : value) - a->lo) / (a->hi - a->lo);
}

static void axis_take(Axis *a, double value) {
    double v = a->log ? log10(value) : value;
    if (v < a->lo) a->lo = v;
    if (v > a->hi) a->hi = v;
}

static void tick_text(char text[TICK_TEXT], double v) {
    static const struct {
        double unit;
        char letter[2];
    } units[] = { { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" }, { 1, "" } };
    double size = fabs(v);
    size_t i = 0;
    while (i + 1 < sizeof units / sizeof *units && size < units[i].unit * (1 - 1e-9)) i++;
    snprintf(text, TICK_TEXT, "%.4g%s", v / units[i].unit, units[i].letter);
}

static void add_tick(Axis *a, double at, double value) {
    double margin = 1e-6 * (a->hi - a->lo);
    if (at < a->lo - margin || at > a->hi + margin || a->ticks == MOST_TICKS) return;
    tick_text(a->text[a->ticks], value);
    a->tick[a->ticks++] = at;
}

// Puts ticks at powers of ten, or at every second, third, ... power if the axis spans many powers.
// If the axis spans less than two powers, ticks are also at 2 and 5 times each power.
static void log_ticks(Axis *a) {
    double first = floor(a->lo), last = ceil(a->hi), step = ceil((last - first) / 8);
    static const double between[] = { 1, 2, 5 };
    size_t n = a->hi - a->lo < 2 ? 3 : 1;
    for (double e = first; e <= last; e += n == 3 ? 1 : step)
        for (size_t i = 0; i < n; i++) add_tick(a, e + log10(between[i]), between[i] * pow(10, e));
}

// Returns 1, 2 or 5 times a power of ten, which divides the range into 3 to 8 steps.
static double nice_step(double range) {
    double power = pow(10, floor(log10(range))), ratio = range / power;
    if (ratio < 1.5) return power * 0.2;
    if (ratio < 4) return power * 0.5;
    return ratio < 8 ? power : power * 2;
}

// Computes the ticks. If wide is true, a linear axis begins and ends at a tick.
static void axis_finish(Axis *a, bool wide) {
    if (a->lo > a->hi) a->lo = a->hi = 0; // there is no point at all
    double same = a->lo != 0 ? fabs(a->lo) / 2 : 1;
    if (a->log) same = 0.5;
    if (a->hi - a->lo <= 1e-9 * (fabs(a->lo) + fabs(a->hi))) {
        a->lo -= same;
        a->hi += same;
    }
    if (a->log) {
        log_ticks(a);
        return;
    }
    double step = nice_step(a->hi - a->lo), first = floor(a->lo / step + 1e-6),
           last = ceil(a->hi / step - 1e-6);
    if (wide) {
        a->lo = first * step;
        a->hi = last * step;
    }
    for (double k = first; k <= last; k++) add_tick(a, k * step, k * step);
}

typedef struct {
    Axis x, y;
    size_t points, left_out;
} Axes;

static Axes axes_of(const Plot *p) {
    Axes a = { .x = { INFINITY, -INFINITY, .log = p->log_x },
               .y = { INFINITY, -INFINITY, .log = p->log_y } };
    for (size_t l = 0; l < p->n_lines; l++)
        for (size_t i = 0; i < p->n; i++) {
            double x = p->x[i], y = p->lines[l].y[i];
            if (isnan(y)) continue;
            if (!drawn(x, p->log_x) || !drawn(y, p->log_y)) {
                a.left_out++;
                continue;
            }
            a.points++;
            axis_take(&a.x, x);
            axis_take(&a.y, y);
        }
    axis_finish(&a.x, false);
    axis_finish(&a.y, true);
    return a;
}

// Returns the next point of line l from i on, or p->n if the line has no more points.
static size_t next_point(const Plot *p, size_t l, size_t i) {
    while (i < p->n && !(drawn(p->x[i], p->log_x) && drawn(p->lines[l].y[i], p->log_y))) i++;
    return i;
}

// ---- in the terminal ----

enum { LABEL = 9, COLUMNS = 67, ROWS = 17 }; // 78 columns in all, including a space and the axis
typedef struct {
    char cell[ROWS][COLUMNS + 1];
} Canvas;

static size_t column_of(const Axes *a, double x) {
    return (size_t)lround(place(&a->x, x) * (COLUMNS - 1));
}
static size_t row_of(const Axes *a, double y) {
    return (size_t)lround((1 - place(&a->y, y)) * (ROWS - 1));
}

static void draw_points(Canvas *c, const Plot *p, const Axes *a) {
    for (size_t l = 0; l < p->n_lines; l++)
        for (size_t i = next_point(p, l, 0); i < p->n; i = next_point(p, l, i + 1)) {
            char *cell = &c->cell[row_of(a, p->lines[l].y[i])][column_of(a, p->x[i])],
                 letter = (char)('a' + l);
            *cell = *cell == ' ' || *cell == letter ? letter : '*';
        }
}
static void draw_between(Canvas *c, const Plot *p, const Axes *a) {
    for (size_t l = 0; l < p->n_lines; l++)
        for (size_t i = next_point(p, l, 0), j; (j = next_point(p, l, i + 1)) < p->n; i = j) {
            double x = (double)column_of(a, p->x[i]), y = (double)row_of(a, p->lines[l].y[i]);
            double dx = (double)column_of(a, p->x[j]) - x,
                   dy = (double)row_of(a, p->lines[l].y[j]) - y;
            double steps = fmax(fabs(dx), fabs(dy));
            for (double k = 1; k < steps; k++) {
                char *cell = &c->cell[(size_t)lround(y + dy * k / steps)]
                                     [(size_t)lround(x + dx * k / steps)];
                if (*cell == ' ') *cell = '.';
            }
        }
}

static void print_canvas(Run *run, const Canvas *c, const Plot *p, const Axes *a) {
    say(run, "%*s", LABEL + 1, p->y_label);
    for (size_t row = 0; row < ROWS; row++) {
        const char *label = "";
        for (size_t t = 0; t < a->y.ticks; t++) {
            double at = (1 - (a->y.tick[t] - a->y.lo) / (a->y.hi - a->y.lo)) * (ROWS - 1);
            if ((size_t)lround(at) == row) label = a->y.text[t];
        }
        char line[LABEL + COLUMNS + 3];
        int n =
            snprintf(line, sizeof line, "%*s %c%s", LABEL, label, *label ? '+' : '|', c->cell[row]);
        while (n > 0 && line[n - 1] == ' ') line[--n] = 0;
        say(run, "%s", line);
    }
}

static void print_x_axis(Run *run, const Plot *p, const Axes *a) {
    char line[LABEL + 2 + COLUMNS + 1], text[sizeof line];
    memset(line, ' ', LABEL + 1);
    memset(line + LABEL + 1, '-', COLUMNS + 1);
    memset(text, ' ', sizeof text);
    line[LABEL + 1] = '+';
    line[sizeof line - 1] = text[sizeof text - 1] = 0;
    size_t free_from = 0;
    for (size_t t = 0; t < a->x.ticks; t++) {
        size_t at = LABEL + 2 +
                    (size_t)lround((a->x.tick[t] - a->x.lo) / (a->x.hi - a->x.lo) * (COLUMNS - 1));
        size_t length = strlen(a->x.text[t]), from = at - length / 2;
        line[at] = '+';
        if (from + length > sizeof text - 1) from = sizeof text - 1 - length;
        if (from < free_from) continue; // no room beside the previous label
        memcpy(text + from, a->x.text[t], length);
        free_from = from + length + 1;
    }
    for (size_t n = strlen(text); n > 0 && text[n - 1] == ' '; n--) text[n - 1] = 0;
    say(run, "%s\n%s\n%*s", line, text, LABEL + 2 + COLUMNS, p->x_label);
}

static void print_legend(Run *run, const Plot *p, const Axes *a) {
    char line[LABEL + COLUMNS + 3] = "";
    size_t n = 0;
    for (size_t l = 0; l < p->n_lines + (p->n_lines > 1); l++) {
        char entry[64];
        if (l < p->n_lines)
            snprintf(entry, sizeof entry, "   %c %s", (char)('a' + l), p->lines[l].name);
        else snprintf(entry, sizeof entry, "   * several");
        if (n + strlen(entry) >= sizeof line) {
            say(run, "%s", line);
            n = 0;
        }
        n += (size_t)snprintf(line + n, sizeof line - n, "%s", entry);
    }
    say(run, "%s", line);
    if (a->left_out)
        say(run, "   not drawn: %zu point%s, not finite%s", a->left_out,
            a->left_out == 1 ? "" : "s",
            p->log_x || p->log_y ? " or not above 0 on a log axis" : "");
}

static void print_plot(Run *run, const Plot *p, const Axes *a) {
    Canvas *c = host_alloc(sizeof *c);
    memset(c->cell, ' ', sizeof c->cell);
    for (size_t row = 0; row < ROWS; row++) c->cell[row][COLUMNS] = 0;
    draw_points(c, p, a);
    draw_between(c, p, a);
    print_canvas(run, c, p, a);
    print_x_axis(run, p, a);
    print_legend(run, p, a);
    free(c);
}

// ---- as SVG ----

// The sizes are in pixels. The legend is at the right.
enum { WIDTH = 800, HEIGHT = 420, LEFT = 70, RIGHT = 600, TOP = 40, BOTTOM = 370 };

// Every line has its own colour. The first four lines also differ in marks and dashes, so a chart
// of up to four lines is readable without colours.
static const char *const colour[MOST_LINES] = { "#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                "#e69f00", "#56b4e9", "#000",    "#777" };
static const char *const dash[MOST_LINES] = { "none", "6 3", "2 2", "8 3 2 3",
                                              "none", "6 3", "2 2", "8 3 2 3" };

static double svg_x(const Axis *a, double at) {
    return LEFT + (at - a->lo) / (a->hi - a->lo) * (RIGHT - LEFT);
}
static double svg_y(const Axis *a, double at) {
    return BOTTOM - (at - a->lo) / (a->hi - a->lo) * (BOTTOM - TOP);
}

static void svg_axes(FILE *f, const Plot *p, const Axes *a) {
    for (size_t t = 0; t < a->x.ticks; t++) {
        double x = svg_x(&a->x, a->x.tick[t]);
        fprintf(f,
                "<path class=\"g\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%s</text>\n",
                x, TOP, BOTTOM, x, BOTTOM + 16, a->x.text[t]);
    }
    for (size_t t = 0; t < a->y.ticks; t++) {
        double y = svg_y(&a->y, a->y.tick[t]);
        fprintf(f,
                "<path class=\"g\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>\n",
                LEFT, y, RIGHT, LEFT - 6, y + 4, a->y.text[t]);
    }
    fprintf(f,
            "<path d=\"M%d %dV%dH%d\" stroke=\"#333\" fill=\"none\"/>\n<text x=\"%d\" y=\"%d\" "
            "text-anchor=\"middle\">",
            LEFT, TOP, BOTTOM, RIGHT, (LEFT + RIGHT) / 2, BOTTOM + 36);
    svg_text(f, p->x_label);
    fprintf(f, "</text>\n<text transform=\"translate(16 %d)rotate(-90)\" text-anchor=\"middle\">",
            (TOP + BOTTOM) / 2);
    svg_text(f, p->y_label);
    fprintf(f, "</text>\n");
}

static void svg_mark(FILE *f, size_t l, double x, double y) {
    switch (l % 4) {
    case 0:
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>", x, y, colour[l]);
        break;
    case 1:
        fprintf(f, "<path d=\"M%.1f %.1fh6v6h-6z\" fill=\"%s\"/>", x - 3, y - 3, colour[l]);
        break;
    case 2: fprintf(f, "<path d=\"M%.1f %.1fl4 7h-8z\" fill=\"%s\"/>", x, y - 4, colour[l]); break;
    case 3:
        fprintf(f, "<path d=\"M%.1f %.1fl4 4l-4 4l-4-4z\" fill=\"%s\"/>", x, y - 4, colour[l]);
        break;
    }
}

static void svg_line(FILE *f, const Plot *p, const Axes *a, size_t l) {
    enum { MOST_MARKS = 40 }; // more marks would overlap
    size_t points = 0;
    fprintf(f,
            "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" stroke-dasharray=\"%s\" "
            "points=\"",
            colour[l], dash[l]);
    for (size_t i = next_point(p, l, 0); i < p->n; i = next_point(p, l, i + 1))
        fprintf(f, "%s%.1f,%.1f", points++ ? " " : "",
                LEFT + place(&a->x, p->x[i]) * (RIGHT - LEFT),
                BOTTOM - place(&a->y, p->lines[l].y[i]) * (BOTTOM - TOP));
    fprintf(f, "\"/>\n");
    for (size_t i = next_point(p, l, 0); points <= MOST_MARKS && i < p->n;
         i = next_point(p, l, i + 1))
        svg_mark(f, l, LEFT + place(&a->x, p->x[i]) * (RIGHT - LEFT),
                 BOTTOM - place(&a->y, p->lines[l].y[i]) * (BOTTOM - TOP));
    int y = TOP + 12 + 20 * (int)l;
    fprintf(f,
            "\n<path d=\"M%d %dh30\" stroke=\"%s\" stroke-width=\"1.5\" stroke-dasharray=\"%s\"/>",
            RIGHT + 15, y, colour[l], dash[l]);
    svg_mark(f, l, RIGHT + 30, y);
    fprintf(f, "<text x=\"%d\" y=\"%d\">", RIGHT + 52, y + 4);
    svg_text(f, p->lines[l].name);
    fprintf(f, "</text>\n");
}

static void write_plot(const Plot *p, const Axes *a, const char *file) {
    Output o = output_open("svg", file);
    fprintf(o.f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
            "<style>.g{stroke:#ddd;fill:none}</style>\n<text x=\"%d\" y=\"20\" font-size=\"14\">",
            WIDTH, HEIGHT, LEFT);
    svg_text(o.f, p->title);
    fprintf(o.f, "</text>\n");
    svg_axes(o.f, p, a);
    for (size_t l = 0; l < p->n_lines; l++) svg_line(o.f, p, a, l);
    fprintf(o.f, "</svg>\n");
    output_close(&o);
}

void plot_show(Run *run, const Plot *p, int what) {
    bool files = !(what & PICTURE_NO_FILES);
    if (files) run->state->plotted = true;
    if (!run->is_root) return;
    if (p->n_lines > MOST_LINES)
        fault("a plot of %zu lines: draw at most %d, because more cannot be distinguished",
              p->n_lines, MOST_LINES);
    Axes axes = axes_of(p);
    bool shown = !(what & PICTURE_DETAIL) || run->state->program->verbose;
    if (shown) say(run, "%s%s", p->title, axes.points ? "" : ": no points, nothing to draw");
    if (shown && axes.points) print_plot(run, p, &axes);
    if (files && option_text(run, "svg")) write_plot(p, &axes, option_text(run, "svg"));
}
