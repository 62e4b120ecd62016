// ranks: 2
// level: core
// question: Does a line chart show its points where they are?
//
// tests/plot.t reads the output and the files of this program. --plot chooses the chart.
#include <math.h>
#include <string.h>
#include "judge/draw/plot.h"

enum { N = 9 };
static double x[N], up[N], down[N], gaps[N];

static void draw(Run *run) {
    const char *which = option_text(run, "plot");
    bool log = strcmp(which, "log") == 0, none = strcmp(which, "none") == 0,
         many = strcmp(which, "many") == 0;
    if (run->is_root)
        for (size_t i = 0; i < N; i++) {
            x[i] = log ? pow(2, 2 * (double)i) : (double)i;
            up[i] = none ? NAN : strcmp(which, "flat") == 0 ? 3 : log ? x[i] * 0.5 : 10 * (double)i;
            down[i] = none ? NAN : log ? 1e3 / x[i] : 80 - 10 * (double)i;
            gaps[i] = none ? NAN : i == 0 ? -INFINITY : i % 4 == 0 ? 20 : NAN;
        }
    const PlotLine lines[9] = {
        { "up & <up>", up }, { "down", down }, { "gaps", gaps }, { "up again", up }
    };
    Plot p = { "a \"chart\" & its <title>", "along", "high", x, N, lines, many ? 9 : 4, log, log };
    if (strcmp(which, "nothing"))
        plot_show(run, &p, strcmp(which, "no-file") ? 0 : PICTURE_NO_FILES);
    check_true(run, "all", "drawn", true);
}

static const Option options[] = {
    { "plot", "linear|log|flat|none|many|no-file|nothing", "linear", "the chart" }, { 0 }
};
EXPERIMENT(draw, options);
