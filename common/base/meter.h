// meter.h: declares two pointers to functions, which matrix products and the byte ledger call. A
// pointer may be NULL. Each rank has its own pointers, because virtual ranks are threads.
#ifndef METER_H
#define METER_H
#include <stddef.h>

// A matrix product calls this function at its beginning, with the FLOPs of the product.
extern _Thread_local void (*meter_product)(double flops);
// The byte ledger calls this function when the live bytes of a category have changed.
extern _Thread_local void (*meter_bytes)(int category, size_t live);
#endif
