// timeline.c: plays op lists without a model. Finds when each op starts and ends, and which stages
// wait for each other if the lists deadlock.
#include "04_pipeline_naive/experiments/timeline.h"
#include <stdio.h>
#include <stdlib.h>

char *schedule_text(const Schedule *s) {
    char *text = host_alloc(48 * s->n + 1), *at = text;
    bool chunks = schedule_chunks(s) > 1;
    for (size_t e = 0; e < s->n; e++) {
        at +=
            sprintf(at, "%s%c%zu", e ? " " : "", "FBIWU"[s->ops[e].what], s -> ops[e].micro_batch);
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

// ---------------------------------------------------------------- the lists, played

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
static void compute(Play *play, size_t rank, PipeOp op, const void *times) {
    play_work(play, rank, duration(op, times));
}

static Event event_of(const Play *play, size_t i, PipeOp op, const OpPlaces *place,
                      size_t message) {
    const PlayStep *work = play_step(play, i, place->begin);
    Event e = { op, (size_t)work->begin, (size_t)work->end, (size_t)work->end + message };
    if (place->send != PLAY_NEVER && place->send < play_done(play, i))
        e.arrives = (size_t)play_step(play, i, place->send)->end;
    return e;
}

// Returns the StageWait of the first op of stage i that has not run. `place` has the places of all
// ops of the stage.
static StageWait wait_of(const Timeline *t, const Play *play, const Schedule *list, size_t i,
                         const OpPlaces *place) {
    StageWait w = { .buffer = play_done(play, i) == place[t->n[i]].buffer };
    if (!w.buffer) {
        steps_needs(list->ops[t->n[i]], i, t->p, t->v, &w.needs);
        return w;
    }
    size_t sent = play_stuck(play, i)->target; // the message in the buffer
    for (size_t e = 0; e < t->n[i]; e++)
        if (place[e].send == sent) steps_feeds(list->ops[e], i, t->p, t->v, &w.needs);
    return w;
}

Timeline timeline_of_stages(const Schedule *stage, size_t p, size_t m, const OpTimes *times) {
    Timeline t = { .p = p,
                   .v = schedule_chunks(&stage[0]),
                   .m = m,
                   .event = host_alloc(p * sizeof *t.event),
                   .n = host_alloc(p * sizeof *t.n),
                   .wait = host_alloc(p * sizeof *t.wait) };
    Play *play = play_new(p, NULL);
    size_t pp = play_group(play, "pp", 0, p, 1);
    OpPlaces **place = host_alloc(p * sizeof *place);
    for (size_t i = 0; i < p; i++) {
        PipelineSteps steps = { .p = p,
                                .v = t.v,
                                .i = i,
                                .group = pp,
                                .list = &stage[i],
                                .compute = compute,
                                .context = &times[i],
                                .message = times[i].message };
        place[i] = host_alloc((stage[i].n + 1) * sizeof **place);
        t.event[i] = host_alloc((stage[i].n + 1) * sizeof **t.event);
        pipeline_steps(play, i, &steps, place[i]);
    }
    play_run(play);
    for (size_t i = 0; i < p; i++) {
        for (; t.n[i] < stage[i].n && place[i][t.n[i]].begin < play_done(play, i); t.n[i]++) {
            size_t e = t.n[i];
            t.event[i][e] = event_of(play, i, stage[i].ops[e], &place[i][e], times[i].message);
            if (t.event[i][e].end > t.end) t.end = t.event[i][e].end;
        }
        if (t.n[i] == stage[i].n) continue;
        t.stuck = true;
        t.wait[i] = wait_of(&t, play, &stage[i], i, place[i]);
    }
    for (size_t i = 0; i < p; i++) free(place[i]);
    free(place);
    play_free(play);
    return t;
}

Timeline timeline_with_times(const Schedule *stage, size_t p, size_t m, const OpTimes *times) {
    OpTimes *same = host_alloc(p * sizeof *same);
    for (size_t i = 0; i < p; i++) same[i] = *times;
    Timeline t = timeline_of_stages(stage, p, m, same);
    free(same);
    return t;
}

void timeline_free(Timeline *t) {
    for (size_t i = 0; i < t->p; i++) free(t->event[i]);
    free(t->event);
    free(t->n);
    free(t->wait);
}

size_t timeline_busy(const Timeline *t) {
    size_t units = 0;
    for (size_t i = 0; i < t->p; i++)
        for (size_t e = 0; e < t->n[i]; e++) units += t->event[i][e].end - t->event[i][e].start;
    return units;
}

size_t lists_makespan(Schedule *stage, size_t p, size_t m, const OpTimes *times) {
    Timeline t = timeline_with_times(stage, p, m, times);
    size_t end = t.stuck ? SIZE_MAX : t.end;
    timeline_free(&t);
    schedule_all_free(stage, p);
    return end;
}
