// picture.h: declares pictures of a recording (a chart in the terminal, an SVG, a trace for
// Perfetto), and the times of a step. All ranks make these calls:
//     picture_begin(run, MEM_ACTIVATIONS); ... one step ... picture_end(run);
//     Timing t = picture_timing(run);               // for checks and costs
//     picture_show(run, "title", PICTURE_MEMORY);   // the chart; also --svg and --trace
#ifndef PICTURE_H
#define PICTURE_H
#include "common/comm/clock.h"
#include "judge/frame/lesson.h"

// Starts to record at the same time on all ranks. Each rank waits for the last rank, also on the
// simulated clock, so all ranks must call this function. `watched` is the category of memory in
// picture_show's strips.
void picture_begin(Run *run, MemoryCategory watched);
void picture_end(Run *run); // ends the recording; all ranks must call this function

// The times of the recorded stretch. The stretch lasts from the first start of a computation or a
// collective to the last end, also of a received message, on any rank. All ranks get the same
// values.
typedef struct {
    Picoseconds step; // length of the stretch
    // busy: computation, added over ranks.
    // busiest: computation of the busiest rank, the ideal step time.
    Picoseconds busy, busiest;
    // The bubble, in two definitions. idle_of_total is 1 - busy / (ranks * step), and idle_of_ideal
    // is step / busiest - 1.
    double idle_of_total, idle_of_ideal;
    // exposed: communication while the rank waits, added over ranks.
    // hidden: communication while the rank computes, added over ranks.
    Picoseconds exposed, hidden;
    // True if data may have moved before a wait, under the wall clock. Then `hidden` has no value.
    bool hidden_unknown;
    // flops: added over ranks.
    // utilisation: flops / (ranks * step * FLOP/s of a device), the MFU under the wall clock.
    double flops, utilisation;
} Timing;
Timing picture_timing(Run *run);

// The values of `what` can be added.
//   PICTURE_MEMORY      strips of memory under the rows, up to the picture's peak; one if all equal
//   PICTURE_SAME_SCALE  strips up to the previous picture's peak, if that peak is higher
//   PICTURE_NO_FILES    only the chart, for programs with several pictures and one --svg or --trace
//   PICTURE_DETAIL      the chart needs --verbose
//   PICTURE_ALIKE_ONCE  neighbouring ranks with equal rows share a row; collectives may be shifted
//   PICTURE_EVERY_ROW   all rows
//   PICTURE_NO_LINKS    no rows for the links
// With more than four rows the chart has only the first two rows and the last row, unless --verbose
// is given or `what` has PICTURE_EVERY_ROW.
enum {
    PICTURE_CHART = 0,
    PICTURE_MEMORY = 1,
    PICTURE_SAME_SCALE = 2,
    PICTURE_NO_FILES = 4,
    PICTURE_DETAIL = 8,
    PICTURE_ALIKE_ONCE = 16,
    PICTURE_EVERY_ROW = 32,
    PICTURE_NO_LINKS = 64
};
void picture_show(Run *run, const char *title, int what);
// Prints the time of the step, the bubble (idle_of_total) and the communication. With --verbose
// also prints idle_of_ideal, the FLOPs and the utilisation.
void picture_summary(Run *run, const Timing *t);
// Returns the order in which stage `rank` worked, such as "F0 F1 B0", from the events. The caller
// frees the text. Ranks other than 0 get NULL. With several chunks the order is "F0c0 F0c1 ...".
char *picture_order(Run *run, size_t rank);

// Draws a bar for each rank, whose length shows the bytes that the rank holds between steps.
// Neighbouring ranks with equal bars share one bar. All ranks must call picture_state(). Call
// picture_state_now() after the allocation, because picture_state_now() reads the ledger of memory.
// The scale is the longest bar so far, so show the largest state first.
typedef struct {
    size_t bytes[3];
} StateBytes; // weights, gradients, optimizer state
StateBytes picture_state_now(void);
void picture_state(Run *run, const char *title, StateBytes local);
#endif
