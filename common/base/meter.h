// meter.h: what products and arenas report about themselves. The clock and the recorder (comm/)
// listen; this folder and tensor/ do not know them. Per rank; NULL: nobody listens.
#ifndef METER_H
#define METER_H
#include <stddef.h>

// a matrix product of so many FLOPs begins
extern _Thread_local void (*meter_product)(double flops);
// bytes live of a category have changed
extern _Thread_local void (*meter_bytes)(int category, size_t live);
#endif
