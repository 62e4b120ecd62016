// record.h: what every rank did, and when. Pictures and traces are drawn from these events, not
// from a schedule. Recording is off unless record_start() was called; then an event costs a few
// stores.
#ifndef RECORD_H
#define RECORD_H
#include "common/comm/clock.h"
#include "common/tensor/memory.h"
#include "common/base/util.h"

typedef enum {
    // Compute row: busy stretches; a rank waits between them. WEIGHTS: the second half of a
    // backward in two halves.
    EVENT_FORWARD,
    EVENT_BACKWARD,
    EVENT_WEIGHTS,
    EVENT_UPDATE,
    EVENT_COLLECTIVE,
    EVENT_SEND,
    EVENT_RECV, // communication; several may be in flight together
    EVENT_KINDS
} EventKind;
enum { NO_NUMBER = 255 };
typedef struct {
    Picoseconds start, end;
    Picoseconds waited; // communication: when this rank began to wait for it
    uint64_t flow;      // equal on all ranks that take part in a communication
    size_t bytes;
    char comm[12];        // "dp", ...
    uint8_t kind, number; // number: the micro-batch, or NO_NUMBER
    uint8_t call;         // CommKind
    uint8_t chunk;        // the chunk of an interleaved stage; else 0
    uint16_t peer;        // the message's other rank, by its number in the world
} RecordedEvent;
// the peak in a moment, and the bytes left after it
typedef struct {
    Picoseconds at;
    size_t high, bytes;
} MemorySample;

// forgets earlier events; memory of this category is sampled
void record_start(MemoryCategory watched);
void record_stop(void);
void record_free(void);
// Everything until record_leave is `kind` of micro-batch `number`. Calls nest: the outer one
// continues after the inner one.
void record_enter(EventKind kind, size_t number);
// for a chunk of the stage's layers
void record_enter_chunk(EventKind kind, size_t number, size_t chunk);
void record_leave(void);
const RecordedEvent *record_events(size_t *n);
const MemorySample *record_memory(size_t *n);
extern const char *const event_name[EVENT_KINDS];

// ---- for comm.c ----
// The present time. On a GPU in real time: a mark among the queued work, whose time is known when
// recording stops. For recorded events only.
Picoseconds record_moment(void);
void record_pause_compute(void); // called before a call that may wait: the busy stretch ends here
void record_resume_compute(void);
void record_transfer(RecordedEvent e, const char *comm); // sets e.number itself
#endif
