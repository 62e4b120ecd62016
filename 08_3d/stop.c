// stop.c: asks all ranks whether one of them has to stop.
#include "08_3d/stop.h"

// Ranks notice a signal at different steps, and their clocks differ. One rank is enough to stop
// all.
bool stop_due(double left, double step) {
    // The next step may take as long as this one.
    return side_any(stop_asked() >= 0 || step > left);
}
