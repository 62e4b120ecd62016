// stop.c: see stop.h.
#include "08_3d/stop.h"
#include <math.h>

void stop_require(Run *run) {
    if (!option_given(run, "exit-after")) return;
    REQUIRE(option_given(run, "save"), "--exit-after says when the run saves and ends: give --save DIR, too");
    REQUIRE(option_real(run, "exit-after") > 0, "--exit-after %s: expected minutes, more than 0",
            option_text(run, "exit-after"));
}

// Ranks notice a signal at different steps, and their clocks differ. One rank is enough to stop all.
bool stop_due(Run *run, double step) {
    bool limited = option_given(run, "exit-after");
    double left = limited ? 60 * option_real(run, "exit-after") - run_seconds(run) : INFINITY;
    return side_any(stop_asked() >= 0 || step > left);      // the next step may take as long as this one
}
