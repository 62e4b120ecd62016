// memory_samples.h: declares samples of the live bytes of one category of memory, for pictures. The
// samples are taken while a step is recorded. Each rank has its own samples.
#ifndef MEMORY_SAMPLES_H
#define MEMORY_SAMPLES_H
#include "common/comm/clock.h"
#include "common/tensor/memory.h"

// `high` is the most live bytes at time `at`, and `bytes` is the live bytes after this time.
typedef struct {
    Picoseconds at;
    size_t high, bytes;
} MemorySample;

void samples_start(MemoryCategory watched); // starts sampling anew; call this after record_start
void samples_stop(void);                    // ends the sampling; call this after record_stop
const MemorySample *samples_recorded(size_t *n);
void samples_free(void);
#endif
