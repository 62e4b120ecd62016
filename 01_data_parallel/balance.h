// balance.h: whole sequences for devices of unequal speed.
#ifndef BALANCE_H
#define BALANCE_H
#include "common/util.h"

// share[n] <- `total` sequences in rank order, in proportion to rate[n] (of any unit), in whole sequences. A share may be
// empty. Equal shares as long as no rate is known, which is when all are 0.
void balance_shares(Range *share, const double *rate, size_t n, size_t total);
#endif
