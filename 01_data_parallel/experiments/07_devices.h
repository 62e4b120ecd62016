// 07_devices.h: the devices of 07_balance, of unequal speed.
#ifndef BALANCE_DEVICES_H
#define BALANCE_DEVICES_H
#include "judge/frame/lesson.h"

// How many times as long as a device of the full rate each of n devices takes. From step `change` on device 0 takes
// `changed` times as long as before.
typedef struct { size_t n, *slow, change, changed; } Devices;
// One device a rank, from an option such as --slow 1,1,2,4; with more ranks, from the beginning again.
Devices devices_read(Run *run, const char *option, size_t change, size_t changed);
// For the clock; 07_costs.c predicts without it.
size_t devices_slowness(const Devices *d, size_t rank, size_t step);
void devices_free(Devices *d);
#endif
