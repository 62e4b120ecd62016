// timeline.c: see timeline.h.
#include "04_pipeline_naive/experiments/timeline.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *schedule_text(const Schedule *s) {
    char *text = host_alloc(48 * s->n + 1), *at = text;
    bool chunks = schedule_chunks(s) > 1;
    for (size_t e = 0; e < s->n; e++) {
        at += sprintf(at, "%s%c%zu", e ? " " : "", "FBIWU"[s->ops[e].what], s->ops[e].micro_batch);
        if (chunks) at += sprintf(at, "c%zu", s->ops[e].chunk);
    }
    return text;
}

Schedule *schedule_all(ScheduleRule rule, size_t p, size_t m) {
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = rule(p, m, i);
    return stage;
}
void schedule_all_free(Schedule *stage, size_t p) {
    for (size_t i = 0; i < p; i++) schedule_free(&stage[i]);
    free(stage);
}

// ---------------------------------------------------------------- the rules, stated a second time

bool timeline_needs(PipeOp op, size_t i, size_t p, size_t v, StageOp *needs) {
    size_t part = op.chunk * p + i;
    bool last = part + 1 == p * v;
    bool forward = op.what == FORWARD, weights = op.what == BACKWARD_WEIGHTS;
    if (op.what == UPDATE || (forward && part == 0)) return false;
    if (forward) part--;
    else if (!weights && !last) part++;
    if (!forward) op.what = last && !weights ? FORWARD : BACKWARD_INPUTS;
    op.chunk = part / p;
    *needs = (StageOp){ part % p, op };
    return true;
}

bool timeline_feeds(PipeOp op, size_t i, size_t p, size_t v, StageOp *feeds) {
    size_t part = op.chunk * p + i, end = op.what == FORWARD ? p * v - 1 : 0;
    if (op.what == UPDATE || op.what == BACKWARD_WEIGHTS || part == end) return false;
    if (op.what == FORWARD) part++;
    else {
        part--;
        op.what = BACKWARD_INPUTS;
    }
    op.chunk = part / p;
    *feeds = (StageOp){ part % p, op };
    return true;
}

bool timeline_op_is(PipeOp op, PipeOp needed) {
    if (op.what == BACKWARD && needed.what == BACKWARD_INPUTS) op.what = BACKWARD_INPUTS;
    bool same_place = op.micro_batch == needed.micro_batch && op.chunk == needed.chunk;
    return op.what == needed.what && same_place;
}

// ---------------------------------------------------------------- what an op waits for

// When what an op of stage i needs is there; false: not yet.
static bool arrived(const Timeline *t, size_t i, PipeOp op, size_t *when) {
    StageOp needs;
    *when = 0;
    if (!timeline_needs(op, i, t->p, t->v, &needs)) return true;
    for (size_t e = 0; e < t->n[needs.stage]; e++) {
        const Event *done = &t->event[needs.stage][e];
        if (!timeline_op_is(done->op, needs.op)) continue;
        *when = needs.stage == i ? done->end : done->arrives;
        return true;
    }
    return false;
}

// The stage that an op of stage i sends to; i: none.
static size_t sends_to(const Timeline *t, size_t i, PipeOp op) {
    StageOp feeds;
    return timeline_feeds(op, i, t->p, t->v, &feeds) ? feeds.stage : i;
}

// When the link that the message of a next op of stage i takes is free: when the one before it has arrived.
static size_t link_free(const Timeline *t, size_t i, PipeOp op) {
    size_t to = sends_to(t, i, op);
    for (size_t e = t->n[i]; e-- > 0;)
        if (to != i && sends_to(t, i, t->event[i][e].op) == to) return t->event[i][e].arrives;
    return 0;
}

// How many messages from stage `from` stage `to` has received.
static size_t received_from(const Timeline *t, const Schedule *stage, size_t from, size_t to) {
    size_t n = 0, ops = t->n[to] + t->received[to];
    StageOp needs;
    for (size_t e = 0; e < ops; e++)
        n += timeline_needs(stage[to].ops[e], to, t->p, t->v, &needs) && needs.stage == from;
    return n;
}

// A stage has SEND_BUFFERS buffers for activations and as many for gradients. A message leaves its buffer when its
// receive is posted: the first one of each pair of stages at once, the next one when the one before it is received.
enum { SEND_BUFFERS = 2 };
bool timeline_buffer_full(const Timeline *t, const Schedule *stage, size_t i, PipeOp op,
                          StageOp *feeds) {
    size_t to = sends_to(t, i, op), messages = 0, sent = 0;
    size_t number[SEND_BUFFERS] = {0};             // of the message in each buffer, among all to `to`
    PipeOp from[SEND_BUFFERS];                     // whose result it is
    if (to == i) return false;
    for (size_t e = 0; e < t->n[i]; e++) {
        PipeOp done = t->event[i][e].op;
        if (sends_to(t, i, done) != to) continue;
        if ((done.what == FORWARD) == (op.what == FORWARD)) {
            number[sent % SEND_BUFFERS] = messages;
            from[sent++ % SEND_BUFFERS] = done;
        }
        messages++;
    }
    if (sent < SEND_BUFFERS) return false;
    timeline_feeds(from[sent % SEND_BUFFERS], i, t->p, t->v, feeds);
    return number[sent % SEND_BUFFERS] > received_from(t, stage, i, to);
}

static size_t duration(PipeOp op, const OpTimes *t) {
    switch (op.what) {
    case FORWARD: return t->forward;
    case BACKWARD: return t->backward_inputs + t->backward_weights;
    case BACKWARD_INPUTS: return t->backward_inputs;
    case BACKWARD_WEIGHTS: return t->backward_weights;
    case UPDATE: break;
    }
    return 0;
}

// Starting an op never takes away what another one needs, so the order in which stages are asked changes nothing.
Timeline timeline_of_stages(const Schedule *stage, size_t p, size_t m, const OpTimes *times) {
    Timeline t = { .p = p, .v = schedule_chunks(&stage[0]), .m = m, .event = host_alloc(p * sizeof *t.event),
                   .n = host_alloc(p * sizeof *t.n),
                   .received = host_alloc(p * sizeof *t.received) };
    for (size_t i = 0; i < p; i++) t.event[i] = host_alloc((stage[i].n + 1) * sizeof **t.event);
    for (bool moved = true; moved;) {
        moved = t.stuck = false;
        for (size_t i = 0; i < p; i++) {
            size_t at, done = t.n[i];
            if (done == stage[i].n) continue;
            PipeOp op = stage[i].ops[done];
            StageOp full;
            bool input = arrived(&t, i, op, &at);
            moved |= input && !t.received[i];
            t.received[i] = input;
            if (!input || timeline_buffer_full(&t, stage, i, op, &full)) {
                t.stuck = true;
                continue;
            }
            t.received[i] = false;
            size_t free_at = done ? t.event[i][done - 1].end : 0;
            size_t start = at > free_at ? at : free_at, end = start + duration(op, &times[i]);
            size_t leaves = link_free(&t, i, op) > end ? link_free(&t, i, op) : end;
            t.event[i][t.n[i]++] = (Event){ op, start, end, leaves + times[i].message };
            if (end > t.end) t.end = end;
            moved = true;
        }
    }
    return t;
}

Timeline timeline_with_times(const Schedule *stage, size_t p, size_t m, const OpTimes *times) {
    OpTimes *same = host_alloc(p * sizeof *same);
    for (size_t i = 0; i < p; i++) same[i] = *times;
    Timeline t = timeline_of_stages(stage, p, m, same);
    free(same);
    return t;
}
Timeline timeline_with_link(const Schedule *stage, size_t p, size_t m, size_t t_f, size_t t_b, size_t message) {
    return timeline_with_times(stage, p, m, &(OpTimes){ t_f, t_b, 0, message });
}
Timeline timeline_of(const Schedule *stage, size_t p, size_t m, size_t t_f, size_t t_b) {
    return timeline_with_link(stage, p, m, t_f, t_b, 0);
}

void timeline_free(Timeline *t) {
    for (size_t i = 0; i < t->p; i++) free(t->event[i]);
    free(t->event);
    free(t->n);
    free(t->received);
}

size_t timeline_busy(const Timeline *t) {
    size_t units = 0;
    for (size_t i = 0; i < t->p; i++)
        for (size_t e = 0; e < t->n[i]; e++) units += t->event[i][e].end - t->event[i][e].start;
    return units;
}

char *timeline_row(const Timeline *t, size_t i) {
    char *row = host_alloc(3 * t->end + 1), name[24];
    for (size_t unit = 0; unit < t->end; unit++) memcpy(row + 3 * unit, ".  ", 3);
    for (size_t e = 0; e < t->n[i]; e++) {
        const Event *v = &t->event[i][e];
        memset(row + 3 * v->start, '-', 3 * (v->end - v->start));
        if (v->end > v->start) row[3 * v->end - 1] = ' ';
        snprintf(name, sizeof name, "%c%zu", "FBBWU"[v->op.what], v->op.micro_batch);
        if (v->end > v->start) memcpy(row + 3 * v->start, name, strlen(name) < 3 ? strlen(name) : 3);
    }
    return row;
}

size_t makespan(ScheduleRule rule, size_t p, size_t m, size_t t_f, size_t t_b) {
    return makespan_with_link(rule, p, m, t_f, t_b, 0);
}
size_t makespan_with_link(ScheduleRule rule, size_t p, size_t m, size_t t_f, size_t t_b, size_t message) {
    Schedule *stage = schedule_all(rule, p, m);
    Timeline t = timeline_with_link(stage, p, m, t_f, t_b, message);
    size_t end = t.stuck ? SIZE_MAX : t.end;
    timeline_free(&t);
    schedule_all_free(stage, p);
    return end;
}
