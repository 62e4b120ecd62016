// meter.c: defines the two pointers of meter.h.
#include "common/base/meter.h"

_Thread_local void (*meter_product)(double flops);
_Thread_local void (*meter_bytes)(int category, size_t live);
