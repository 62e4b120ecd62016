// record.h: records the events of every rank, with their times. Pictures and traces show these
// events, not a schedule. Recording begins with record_start(). An event costs a few stores.
#ifndef RECORD_H
#define RECORD_H
#include "common/comm/clock.h"
#include "common/base/util.h"

typedef enum {
    // Compute row: busy stretches. A rank waits between two stretches. EVENT_WEIGHTS is the half of
    // a backward that computes the gradients of weights.
    EVENT_FORWARD,
    EVENT_BACKWARD,
    EVENT_WEIGHTS,
    EVENT_UPDATE,
    // Communication: several of these events can be in flight.
    EVENT_COLLECTIVE,
    EVENT_SEND,
    EVENT_RECV,
    EVENT_KINDS
} EventKind;
enum { NO_NUMBER = 255 };
typedef struct {
    Picoseconds start, end;
    Picoseconds waited; // communication: when this rank began to wait
    uint64_t flow;      // equal on all ranks that take part in a communication
    size_t bytes;
    char comm[12];        // "dp", ...
    uint8_t kind, number; // number: of the micro-batch, or NO_NUMBER
    uint8_t call;         // CommKind
    uint8_t chunk;        // the chunk of an interleaved stage; else 0
    uint16_t peer;        // the other rank of a message, numbered in the world
} RecordedEvent;

void record_start(void); // starts recording; deletes earlier events
void record_stop(void);
bool record_on(void); // returns whether recording has started and the ledger is not paused
void record_free(void);
// After this call, until record_leave, the rank's work is recorded as `kind` of micro-batch
// `number`. Calls nest. The outer kind continues after the inner record_leave.
void record_enter(EventKind kind, size_t number);
// Does the same as record_enter, for a chunk of the stage's layers.
void record_enter_chunk(EventKind kind, size_t number, size_t chunk);
void record_leave(void);
const RecordedEvent *record_events(size_t *n);
extern const char *const event_name[EVENT_KINDS];

// Returns the present time, for recorded events only. On a GPU under the wall clock the result is a
// mark among the queued work. record_read_moment() replaces the mark by its time, and record_stop()
// replaces the marks of all events.
Picoseconds record_moment(void);
void record_read_moment(Picoseconds *t);

// ---- for comm.c ----
void record_pause_compute(void); // ends the busy stretch, before a call that may wait
void record_resume_compute(void);
// Records a communication, and sets e.number.
void record_transfer(RecordedEvent e, const char *comm);
#endif
