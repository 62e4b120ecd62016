// presets.h: declares the devices and links that --device and --link name.
#ifndef PRESETS_H
#define PRESETS_H
#include "common/comm/clock.h"

extern const ClockDevice clock_devices[]; // the last entry of each list has name NULL
extern const ClockLink clock_links[];
#endif
