// 07_ways.h: the costs, bars, table and plot of 07_compare.
#ifndef COMPARE_WAYS_H
#define COMPARE_WAYS_H
#include "04_pipeline_naive/experiments/stack.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include "05_pipeline_1f1b/pipeline_1f1b.h"

enum { COMPARE_WAYS = 7, COMPARE_CHUNKS = 2 };
// How a way runs: one batch and a flush (naive to zero bubble), PipeDream, or 2BW. list: of stage i, over so many
// batches of m micro-batches; those with a flush make one.
typedef enum { WAY_FLUSH, WAY_PIPEDREAM, WAY_2BW } WayKind;
typedef Schedule WayList(size_t p, size_t m, size_t batches, size_t i);
// flight: most micro-batches in flight on a stage; LISTED: chunks or halves, of which the list says it.
typedef enum { FLIGHT_ONE, FLIGHT_ALL, FLIGHT_FEW, FLIGHT_LISTED } WayFlight;      // 1, m, p - i
typedef struct {
    const char *name, *formula;                    // formula: of the idle share
    WayKind kind;
    WayList *list;
    WayFlight flight;
    bool chunks;
} Way;

// What this rank has measured of one batch in the steady state.
typedef struct {
    Picoseconds batch;
    double busy;                                   // picoseconds, added over the ranks
    size_t activations, weights, messages, late;   // bytes, peak; bytes; calls; updates
} WaySeen;

size_t way_chunks(const Way *w, size_t p);         // 1 on one stage: there is nothing to fill
Stack way_stack(const Way *w, const Stack *stack, size_t p);
// Of the lists alone: when so many batches end. Messages as over the chosen link, or none.
Picoseconds way_end(const Way *w, const Stack *stack, size_t p, size_t m, size_t batches, bool messages);
Picoseconds way_batch(const Way *w, const Stack *stack, size_t p, size_t m, bool messages);    // of one more batch
size_t way_late(const Schedule *s);                // most updates between the version that a gradient is taken at and
                                                   // the one that it is subtracted from
void compare_costs(Run *run, const Way *w, const Stack *stack, size_t m, const WaySeen *seen);
void compare_results(Run *run, const Way *ways, const Stack *stack, size_t m, const WaySeen *seen);
void compare_plot(Run *run, const Way *ways, const Stack *stack);
void compare_published(Run *run);
#endif
