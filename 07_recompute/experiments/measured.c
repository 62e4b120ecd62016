// measured.c: trains a stage whose layers recompute, reads the ledgers and the recorded step, and
// predicts the work of a step.
#include <math.h>
#include "07_recompute/experiments/experiments.h"
#include "common/comm/record.h"

static Picoseconds computing(void) {
    size_t n;
    Picoseconds sum = 0;
    const RecordedEvent *events = record_events(&n);
    for (size_t i = 0; i < n; i++)
        if (events[i].kind <= EVENT_UPDATE) sum += events[i].end - events[i].start;
    return sum;
}

Model *recompute_stage(Run *run, const Training *t) {
    const Comm *pp = run->world;
    return model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
}
RecomputeSeen recompute_train(Run *run, const Training *t, Model *m, const char *name,
                              Trajectory *unsplit) {
    const StagesWay way = { .step = pipeline_step, .schedule = schedule_gpipe };
    Trajectory got = trajectory_new(run, t);
    model_allocate(m);
    StageCosts costs = stages_train_model(run, t, m, &way, &got);
    model_free(m);
    RecomputeSeen seen = { (double)costs.activations, (double)memory_peak(MEM_WORKSPACE),
                           costs.message_bytes, computing(), picture_timing(run) };
    // The limit is 0, because the same layers run in the same order, with the same inputs and the
    // same dropout.
    training_compare(run, page_text(run, "%s = unsplit", name), &got, unsplit, 0);
    trajectory_free(&got);
    return seen;
}

Work recompute_work(const Training *t, const CutSizes *z, double full, double selective,
                    bool head) {
    Work sum = { 0 }; // added per micro-batch, because each product's time rounds to picoseconds
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = part_size(t->sequences, t->micro_batches, k);
        sum = work_sum(sum, work_times(3, work_stage(z, B)));
        sum = work_sum(sum, work_times(full, work_block(z, B)));
        sum = work_sum(sum, work_times(selective, work_scores(z, B)));
        if (head && z->last) sum = work_sum(sum, work_head(z, B));
    }
    return sum;
}

void recompute_show(Run *run, const char *title, bool drawn, const Timing *t) {
    picture_show(run, title,
                 PICTURE_MEMORY | PICTURE_SAME_SCALE | PICTURE_ALIKE_ONCE |
                     (drawn ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
    if (option_flag(run, "verbose")) picture_summary(run, t);
}

// Returns a cell with the FLOPs of step `needed`, in percent of the FLOPs that the devices could
// compute in the time of step t. For the MFU `needed` is the step without recomputation.
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
