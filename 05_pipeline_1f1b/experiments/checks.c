// checks.c: checks and words that several lessons of this chapter share (experiments.h).
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A recording writes B for a whole backward and for a backward of inputs. So I becomes B in the
// list's text before the comparison.
bool events_in_order(Run *run, const char *title, size_t i, Schedule list) {
    char *want = schedule_text(&list), *order = picture_order(run, i);
    for (char *letter = want; *letter; letter++)
        if (*letter == 'I') *letter = 'B';
    bool same = !order || !strcmp(order, want);
    if (order) say_detail(run, "  %s, stage %zu: %s", title, i, order);
    free(want);
    free(order);
    schedule_free(&list);
    return same;
}

int picture_flags(Run *run, const char *schedule) {
    bool strips =
        option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace");
    bool files = !strcmp(option_text(run, "draw"), schedule);
    return (strips ? PICTURE_MEMORY : 0) | (files ? 0 : PICTURE_NO_FILES);
}

Comparison compare_times(double time, double with) {
    Comparison c = { "the same as" };
    double percent = 100 * (time / with - 1);
    if (percent >= 0.05) snprintf(c.text, sizeof c.text, "%.1f %% more than", percent);
    if (percent <= -0.05) snprintf(c.text, sizeof c.text, "%.1f %% less than", -percent);
    return c;
}

static PipelineResult by_list(const void *list, Comm *pp, Model *stage, const Batch *batch,
                              size_t m) {
    return zero_bubble_run(pp, stage, list, batch, m);
}
Played play_list(Run *run, const Stack *stack, const Schedule *list, size_t m) {
    return stack_play_by(run, stack, MEM_ACTIVATIONS, by_list, list, m);
}
