// picture.h: what a recording shows: a chart in the terminal, an SVG, a trace for Perfetto, and the
// times of a step.
//
//     picture_begin(run, MEM_ACTIVATIONS);  ... one step ...  picture_end(run);        on all ranks
//     Timing t = picture_timing(run);                                 for the checks and costs
//     picture_show(run, "title", PICTURE_MEMORY);                     the chart; --svg and --trace
//     are written, too
#ifndef PICTURE_H
#define PICTURE_H
#include "common/comm/clock.h"
#include "judge/frame/lesson.h"

// Collective: starts recording, from a common moment. The strips of picture_show are of this
// category of memory.
void picture_begin(Run *run, MemoryCategory watched);
void picture_end(Run *run); // collective

// Of the recorded stretch, from the first start to the last end of a computation or a collective,
// or of a message received, on any rank; the same on all ranks.
typedef struct {
    Picoseconds step; // how long it took
    // compute rows, added over ranks; the longest one: the ideal step time
    Picoseconds busy, busiest;
    // the bubble: 1 - busy / (ranks step), and step / busiest - 1
    double idle_of_total, idle_of_ideal;
    // communication while the rank waits, and while it computes; added over ranks
    Picoseconds exposed, hidden;
    bool hidden_unknown; // real time does not say when a message moves: hidden means nothing then
    double flops, utilisation; // of all ranks; flops / (ranks step rate), MFU under the wall clock
} Timing;
Timing picture_timing(Run *run);

// PICTURE_MEMORY: with a strip of memory under each rank's row, as high as the most of all ranks in
// this picture; SAME_SCALE: or in the one before, if that is more. NO_FILES: the chart only, where
// a program shows several pictures and --svg and --trace ask for one. DETAIL: the chart is printed
// with --verbose only. ALIKE_ONCE: neighbouring ranks whose rows and strips are the same are drawn
// once. Of more than four rows the first two and the last one are drawn, but with --verbose or
// EVERY_ROW.
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
// prints both definitions of the bubble, communication, utilisation
void picture_summary(Run *run, const Timing *t);
// The order in which stage `rank` worked, "F0 F1 B0 ...", from the events; on rank 0, others get
// NULL. free() it. Of stages with several chunks "F0c0 F0c1 ...". In charts f and b are of odd
// chunks, in an SVG these are pale.
char *picture_order(Run *run, size_t rank);

// A bar for each rank: what it holds between steps. Collective. mine is taken where the model is
// allocated: picture_state_now() reads the ledger. Bars of a later call have the scale of the
// longest so far: the largest first.
typedef struct {
    size_t bytes[3];
} StateBytes; // weights, gradients, moments
StateBytes picture_state_now(void);
void picture_state(Run *run, const char *title, StateBytes mine);
#endif
