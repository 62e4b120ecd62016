// record.h: what every rank did when: the events from which pictures and traces are drawn. Recorded
// is what happens, not what a schedule says should happen. Off unless somebody starts it; then a
// few stores an event.
#ifndef RECORD_H
#define RECORD_H
#include "common/comm/clock.h"
#include "common/tensor/memory.h"
#include "common/base/util.h"

typedef enum {
    // Compute row: busy stretches; waiting is what lies between them. WEIGHTS: the second half of a
    // backward in two.
    EVENT_FORWARD,
    EVENT_BACKWARD,
    EVENT_WEIGHTS,
    EVENT_UPDATE,
    EVENT_COLLECTIVE,
    EVENT_SEND,
    EVENT_RECV, // communication; several may be under way at once
    EVENT_KINDS
} EventKind;
enum { NO_NUMBER = 255 };
typedef struct {
    Picoseconds start, end;
    Picoseconds waited; // communication: when this rank began to wait for it
    uint64_t flow;      // equal on all ranks that take part in a communication
    size_t bytes;
    char comm[12];        // "dp", ...
    uint8_t kind, number; // number: micro-batch, or NO_NUMBER
    uint8_t call;         // CommKind
    uint8_t chunk;        // of an interleaved pipeline's stage; else 0
    uint16_t peer;        // of a message: the other rank, as numbered in the world
} RecordedEvent;
// most at a moment, and left after it
typedef struct {
    Picoseconds at;
    size_t high, bytes;
} MemorySample;

// forgets what was there; memory of this category is sampled
void record_start(MemoryCategory watched);
void record_stop(void);
void record_free(void);
// Everything until record_leave is `kind` of micro-batch `number`. Nests: what was before goes on
// after.
void record_enter(EventKind kind, size_t number);
void record_enter_chunk(EventKind kind, size_t number, size_t chunk); // of the stage's layers
void record_leave(void);
const RecordedEvent *record_events(size_t *n);
const MemorySample *record_memory(size_t *n);
extern const char *const event_name[EVENT_KINDS];

// ---- for comm.c ----
// Now. Where a GPU is recorded in real time: a mark among what this rank has queued, whose time is
// known when recording stops. Only for what is recorded.
Picoseconds record_moment(void);
void record_pause_compute(void); // a call begins that may wait: the busy stretch ends here
void record_resume_compute(void);
void record_transfer(RecordedEvent e, const char *comm); // number is found here
#endif
