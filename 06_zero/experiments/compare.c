// compare.c: a stage of ZeRO trains for some steps, and is compared with data parallelism and the
// unsplit model.
#include "06_zero/experiments/experiments.h"
#include <stdio.h>

Training zero_training(Run *run, const Comm *dp, const ModelConfig *model) {
    Training t = { .model = *model,
                   .data = data_synthetic(model->vocab, model->context, run->seed),
                   .steps = option_size(run, "steps"),
                   .sequences = option_size(run, "batch"),
                   .micro_batches = 1 };
    REQUIRE(t.steps > 0 && option_size(run, "micro-batches") > 0,
            "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= dp->size,
            "--batch %zu leaves some of the %zu ranks without a sequence: choose at least %zu",
            t.sequences, dp->size, dp->size);
    t.model.seed = run->seed;
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);
    t.watched = MEM_COMMUNICATION;                 // the picture's strip: the unit in flight
    return t;
}

typedef struct { const ZeroLesson *lesson; Comm *dp; } Counted;

// Every step counts from zero: after a training dp has counted its last step.
static StepResult counted_step(void *counted, Model *m, Optimizer *o, const Training *t,
                               const Batch *batch) {
    const Counted *c = counted;
    comm_ledger_reset(c->dp);
    return c->lesson->step(m, c->dp, batch, t->micro_batches, o, t->clip);
}

// Between steps nothing is whole that a stage cuts into parts, and no unit points at memory that
// was dropped.
static void check_dropped(Run *run, const ZeroLesson *lesson, const Model *m) {
    bool gradients = true, weights = true;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        gradients = gradients && !u->g.data && !u->params[0].g.data;
        weights = weights && !u->w.data && !u->params[0].w.data;
    }
    if (lesson->stage >= 2)
        check_true(run, lesson->name, "no whole gradients between steps", gradients);
    if (lesson->stage >= 3)
        check_true(run, lesson->name, "no whole weights between steps", weights);
}

void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, const char *name,
                  double limit) {
    char what[48];
    Counted counted = { lesson, dp };
    Model *m = model_describe(&t.model, model_layers(&t.model));
    lesson->allocate(m, dp);
    Trajectory zero = trajectory_new(run, &t);
    training_run(&zero, m, &t, dp->size, dp->rank, counted_step, &counted);
    say_detail(run, "%s, %zu micro-batch%s a rank, loss %.4f -> %.4f\n", name, t.micro_batches,
        t.micro_batches > 1 ? "es" : "", zero.loss[0], zero.loss[t.steps - 1]);
    // Shard after shard in rank order: what data-parallel replicas hold, to the last bit (chapter
    // 01).
    Trajectory replicas = training_unsplit(run, &t, dp->size);
    snprintf(what, sizeof what, "%s = data parallel", lesson->name);
    training_compare_tensors(run, what, &zero, &replicas, limit);
    training_compare_numbers(run, what, &zero, &replicas, LIMIT_ROUNDING);
    if (t.recorded) {
        check_dropped(run, lesson, m);
        lesson->costs(run, dp, &t);
    }
    t.micro_batches = 1;
    Trajectory unsplit = training_unsplit(run, &t, 1);
    snprintf(what, sizeof what, "%s = unsplit", lesson->name);
    training_compare(run, what, &zero, &unsplit, LIMIT_ROUNDING);
    trajectory_free(&zero);
    trajectory_free(&replicas);
    trajectory_free(&unsplit);
    if (lesson->free) lesson->free(m);
    model_free(m);
}

void zero_one_and_several(Run *run, const ModelConfig *model, const ZeroLesson *lesson) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Training t = zero_training(run, dp, model);

    t.optimizer = sgd(0.1);
    zero_compare(run, dp, lesson, t, "SGD", every_bit(run));
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, lesson, t, "AdamW, weight decay 0.1", every_bit(run));

    // One micro-batch: both add the ranks' gradients in rank order, and the bits are equal. More:
    // data parallelism adds micro-batches on each rank and then the ranks; stages 2 and 3 add the
    // ranks for each micro-batch and then the micro-batches. Same terms, other order. So it is with
    // the squares of the norm, and with every clipped weight. Gathered weights are moved data and
    // change no bit.
    t.micro_batches = option_size(run, "micro-batches");
    t.recorded = false;
    t.optimizer = sgd(0.1);
    t.clip = 0.5;                                  // below every norm: each step is clipped
    zero_compare(run, dp, lesson, t, "SGD, clipped at 0.5", LIMIT_ROUNDING);
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1;
    t.recorded = true;
    zero_compare(run, dp, lesson, t, "AdamW, weight decay 0.1",
                 t.micro_batches == 1 ? every_bit(run) : LIMIT_ROUNDING);
    zero_page(run, dp, lesson, t);
    comm_free(dp);
}
