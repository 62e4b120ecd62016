// balance.h: whole sequences for devices of unequal speed.
#ifndef BALANCE_H
#define BALANCE_H
#include "common/lesson.h"

// How many times as long as a device of the full rate each of n devices takes.
typedef struct { size_t n, *slow; } Devices;
// One device a rank, from an option such as --slow 1,1,2,4; for more ranks from the beginning again. usage_error() else.
Devices devices_read(Run *run, const char *option);
void devices_free(Devices *d);

// share[n] <- `total` sequences in rank order, in proportion to rate[n] (of any unit), in whole sequences. A share may be
// empty. Equal shares as long as no rate is known, which is when all are 0.
void balance_shares(Range *share, const double *rate, size_t n, size_t total);
#endif
