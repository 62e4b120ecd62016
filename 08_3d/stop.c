// stop.c tells all ranks whether any rank has to stop. Ranks notice a signal at different steps,
// and the clocks of ranks differ. So if one rank must stop, all ranks stop.
#include "08_3d/stop.h"

bool stop_due(double left, double step) {
    // The next step may take as long as the last step.
    return side_any(stop_asked() >= 0 || step > left);
}
