// zero_page.h: what a lesson's page shows: a stage of ZeRO beside data parallelism, in pictures and in a table.
#ifndef ZERO_PAGE_H
#define ZERO_PAGE_H
#include "06_zero/experiments/zero_compare.h"
#include "judge/draw/picture.h"

// One step, as it is measured on this rank; `sent` in bytes.
typedef struct { StateBytes state; double in_flight, sent; Timing timing; } ZeroMeasured;
// Collective: a training of one step, of which picture_show then shows the recording.
ZeroMeasured zero_measure(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
// Whether to show memory in flight under each rank of stage 3: the strips differ, and the page has no room for four.
bool zero_strips(Run *run);

// State of all ranks with data parallelism and with this stage; the stage's step; the results, of t's micro-batches
// and, from stage 2 on, of one. After zero_compare, whose costs stand in the table.
void zero_page(Run *run, Comm *dp, const ZeroLesson *lesson, Training t);
#endif
