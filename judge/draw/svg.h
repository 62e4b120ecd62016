// svg.h: declares a recording, and the functions that write a recording as a file. picture.c, svg.c
// and trace.c define these functions. 05_pipeline_1f1b/experiments/player.c calls recording_show()
// to show schedules that no rank has run.
#ifndef SVG_H
#define SVG_H
#include <stdio.h>
#include "judge/frame/lesson.h"
#include "judge/draw/memory_samples.h"
#include "common/comm/record.h"

typedef struct {
    RecordedEvent *events;
    size_t n;
    MemorySample *memory;
    size_t samples;
} RankRecording;
typedef struct {
    size_t ranks;
    RankRecording *rank; // NULL on all ranks but rank 0
    // begin: the first start of a computation or a collective.
    // end: the last end, also of a received message.
    Picoseconds begin, end;
    size_t scale;     // bytes of a full strip of memory
    Picoseconds unit; // unit of printed times, as in "33 units"; 0: times are in s, ms or us
    void *buffer[2];
} Recording;
// Returns whether e is drawn on a rank's link. A link shows collectives, and messages that take
// time.
static inline bool on_link(const RecordedEvent *e) {
    return e->kind == EVENT_COLLECTIVE || (e->kind == EVENT_SEND && e->end > e->start);
}
static inline bool recording_has(const Recording *all, EventKind kind) {
    for (size_t k = 0; k < all->ranks; k++)
        for (size_t i = 0; i < all->rank[k].n; i++)
            if (all->rank[k].events[i].kind == kind) return true;
    return false;
}
Recording recording_gather(Run *run);
void recording_free(Recording *r);
// Shows r as picture_show() does. r is valid on rank 0.
void recording_show(Run *run, Recording *r, const char *title, int what);

// Writes a complete SVG file or none (output.h), as trace_write() also does. Without `memory`
// (NULL) there is no strip.
void svg_write(const Recording *r, const char *title, const char *time, const char *memory,
               const char *file);
void svg_text(FILE *f, const char *text); // writes text, with & and < escaped
// Writes the JSON of Chrome trace events. A rank is a process with rows for computing and
// communication. Arrows go from send to recv. `memory` names the category of memory in r.
void trace_write(const Recording *r, const char *memory, const char *file);
#endif
