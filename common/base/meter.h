// meter.h: declares two pointers to functions, which each rank has for itself. Matrix products and
// the byte ledger call these functions. If a pointer is NULL, no function is called. The clock
// (comm/) and the memory samples (judge/draw) set the pointers.
#ifndef METER_H
#define METER_H
#include <stddef.h>

// A matrix product calls this function when it begins, with the FLOPs of the product.
extern _Thread_local void (*meter_product)(double flops);
// The byte ledger calls this function when the live bytes of a category have changed.
extern _Thread_local void (*meter_bytes)(int category, size_t live);
#endif
