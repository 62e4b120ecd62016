// compare.c: trains a model with a stage of ZeRO, and compares the training with data parallelism
// and with the unsplit model.
#include "06_zero/experiments/experiments.h"
#include "01_data_parallel/experiments/experiments.h"

Training zero_training(Run *run, const Comm *dp, const ModelConfig *model) {
    Training t =
        synthetic_training(run, model, option_size(run, "steps"), option_size(run, "batch"));
    REQUIRE(t.steps > 0 && option_size(run, "micro-batches") > 0,
            "--steps and --micro-batches must be at least 1");
    REQUIRE(t.sequences >= dp->size,
            "--batch %zu leaves some of the %zu ranks without a sequence: choose at least %zu",
            t.sequences, dp->size, dp->size);
    t.model.dropout = option_real(run, "dropout");
    config_require(&t.model);
    t.watched = MEM_COMMUNICATION; // the picture's strip: units in flight
    return t;
}

Training zero_adamw(Training t, size_t m) {
    t.micro_batches = m;
    t.clip = 0;
    t.optimizer = adamw(0.01);
    t.optimizer.weight_decay = 0.1; // only matrices decay
    return t;
}

// ---------------------------------------------------------------- the ways to train

static void allocate_replica(Model *m, Comm *dp) {
    model_replicas(m, dp);
    model_allocate(m);
}
// Runs a step of data parallelism. mixed_step() needs a loss scale, and the scale 1 changes no bit.
static StepResult replica_step(Model *model, Comm *dp, const Batch *batch, size_t m, Optimizer *o,
                               double clip) {
    return mixed_step(model, dp, &(LossScale){ .factor = 1 }, batch, m, o, clip);
}
const ZeroLesson zero_stages[] = {
    { "data parallel", 0, allocate_replica, replica_step, NULL, NULL },
    { "ZeRO-1", 1, zero1_allocate, zero1_step, zero_costs, NULL },
    { "ZeRO-2", 2, zero2_allocate, zero2_step, zero_costs, NULL },
    { "ZeRO-3", 3, zero3_allocate, zero3_step, zero_costs, NULL },
};

// ---------------------------------------------------------------- one training

typedef struct {
    const ZeroLesson *lesson;
    Comm *dp;
} Counted;

// Resets the ledger and runs one step. So after the training the ledger of dp has the last step's
// counts.
static StepResult counted_step(void *counted, Model *m, Optimizer *o, const Training *t,
                               const Batch *batch) {
    const Counted *c = counted;
    comm_ledger_reset(c->dp);
    return c->lesson->step(m, c->dp, batch, t->micro_batches, o, t->clip);
}

ZeroTrained zero_train(Run *run, Comm *dp, const ZeroLesson *lesson, const Training *t) {
    Counted counted = { lesson, dp };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    lesson->allocate(m, dp);
    ZeroTrained trained = { m, trajectory_new(run, t) };
    training_run(&trained.trajectory, m, t, dp->size, dp->rank, counted_step, &counted);
    return trained;
}
void zero_trained_free(const ZeroLesson *lesson, ZeroTrained *trained) {
    trajectory_free(&trained->trajectory);
    if (lesson->free) lesson->free(trained->model);
    model_free(trained->model);
}

// ---------------------------------------------------------------- the comparison

// Returns the limit for the differences of gradients and weights from data parallelism. The limit
// allows rounding only if the terms of a sum have another order. A norm over parts adds the squares
// part by part, and every clipped weight depends on the norm. With one micro-batch stages 2 and 3
// add the ranks' gradients in rank order, as data parallelism does. With several micro-batches,
// data parallelism sums over the micro-batches of each rank first, then over the ranks. Stages 2
// and 3 sum over the ranks first, for each micro-batch.
static double limit_of(const Run *run, const ZeroLesson *lesson, const Training *t) {
    bool same_norm = lesson->stage == 0 || t->clip == 0;
    bool same_sums = lesson->stage < 2 || t->micro_batches == 1;
    return same_norm && same_sums ? training_exact(run, t) : training_limit(t);
}

void zero_compare(Run *run, Comm *dp, const ZeroLesson *lesson, Training t) {
    double limit = limit_of(run, lesson, &t);
    ZeroTrained zero = zero_train(run, dp, lesson, &t);
    Trajectory *got = &zero.trajectory;
    // The unsplit training takes the ranks' shards one after another and adds their gradients in
    // rank order. So its bits equal those of data-parallel replicas (checked in chapter 01).
    Trajectory replicas = training_unsplit(run, &t, dp->size);
    const char *what = page_text(run, "%s = data parallel", lesson->name);
    training_compare_tensors(run, what, got, &replicas, limit);
    training_compare_numbers(run, what, got, &replicas, training_limit(&t));
    t.micro_batches = 1;
    Trajectory unsplit = training_unsplit(run, &t, 1);
    training_compare(run, page_text(run, "%s = unsplit", lesson->name), got, &unsplit,
                     training_limit(&t));
    trajectory_free(&replicas);
    trajectory_free(&unsplit);
    zero_trained_free(lesson, &zero);
}

void zero_compare_one_and_several(Run *run, Comm *dp, const ZeroLesson *lesson, Training t,
                                  size_t m) {
    zero_compare(run, dp, lesson, t);
    zero_compare(run, dp, lesson, zero_adamw(t, 1));
    t.micro_batches = m;
    t.clip = 0.5; // below every norm: each step is clipped
    zero_compare(run, dp, lesson, t);
    zero_compare(run, dp, lesson, zero_adamw(t, m));
}
