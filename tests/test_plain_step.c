// test_plain_step.c: compares train_step_plain() with the trainer's own step.
//
// ranks: 8
// level: core
// question: Does train_step_plain(), the idea in one function, do what the trainer with all its options does?
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/trainer.h"
#include "judge/frame/training.h"

enum { STEPS = 3, BATCH = 7 }; // 7 makes replicas and micro-batches unequal
static const ModelConfig model = {
    .layers = 3, .width = 24, .heads = 4, .context = 9, .vocab = 61, .dropout = 0.1
};

static void plain_step(Run *run) {
    TrainerConfig c = {
        .model = model, .batch = BATCH, .micro_batch = 2, .schedule = schedule_1f1b, .clip = 0.5
    };
    c.model.seed = run->seed;
    c.mesh = (Degrees){ option_size(run, "dp"), option_size(run, "tp"), option_size(run, "pp"), 1 };
    Data d = data_synthetic(model.vocab, model.context, run->seed);
    Trainer *t = trainer_new(run->world, &c, adamw(0.01));
    Optimizer o = adamw(0.01);
    Model *stage =
        model_describe(&c.model, pipeline_stage_layers(&c.model, NULL, c.mesh.pp, t->mesh.at.pp));
    tensor_parallel(stage, t->mesh.tp);
    model_allocate(stage);
    optimizer_allocate(&o, stage);

    double loss[2][STEPS], norm[2][STEPS];
    for (size_t step = 0; step < STEPS; step++) {
        StepResult full = trainer_gradients(t, &d, step);
        trainer_update(t, full);
        StepResult plain = train_step_plain(&t->mesh, stage, &o, &c, &d, step);
        loss[0][step] = plain.loss;
        loss[1][step] = full.loss;
        norm[0][step] = plain.norm;
        norm[1][step] = full.norm;
    }
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    model_snapshot(stage, got, UNIT_WEIGHTS, NULL);
    model_snapshot(t->model, want, UNIT_WEIGHTS, NULL);
    check_equal(run, "plain = trainer, weights after the last step", got, want);
    check_numbers(run, "plain = trainer", "loss of every step", loss[0], loss[1], STEPS, 0);
    check_numbers(run, "plain = trainer", "gradient norm of every step", norm[0], norm[1], STEPS,
                  0);
    snapshot_free(got);
    snapshot_free(want);
    model_free(stage);
    trainer_free(t);
    data_free(&d);
}

static const Option options[] = {
    { "dp", "N", "2", "replicas" },
    { "tp", "N", "2", "tensor-parallel ranks of a stage" },
    { "pp", "N", "2", "stages" },
    { 0 },
};
EXPERIMENT(plain_step, options);
