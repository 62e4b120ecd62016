// checks.c: runs, draws and checks one step of equal stages by any schedule (experiments.h).
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdlib.h>
#include <string.h>

// Returns true if the recorded events of stage i have the order of this list. Only rank 0 has a
// recording; all other ranks return true. A recording writes B for a whole backward and for a
// backward of inputs. So I becomes B in the list's text before the comparison.
static bool events_in_order(Run *run, const char *title, size_t i, const Schedule *list) {
    char *want = schedule_text(list), *order = picture_order(run, i);
    for (char *letter = want; *letter; letter++)
        if (*letter == 'I') *letter = 'B';
    bool same = !order || !strcmp(order, want);
    if (order) say_detail(run, "  %s, stage %zu: %s", title, i, order);
    free(want);
    free(order);
    return same;
}

// Returns the flags of picture_show. --verbose, --svg and --trace add strips of memory. Only the
// schedule that --draw names gets files.
static int picture_flags(Run *run, const char *schedule) {
    bool strips =
        option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace");
    bool files = !strcmp(option_text(run, "draw"), schedule);
    return (strips ? PICTURE_MEMORY : 0) | (files ? 0 : PICTURE_NO_FILES);
}

static PipelineResult by_list(const void *list, Comm *pp, Model *stage, const Batch *batch,
                              size_t m) {
    return zero_bubble_run(pp, stage, list, batch, m);
}
Played play_list(Run *run, const Stack *stack, const Schedule *list, size_t m) {
    return stack_play_by(run, stack, MEM_ACTIVATIONS, by_list, list, m);
}

StepResult list_step(PipelineRank *rank, Model *m, Optimizer *o, const Batch *batch,
                     size_t micro_batches) {
    size_t p = rank->pp->size, i = rank->pp->rank;
    Schedule list = rank->schedule ? rank->schedule(p, micro_batches, i)
                                   : schedule_interleaved(p, micro_batches, model_chunks(m), i);
    model_zero_gradients(m);
    PipelineResult r = zero_bubble_run(rank->pp, m, &list, batch, micro_batches);
    schedule_free(&list);
    return pipeline_update(rank, m, o, batch, r);
}

static void check_costs_of(Run *run, const Stack *stack, size_t m, const EqualWay *way,
                           const Played *seen) {
    size_t p = run->world->size, i = run->world->rank, v = stack->chunks ? stack->chunks : 1;
    // Boundaries between parts over which this stage sends y (forward) and dx (backward).
    size_t boundaries = p == 1 ? 0 : (v - (i + 1 == p)) + (v - (i == 0));
    const Schedule *list = &way->stage[i];
    const char *ids = page_text(run, "%%s.%s", way->id);
    const char *names = page_text(run, "equal stages, %s: %%s", way->name);
    check_costs(run, ids, names,
                (CostRow[]){ { "flight", "in flight", v > 1 ? "chunks" : "micro-batches",
                               way->flight, played(list_in_flight(list)), seen->result.in_flight },
                             { "activations", "activations, peak", "bytes", way->activations,
                               played(stack_peak(stack, list, p, i)), seen->activations },
                             { "sent", "messages sent", "calls", BY_FORMULA(m * boundaries),
                               seen->messages },
                             { 0 } });
    if (!clock_config()->simulated) return; // real time differs from run to run
    Stack part = *stack, whole = *stack;
    part.blocks /= v;
    whole.chunks = 1;
    OpTimes times = zb_times(&part);
    Timeline t = timeline_with_times(way->stage, p, m, &times);
    check_costs(run, ids, names,
                (CostRow[]){ { "step", "step", "ps", BY_PLAY(t.end), seen->timing.step }, { 0 } });
    stack_check_bubble(run, way->id, page_text(run, "equal stages, %s", way->name), &whole, m,
                       NOT_PREDICTED, played(t.end), &seen->timing);
    timeline_free(&t);
}

Played equal_stages(Run *run, const Stack *stack, size_t m, const EqualWay *way, const char *title,
                    int flags) {
    size_t p = run->world->size;
    bool same = true;
    Played seen = play_list(run, stack, &way->stage[run->world->rank], m);
    picture_show(run, title, picture_flags(run, way->id) | flags);
    // Under the real clock no cost is a time, so the summary says how long the step took.
    if (option_flag(run, "verbose") || !clock_config()->simulated)
        picture_summary(run, &seen.timing);
    for (size_t i = 0; i < p; i++) same &= events_in_order(run, way->name, i, &way->stage[i]);
    check_true(run, "events = list", way->name, same);
    check_costs_of(run, stack, m, way, &seen);
    schedule_all_free(way->stage, p);
    return seen;
}

const char *compare_times(Run *run, double time, double with) {
    double percent = 100 * (time / with - 1);
    if (percent >= 0.05) return page_text(run, "%.1f %% more than", percent);
    if (percent <= -0.05) return page_text(run, "%.1f %% less than", -percent);
    return "the same as";
}
