// stages.c: trains a pipeline, one stage per rank, and reads the costs that each rank counted.
#include "04_pipeline_naive/experiments/experiments.h"
#include <stdlib.h>

static Model *model_of(Run *run, const Training *t, StageModel *stage) {
    if (stage) return stage(run, t);
    Range layers = pipeline_stage_layers(&t->model, NULL, run->world->size, run->world->rank);
    Model *m = model_describe(&t->model, layers);
    model_allocate(m);
    return m;
}

Training stages_training(Run *run, const ModelConfig *model, size_t sequences) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    require_one_link(run);
    REQUIRE(p <= model->layers, "%zu stages need at least as many blocks: start at most %zu rank%s",
            p, model->layers, model->layers > 1 ? "s" : "");
    REQUIRE(m >= 1 && m <= sequences,
            "--micro-batches %zu: the batch has %zu sequences: choose 1 to %zu", m, sequences,
            sequences);
    Training t = { .model = *model, .steps = 3, .sequences = sequences, .micro_batches = m };
    t.data = data_synthetic(model->vocab, model->context, run->seed);
    t.model.seed = run->seed;
    training_store(run, &t);
    return t;
}

// one_step runs a step for training_run, by the PipelineStep or the PipelineLoop of a StagesWay.
typedef struct {
    PipelineRank rank;
    const StagesWay *way;
} Trained;
static StepResult one_step(void *trained, Model *m, Optimizer *o, const Training *t,
                           const Batch *b) {
    Trained *s = trained;
    if (s->way->step) return s->way->step(&s->rank, m, o, b, t->micro_batches);
    model_zero_gradients(m);
    PipelineResult r = s->way->loop(s->rank.pp, m, b, t->micro_batches);
    return pipeline_update(&s->rank, m, o, b, r);
}

StageCosts stages_train_model(Run *run, const Training *t, Model *m, const StagesWay *way,
                              Trajectory *out) {
    Comm *pp = run->world, *tied = pipeline_tied_group(pp);
    Trained trained = { { .pp = pp, .tied = tied, .clip = t->clip, .schedule = way->schedule },
                        way };
    double n = t->steps;
    comm_ledger_reset(pp);
    training_run(out, m, t, 1, 0, one_step, &trained); // one shard: every rank has all tokens
    double sums = pp->ledger[COMM_ALL_REDUCE].calls, sum_bytes = pp->ledger[COMM_ALL_REDUCE].bytes;
    StageCosts costs = { .messages = pp->ledger[COMM_SEND].calls / n,
                         .message_bytes = pp->ledger[COMM_SEND].bytes / n,
                         .scalar_calls = sums / n,
                         .scalar_bytes = sum_bytes / n,
                         .tied_calls = tied ? tied->ledger[COMM_ALL_REDUCE].calls / n : 0,
                         .tied_bytes = tied ? tied->ledger[COMM_ALL_REDUCE].bytes / n : 0,
                         .in_flight = trained.rank.in_flight,
                         .parameters = memory_now(MEM_PARAMETERS),
                         .gradients = memory_now(MEM_GRADIENTS),
                         .optimizer = memory_now(MEM_OPTIMIZER),
                         .activations = memory_peak(MEM_ACTIVATIONS),
                         .message_buffers = memory_peak(MEM_COMMUNICATION),
                         .loss = out->loss[t->steps - 1] };
    if (t->recorded) costs.timing = picture_timing(run);
    if (tied) comm_free(tied);
    return costs;
}
static StageCosts train(Run *run, const Training *t, const StagesWay *way, Trajectory *out) {
    Model *m = model_of(run, t, way->stage);
    StageCosts costs = stages_train_model(run, t, m, way, out);
    model_free(m);
    return costs;
}

void stages_compare(Run *run, const Training *training, const StagesWay *way, size_t n,
                    StageCosts *costs) {
    for (size_t i = 0; i < 2; i++) {
        Training t = *training;
        t.optimizer = i ? adamw(0.01) : sgd(0.3);
        t.recorded = training->recorded && i;
        Trajectory want = training_unsplit(run, &t, 1);
        for (size_t k = 0; k < n; k++) {
            Trajectory got = trajectory_new(run, &t);
            costs[k] = train(run, &t, &way[k], &got);
            costs[k].unsplit_loss = want.loss[t.steps - 1];
            if (t.recorded && way[k].title && option_flag(run, "verbose")) {
                int scale = k > 0 ? PICTURE_SAME_SCALE : 0;
                picture_show(run, way[k].title, PICTURE_MEMORY | PICTURE_NO_FILES | scale);
                picture_summary(run, &costs[k].timing);
            }
            training_compare(run, way[k].what, &got, &want, 0);
            if (t.clip > 0)
                check_true(run, "clipping", "shortens the gradient in every step",
                           trajectory_clipped(&got, t.clip));
            trajectory_free(&got);
        }
        trajectory_free(&want);
    }
}
