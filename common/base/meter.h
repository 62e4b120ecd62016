// meter.h: products and arenas report here. The clock and the recorder (comm/) listen; base/ and
// tensor/ do not know them. Each rank has its own listeners; NULL means none.
#ifndef METER_H
#define METER_H
#include <stddef.h>

// A matrix product calls this function when it begins. flops: of the product
extern _Thread_local void (*meter_product)(double flops);
// The byte ledger calls this function when the live bytes of a category have changed.
extern _Thread_local void (*meter_bytes)(int category, size_t live);
#endif
