// picture.h: pictures of a recording (a chart in the terminal, an SVG, a trace for Perfetto), and
// the times of a step. Call on all ranks:
//     picture_begin(run, MEM_ACTIVATIONS); ... one step ... picture_end(run);
//     Timing t = picture_timing(run);               // for checks and costs
//     picture_show(run, "title", PICTURE_MEMORY);   // the chart; also --svg and --trace
#ifndef PICTURE_H
#define PICTURE_H
#include "common/comm/clock.h"
#include "judge/frame/lesson.h"

// Collective: starts recording, from a common moment. `watched` is the category of memory in
// picture_show's strips.
void picture_begin(Run *run, MemoryCategory watched);
void picture_end(Run *run); // collective

// Times of the recorded stretch. It lasts from the first start to the last end of a computation, of
// a collective or of a received message, on any rank. The same on all ranks.
typedef struct {
    Picoseconds step; // length of the stretch
    // computation, added over ranks; that of the busiest rank, which is the ideal step time
    Picoseconds busy, busiest;
    // the bubble: 1 - busy / (ranks step), and step / busiest - 1
    double idle_of_total, idle_of_ideal;
    // communication while the rank waits, and while it computes; added over ranks
    Picoseconds exposed, hidden;
    // real time does not show when a message moves, so hidden means nothing then
    bool hidden_unknown;
    // added over ranks; flops / (ranks step rate), which is MFU under the wall clock
    double flops, utilisation;
} Timing;
Timing picture_timing(Run *run);

// PICTURE_MEMORY: a strip of memory under each rank's row. Full height is the peak over all ranks
// of this picture. SAME_SCALE: or of the previous picture, if that is higher. NO_FILES: the chart
// only, for programs with several pictures, because --svg and --trace ask for one. DETAIL: printed
// with --verbose only. ALIKE_ONCE: neighbouring ranks with equal rows and strips are drawn once. Of
// more than four rows the first two and the last one are drawn, unless --verbose or EVERY_ROW.
enum {
    PICTURE_CHART = 0,
    PICTURE_MEMORY = 1,
    PICTURE_SAME_SCALE = 2,
    PICTURE_NO_FILES = 4,
    PICTURE_DETAIL = 8,
    PICTURE_ALIKE_ONCE = 16,
    PICTURE_EVERY_ROW = 32
};
void picture_show(Run *run, const char *title, int what);
// prints both definitions of the bubble, communication and utilisation
void picture_summary(Run *run, const Timing *t);
// The order in which stage `rank` worked, "F0 F1 B0 ...", from the events. On rank 0; the others
// get NULL. free() it. With several chunks "F0c0 F0c1 ...". Their charts name a micro-batch by one
// letter, which is small in odd chunks; in an SVG odd chunks are pale.
char *picture_order(Run *run, size_t rank);

// A bar for each rank: the bytes that it holds between steps. Neighbours with equal bars share one.
// Collective. Call picture_state_now() after the allocation, because it reads the ledger. A later
// bar has the scale of the longest bar so far, so show the largest first.
typedef struct {
    size_t bytes[3];
} StateBytes; // weights, gradients, optimizer state
StateBytes picture_state_now(void);
void picture_state(Run *run, const char *title, StateBytes local);
#endif
