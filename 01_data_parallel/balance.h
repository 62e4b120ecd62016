// balance.h: whole sequences for devices of unequal speed.
#ifndef BALANCE_H
#define BALANCE_H
#include "common/lesson/lesson.h"

// How many times as long as a device of the full rate each of n devices takes. From step `change` on device 0 takes
// `changed` times as long as before.
typedef struct { size_t n, *slow, change, changed; } Devices;
// One device a rank, from an option such as --slow 1,1,2,4; with more ranks, from the beginning again.
Devices devices_read(Run *run, const char *option, size_t change, size_t changed);
size_t devices_slowness(const Devices *d, size_t rank, size_t step);
// How many devices of the full rate would be as fast as all these together.
double devices_summed_speed(const Devices *d, size_t step);
void devices_free(Devices *d);

// share[n] <- `total` sequences in rank order, in proportion to rate[n] (of any unit), in whole sequences. A share may
// be empty. Equal shares as long as no rate is known, which is when all are 0.
void balance_shares(Range *share, const double *rate, size_t n, size_t total);
#endif
