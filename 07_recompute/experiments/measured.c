// measured.c: trains a stage whose layers recompute, and reads the ledgers and the recorded step.
#include "07_recompute/experiments/experiments.h"
#include "common/comm/record.h"
#include <stdio.h>

Picoseconds recompute_computing(void) {
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
    return (RecomputeSeen){ (double)costs.activations, costs.message_bytes, recompute_computing(),
                            picture_timing(run) };
}

void recompute_percent(char mfu[32], char hfu[32], const Timing *t, double model_flops) {
    snprintf(mfu, 32, "=%.1f %%", 100 * t->utilisation * model_flops / t->flops);
    snprintf(hfu, 32, "=%.1f %%", 100 * t->utilisation);
}

void recompute_longer(char text[32], int decimals, const Timing *t, const Timing *before) {
    double percent = 100 * ((double)t->step / (double)before->step - 1);
    snprintf(text, 32, "%.*f %% %s", decimals, percent < 0 ? -percent : percent,
             percent < 0 ? "shorter" : "longer");
}
