// record.h: records the events of every rank, with their times. Pictures and traces show these
// events, not a schedule. To record an event is cheap, because only a few numbers are stored.
#ifndef RECORD_H
#define RECORD_H
#include "common/comm/clock.h"
#include "common/base/util.h"

typedef enum {
    // Computation. An event is a stretch of time in which the rank is busy. EVENT_WEIGHTS is the
    // half of a backward that computes the gradients of weights.
    EVENT_FORWARD,
    EVENT_BACKWARD,
    EVENT_WEIGHTS,
    EVENT_UPDATE,
    // Communication. Several of these events can overlap.
    EVENT_COLLECTIVE,
    EVENT_SEND,
    EVENT_RECV,
    EVENT_KINDS
} EventKind;
enum { NO_NUMBER = 255 };
typedef struct {
    Picoseconds start, end;
    Picoseconds waited; // communication: when this rank began to wait
    uint64_t flow;      // communication: equal on all ranks that take part
    size_t bytes;
    char comm[12];        // "dp", ...
    uint8_t kind, number; // an EventKind; the micro-batch, or NO_NUMBER
    uint8_t call;         // CommKind
    uint8_t chunk;        // the chunk of an interleaved stage; else 0
    uint16_t peer;        // the other rank of a message, numbered in the world
} RecordedEvent;

void record_start(void); // deletes earlier events
void record_stop(void);
bool record_on(void); // returns whether events are recorded now (not while the ledger is paused)
void record_free(void);
// From this call to its record_leave(), the rank's work is recorded as `kind` of micro-batch
// `number`. Calls nest: after the inner record_leave() the outer kind continues.
void record_enter(EventKind kind, size_t number);
// Does the same as record_enter, for a chunk of the stage's layers.
void record_enter_chunk(EventKind kind, size_t number, size_t chunk);
void record_leave(void);
const RecordedEvent *record_events(size_t *n);
extern const char *const event_name[EVENT_KINDS];

// Returns the present time, for recorded events only. On a GPU under the wall clock the result is
// not a time, but a mark in the rank's queue of work (device.h). record_read_moment() replaces a
// mark by its time. record_stop() replaces the marks in all events.
Picoseconds record_moment(void);
void record_read_moment(Picoseconds *t);

// ---- for comm.c ----
void record_pause_compute(void); // ends the busy stretch, before a call that may wait
void record_resume_compute(void);
// Records e, a communication of the group `comm`, with the number of the present micro-batch.
void record_transfer(RecordedEvent e, const char *comm);
#endif
