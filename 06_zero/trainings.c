// trainings.c: see trainings.h.
#include "06_zero/trainings.h"
#include <stdio.h>
#include "06_zero/zero.h"

Training zero_training(Run *run, const Comm *dp, const ModelConfig *model) {
    Training t = { .model = *model, .data = data_synthetic(model->vocab, model->context, run->seed),
                   .steps = option_size(run, "steps"), .sequences = option_size(run, "batch"), .micro_batches = 1 };
    REQUIRE(t.steps > 0 && option_size(run, "micro-batches") > 0, "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= dp->size, "--batch %zu leaves some of the %zu ranks without a sequence: choose at least %zu",
            t.sequences, dp->size, dp->size);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);
    t.watched = MEM_COMMUNICATION;                 // the picture's strip: the unit in flight
    return t;
}

void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, const char *name, double limit) {
    char stage[16], what[48];
    snprintf(stage, sizeof stage, "ZeRO-%zu", lesson->stage);
    Model *m = model_describe(&t.model, model_layers(&t.model));
    zero_allocate(m, dp, lesson->stage);
    Trajectory zero = trajectory_new(run, &t);
    training_run(&zero, m, &t, dp->size, dp->rank, lesson->step, dp);
    say(run, "%s, %zu micro-batch%s a rank, loss %.4f -> %.4f\n", name, t.micro_batches,
        t.micro_batches > 1 ? "es" : "", zero.loss[0], zero.loss[t.steps - 1]);
    // Shard after shard in rank order: what data-parallel replicas hold, to the last bit (chapter 01).
    Trajectory replicas = training_unsplit(run, &t, dp->size);
    snprintf(what, sizeof what, "%s = data parallel", stage);
    training_compare_tensors(run, what, &zero, &replicas, limit);
    training_compare_numbers(run, what, &zero, &replicas, LIMIT_ROUNDING);
    if (t.recorded) {
        lesson->costs(run, dp, &t);
        show_step(run, &t, stage);
    }
    t.micro_batches = 1;
    Trajectory unsplit = training_unsplit(run, &t, 1);
    snprintf(what, sizeof what, "%s = unsplit", stage);
    training_compare(run, what, &zero, &unsplit, LIMIT_ROUNDING);
    trajectory_free(&zero);
    trajectory_free(&replicas);
    trajectory_free(&unsplit);
    model_free(m);
}
