// measured.c: trains a stage whose layers recompute, and reads the ledgers and the recorded step.
#include <math.h>
#include "07_recompute/experiments/experiments.h"
#include "common/comm/record.h"

// Returns the time in which this rank computed in the recorded step.
static Picoseconds computing(void) {
    size_t n;
    Picoseconds sum = 0;
    const RecordedEvent *events = record_events(&n);
    for (size_t i = 0; i < n; i++)
        if (events[i].kind <= EVENT_UPDATE) sum += events[i].end - events[i].start;
    return sum;
}

RecomputeSeen recompute_train(Run *run, const Training *t, Model *m, Trajectory *got) {
    const StagesWay way = { .step = pipeline_step, .schedule = schedule_gpipe };
    model_allocate(m);
    StageCosts costs = stages_train_model(run, t, m, &way, got);
    model_free(m);
    return (RecomputeSeen){ (double)costs.activations, (double)memory_peak(MEM_WORKSPACE),
                            costs.message_bytes, computing(), picture_timing(run) };
}

void recompute_show(Run *run, const char *title, bool drawn, const Timing *t) {
    picture_show(run, title,
                 PICTURE_MEMORY | PICTURE_SAME_SCALE | PICTURE_ALIKE_ONCE |
                     (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
    if (option_flag(run, "verbose")) picture_summary(run, t);
}

// Returns a cell with the share of the devices' FLOPs that was used. needed: the step whose FLOPs
// count.
static const char *mfu(Run *run, const Timing *t, const Timing *needed) {
    return page_text(run, "=%.1f %%", 100 * t->utilisation * needed->flops / t->flops);
}
void recompute_results(Run *run, const char *const *way, const RecomputeSeen *seen,
                       const char *const *columns, Result *row) {
    for (size_t w = 0; columns[w]; w++) {
        const Timing *t = &seen[w].timing;
        row[0].cell[w] = page_text(run, "%s.peak", way[w]);
        row[1].cell[w] = page_text(run, "%s.sent", way[w]);
        row[2].cell[w] = page_text(run, "%s.flops", way[w]);
        row[3].cell[w] = value_cell(run, (double)t->step, "ps");
        row[4].cell[w] = mfu(run, t, &seen[0].timing);
        if (row[5].what) row[5].cell[w] = mfu(run, t, t);
    }
    results(run, columns, row);
}

const char *recompute_peak(Run *run, const char *way) {
    return value_text(run, cost_value(run, page_text(run, "%s.peak", way)), "bytes");
}

const char *recompute_longer(Run *run, int decimals, const Timing *t, const Timing *before) {
    double percent = 100 * ((double)t->step / (double)before->step - 1);
    return page_text(run, "%.*f %% %s", decimals, fabs(percent),
                     percent < 0 ? "shorter" : "longer");
}
