// svg.h: a recording as files. For picture.c, svg.c and trace.c, and for who shows what has not
// been recorded (the schedules of 05.01); plot.c draws its own SVG.
#ifndef SVG_H
#define SVG_H
#include <stdio.h>
#include "judge/frame/lesson.h"
#include "common/comm/record.h"

typedef struct {
    RecordedEvent *events;
    size_t n;
    MemorySample *memory;
    size_t samples;
} RankRecording;
typedef struct {
    size_t ranks;
    RankRecording *rank;    // NULL but on rank 0
    Picoseconds begin, end; // of what was computed and of collectives
    size_t scale;           // bytes that fill a strip of memory
    Picoseconds unit;       // 0, or in which times are said: "33 units"
    void *buffer[2];
} Recording;
// What is drawn on a rank's link: collectives, and messages that take time.
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
// as picture_show; on rank 0
void recording_show(Run *run, Recording *r, const char *title, int what);

// These write whole files or none (output.h).
// memory: NULL, no strip.
void svg_write(const Recording *r, const char *title, const char *time, const char *memory,
               const char *file);
void svg_text(FILE *f, const char *text); // escapes what XML would read as its own
// Chrome trace event JSON: one process per rank, rows for computing and communication, arrows from
// send to recv.
void trace_write(const Recording *r, const char *file);
#endif
