// zero_compare.c: see zero_compare.h.
#include "06_zero/experiments/zero_compare.h"
#include "06_zero/zero.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

typedef struct { const ZeroLesson *lesson; Comm *dp; } Counted;

// What dp has counted after a training is its last step.
static StepResult counted_step(void *counted, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    const Counted *c = counted;
    comm_ledger_reset(c->dp);
    return c->lesson->step(c->dp, m, o, t, mine);
}

// What a stage cuts into parts is whole only while it is used: between steps no unit points at memory that was dropped.
static void check_dropped(Run *run, const ZeroLesson *lesson, const Model *m) {
    bool gradients = true, weights = true;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        gradients = gradients && !u->g.data && !u->params[0].g.data;
        weights = weights && !u->w.data && !u->params[0].w.data;
    }
    if (lesson->stage >= 2) check_true(run, lesson->name, "no whole gradients between steps", gradients);
    if (lesson->stage >= 3) check_true(run, lesson->name, "no whole weights between steps", weights);
}

void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t, const char *name, double limit) {
    char what[48];
    Counted counted = { lesson, dp };
    Model *m = model_describe(&t.model, model_layers(&t.model));
    lesson->allocate(m, dp);
    Trajectory zero = trajectory_new(run, &t);
    training_run(&zero, m, &t, dp->size, dp->rank, counted_step, &counted);
    say_detail(run, "%s, %zu micro-batch%s a rank, loss %.4f -> %.4f\n", name, t.micro_batches,
        t.micro_batches > 1 ? "es" : "", zero.loss[0], zero.loss[t.steps - 1]);
    // Shard after shard in rank order: what data-parallel replicas hold, to the last bit (chapter 01).
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

// ---------------------------------------------------------------- all stages behind one set of functions

typedef struct { Comm *dp; size_t stage; } Staged;

static StepResult staged_step(void *staged, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    const Staged *z = staged;
    double loss = 0;
    zero_begin(m, z->stage);
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(m, &mine[k]);
    model_fold_tied(m);
    zero_reduce(m, z->stage);
    double norm = model_grad_norm(m, z->stage ? z->dp : NULL);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    zero_end(m, z->stage);
    comm_all_reduce_doubles(z->dp, &loss, 1);
    return (StepResult){ loss * mine[0].token_weight, norm };
}

// Of the batch after the last one. Every rank takes part with every micro-batch, an empty one, too.
static double loss_afterwards(const Staged *z, Model *m, const Training *t) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *b = training_batches(t, &tokens, t->steps, z->dp->size, z->dp->rank);
    double loss = 0;
    zero_evaluation_begin(m, z->stage);
    for (size_t k = 0; k < t->micro_batches; k++) {
        b[k].training = false;
        loss += model_loss(m, &b[k]) * b[k].token_weight;
    }
    zero_evaluation_end(m, z->stage);
    comm_all_reduce_doubles(z->dp, &loss, 1);
    free(b);
    arena_free(&tokens);
    return loss;
}

void zero_check_stages(Run *run, Comm *dp, Training t) {
    double first[4] = {0};                         // of stage 0, which is data parallelism
    t.recorded = false;
    t.optimizer = sgd(0.1);
    for (size_t stage = 0; stage <= 3; stage++) {
        Staged z = { dp, stage };
        Model *m = model_describe(&t.model, model_layers(&t.model));
        Trajectory c = trajectory_new(run, &t);
        zero_allocate(m, dp, stage);
        training_run(&c, m, &t, dp->size, dp->rank, staged_step, &z);
        double now[4] = { c.loss[0], c.loss[t.steps - 1], c.norm[t.steps - 1], loss_afterwards(&z, m, &t) };
        bool same = true;
        for (size_t i = 0; i < 4; i++) {
            if (stage == 0) first[i] = now[i];
            same = same && fabs(now[i] - first[i]) <= LIMIT_ROUNDING * first[i];
        }
        char name[64];
        snprintf(name, sizeof name, "stage %zu = data parallel, losses and norms", stage);
        if (stage > 0) check_true(run, "zero_begin to zero_end", name, same);
        trajectory_free(&c);
        model_free(m);
    }
}
