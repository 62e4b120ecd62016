// zb_auto.c: plans lists of forwards (F) and of the two halves of backwards, B (of inputs) and W
// (of weights), from the times of the ops. 06_zero_bubble.c explains these ops.
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include <stdlib.h>

// Planned holds the ops of one stage that are planned so far.
typedef struct {
    Schedule list;  // the planned ops, in order
    size_t free_at; // the time at which the last op of the list ends
    size_t n[4];    // n[what]: the number of ops of this kind in the list
    size_t *end[4]; // end[what][k]: the time at which op k of this kind ends
} Planned;

// Returns the time at which the next op of this kind could start on stage i. Returns SIZE_MAX if
// the stage has no such op left, or if the op is a forward and `cap` micro-batches are in flight.
// Returns SIZE_MAX if the op needs an op that is not planned yet (pipe_op_needs). Also returns
// SIZE_MAX if the stage is AHEAD messages ahead of the receiver, because the executor would then
// wait for a send buffer.
enum { AHEAD = 3 };
static size_t ready_at(const Planned *stage, size_t p, size_t m, size_t i, PipeWhat what,
                       size_t cap, size_t message) {
    const Planned *own = &stage[i];
    size_t k = own->n[what];
    PipeOp op = { .what = what, .micro_batch = k };
    StageOp needs, feeds;
    if (k == m) return SIZE_MAX;
    // A W must free memory first.
    if (what == FORWARD && k - own->n[BACKWARD_WEIGHTS] == cap) return SIZE_MAX;
    if (pipe_op_feeds(op, i, p, 1, &feeds) && k >= stage[feeds.stage].n[what] + AHEAD)
        return SIZE_MAX;
    if (!pipe_op_needs(op, i, p, 1, &needs)) return own->free_at;
    const Planned *from = &stage[needs.stage];
    if (k >= from->n[needs.op.what]) return SIZE_MAX;
    size_t arrives = from->end[needs.op.what][k] + (needs.stage == i ? 0 : message);
    return arrives > own->free_at ? arrives : own->free_at;
}

// Plans one op after the other, each time the op that can start first. If several ops of a stage
// can start equally early, B goes before F, because other stages wait for B, and F goes before W.
// At most `cap` micro-batches are in flight on a stage. Every rank plans all stages and keeps its
// own list.
Schedule schedule_zb_auto(size_t p, size_t m, size_t i, size_t cap, OpTimes t) {
    static const PipeWhat by_urgency[] = { BACKWARD_INPUTS, FORWARD, BACKWARD_WEIGHTS };
    const size_t takes[4] = { [FORWARD] = t.forward,
                              [BACKWARD_INPUTS] = t.backward_inputs,
                              [BACKWARD_WEIGHTS] = t.backward_weights };
    Planned *stage = host_alloc(p * sizeof *stage);
    for (size_t k = 0; k < p; k++)
        for (size_t n = 0; n < 3; n++) stage[k].end[by_urgency[n]] = host_alloc(m * sizeof(size_t));
    for (size_t left = 3 * m * p; left > 0; left--) {
        size_t earliest = 0, first = SIZE_MAX;
        PipeWhat what = FORWARD;
        for (size_t k = 0; k < p; k++)
            for (size_t n = 0; n < 3; n++) { // of equally early ops the first one stays
                size_t at = ready_at(stage, p, m, k, by_urgency[n], cap, t.message);
                if (at >= first) continue;
                first = at;
                earliest = k;
                what = by_urgency[n];
            }
        Planned *s = &stage[earliest];
        s->free_at = first + takes[what];
        s->end[what][s->n[what]] = s->free_at;
        schedule_add(&s->list, what, s->n[what]++);
    }
    Schedule own = stage[i].list;
    for (size_t k = 0; k < p; k++) {
        for (size_t n = 0; n < 3; n++) free(stage[k].end[by_urgency[n]]);
        if (k != i) schedule_free(&stage[k].list);
    }
    free(stage);
    return own;
}
