// record.c: records the events of each rank.
#include "common/comm/record.h"
#include "common/tensor/memory.h"
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"

const char *const event_name[EVENT_KINDS] = { "forward",    "backward", "weights", "update",
                                              "collective", "send",     "recv" };

enum { DEPTH = 8 };
typedef struct {
    uint8_t kind, number, chunk;
} Doing;

static _Thread_local struct {
    bool on;
    RecordedEvent *events;
    size_t n, room;
    Doing doing[DEPTH]; // the present activities, innermost last
    size_t depth;
    Picoseconds since; // start of the busy stretch
    Picoseconds begun; // the time of mark 0
} self;

static RecordedEvent *event_new(void) {
    if (self.n == self.room) {
        self.room = self.room ? 2 * self.room : 1024;
        self.events = realloc(self.events, self.room * sizeof *self.events);
        if (!self.events)
            fault("out of memory while recording: leave --svg and --trace out, or run fewer steps");
    }
    return memset(&self.events[self.n++], 0, sizeof *self.events);
}

bool record_on(void) { return self.on && !ledger_paused(); }

// On a GPU under the wall clock, events need the GPU's times. A GPU runs an op later than the host
// queues the op, and waiting for the GPU at every event would change the times. So events hold
// marks, and record_stop() replaces the marks by times.
static const Picoseconds MARK = (Picoseconds)1 << 63;
static bool on_device(void) { return device_is_gpu() && !clock_config()->simulated; }

Picoseconds record_moment(void) {
    return record_on() && on_device() ? MARK | device_mark() : clock_now();
}

void record_read_moment(Picoseconds *t) {
    if (*t & MARK) *t = self.begun + (Picoseconds)(device_mark_seconds(*t & ~MARK) * 1e12);
}

void record_start(void) {
    self.n = self.depth = 0;
    self.on = true;
    if (on_device()) {
        device_mark_start();
        self.begun = clock_now();
    }
}
void record_stop(void) {
    self.on = false;
    for (size_t i = 0; i < self.n; i++) {
        record_read_moment(&self.events[i].start);
        record_read_moment(&self.events[i].end);
        record_read_moment(&self.events[i].waited);
    }
}
void record_free(void) {
    free(self.events);
    memset(&self, 0, sizeof self);
}
const RecordedEvent *record_events(size_t *n) {
    *n = self.n;
    return self.events;
}

// ---- the compute row ----

static void close_stretch(void) {
    Picoseconds end = record_moment();
    if (self.depth == 0 || end == self.since) return;
    Doing d = self.doing[self.depth - 1];
    // If the last recorded stretch has the same activity and ends where this stretch begins, extend
    // that stretch. Events of communication may follow that stretch in the list, so skip them.
    for (size_t i = self.n; i-- > 0;) {
        RecordedEvent *e = &self.events[i];
        if (e->kind > EVENT_UPDATE) continue;
        if (e->kind != d.kind || e->number != d.number || e->chunk != d.chunk ||
            e->end != self.since)
            break;
        e->end = end;
        return;
    }
    RecordedEvent *e = event_new();
    *e = (RecordedEvent){
        .start = self.since, .end = end, .kind = d.kind, .number = d.number, .chunk = d.chunk
    };
}

void record_enter(EventKind kind, size_t number) { record_enter_chunk(kind, number, 0); }
void record_enter_chunk(EventKind kind, size_t number, size_t chunk) {
    if (!record_on()) return;
    close_stretch();
    if (self.depth == DEPTH) fault("record_enter: more than %d levels", DEPTH);
    self.doing[self.depth++] =
        (Doing){ (uint8_t)kind, number < NO_NUMBER ? (uint8_t)number : NO_NUMBER, (uint8_t)chunk };
    self.since = record_moment();
}
void record_leave(void) {
    if (!record_on() || self.depth == 0) return;
    close_stretch();
    self.depth--;
    self.since = record_moment();
}
void record_pause_compute(void) {
    if (record_on()) close_stretch();
}
void record_resume_compute(void) {
    if (record_on()) self.since = record_moment();
}

// ---- the communication row ----

void record_transfer(RecordedEvent e, const char *comm) {
    if (!record_on()) return;
    e.number = self.depth ? self.doing[self.depth - 1].number : NO_NUMBER;
    strncpy(e.comm, comm, sizeof e.comm - 1);
    *event_new() = e;
}
