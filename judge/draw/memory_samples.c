// memory_samples.c: samples the live bytes of one category of memory while a step is recorded.
#include "judge/draw/memory_samples.h"
#include <stdlib.h>
#include <string.h>
#include "common/base/meter.h"
#include "common/comm/record.h"

static _Thread_local struct {
    MemoryCategory watched;
    MemorySample *samples;
    size_t n, room;
} self;

static void sample_bytes(int category, size_t bytes) {
    if (!record_on() || (MemoryCategory)category != self.watched) return;
    Picoseconds at = record_moment();
    MemorySample *last = self.n ? &self.samples[self.n - 1] : NULL;
    if (last && last->at == at) { // several changes at the same time
        if (bytes > last->high) last->high = bytes;
        last->bytes = bytes;
        return;
    }
    if (self.n == self.room) {
        self.room = self.room ? 2 * self.room : 1024;
        self.samples = realloc(self.samples, self.room * sizeof *self.samples);
        if (!self.samples)
            fault("out of memory while recording: leave --svg and --trace out, or run fewer steps");
    }
    self.samples[self.n++] = (MemorySample){ at, bytes, bytes };
}

void samples_start(MemoryCategory watched) {
    self.n = 0;
    self.watched = watched;
    meter_bytes = sample_bytes;
    sample_bytes((int)watched, memory_now(watched));
}
void samples_stop(void) {
    meter_bytes = NULL;
    for (size_t i = 0; i < self.n; i++) record_read_moment(&self.samples[i].at);
}
void samples_free(void) {
    free(self.samples);
    memset(&self, 0, sizeof self);
    meter_bytes = NULL;
}
const MemorySample *samples_recorded(size_t *n) {
    *n = self.n;
    return self.samples;
}
