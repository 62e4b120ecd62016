// meter.c: defines the pointers to the functions that matrix products and the byte ledger call.
#include "common/base/meter.h"

_Thread_local void (*meter_product)(double flops);
_Thread_local void (*meter_bytes)(int category, size_t live);
