// stages.c: trains a pipeline, one stage per rank, and reads the ledgers of each rank.
#include "04_pipeline_naive/experiments/experiments.h"
#include <stdlib.h>

static Model *stage_model(const Training *t, size_t p, size_t i) {
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, p, i));
    model_allocate(m);
    return m;
}

Training stages_training(Run *run, const ModelConfig *model, size_t sequences) {
    size_t p = run->world->size, m = option_size(run, "micro-batches");
    require_one_link(run);
    REQUIRE(p <= model->layers, "%zu stages need at least as many blocks: start at most %zu ranks",
            p, model->layers);
    REQUIRE(m >= 1 && m <= sequences,
            "--micro-batches %zu: the batch has %zu sequences: choose 1 to %zu", m, sequences,
            sequences);
    Training t = { .model = *model, .steps = 3, .sequences = sequences, .micro_batches = m };
    t.data = data_synthetic(model->vocab, model->context, run->seed);
    t.model.seed = run->seed;
    return t;
}

// training_run calls a Step; one_step turns a lesson's PipelineStep into a Step.
typedef struct {
    PipelineRank rank;
    PipelineStep *step;
} Trained;
static StepResult one_step(void *trained, Model *m, Optimizer *o, const Training *t,
                           const Batch *b) {
    Trained *s = trained;
    return s->step(&s->rank, m, o, b, t->micro_batches);
}

StageCosts stages_train(Run *run, const Training *t, Model *m, PipelineStep *step,
                        ScheduleRule schedule, Trajectory *out) {
    Comm *pp = run->world, *tied = pipeline_tied_group(pp);
    Model *own = m ? NULL : stage_model(t, pp->size, pp->rank);
    Trained me = { { .pp = pp, .tied = tied, .clip = t->clip, .schedule = schedule }, step };
    double n = t->steps;
    comm_ledger_reset(pp);
    training_run(out, m ? m : own, t, 1, 0, one_step, &me); // every rank knows all tokens
    double sums = pp->ledger[COMM_ALL_REDUCE].calls, sum_bytes = pp->ledger[COMM_ALL_REDUCE].bytes;
    StageCosts costs = { .messages = pp->ledger[COMM_SEND].calls / n,
                         .message_bytes = pp->ledger[COMM_SEND].bytes / n,
                         .scalar_calls = sums / n,
                         .scalar_bytes = sum_bytes / n,
                         .tied_calls = tied ? tied->ledger[COMM_ALL_REDUCE].calls / n : 0,
                         .tied_bytes = tied ? tied->ledger[COMM_ALL_REDUCE].bytes / n : 0,
                         .in_flight = me.rank.in_flight,
                         .parameters = memory_now(MEM_PARAMETERS),
                         .gradients = memory_now(MEM_GRADIENTS),
                         .optimizer = memory_now(MEM_OPTIMIZER),
                         .activations = memory_peak(MEM_ACTIVATIONS),
                         .message_buffers = memory_peak(MEM_COMMUNICATION) };
    if (tied) comm_free(tied);
    if (own) model_free(own);
    return costs;
}

StageCosts stages_same_bits(Run *run, const char *what, const Training *t, Model *a, Model *b,
                            PipelineLoop *loop, const Schedule *list, ListRunner *runner) {
    Comm *pp = run->world, *tied = pipeline_tied_group(pp);
    Model *by_loop_model = a ? a : stage_model(t, pp->size, pp->rank);
    Model *by_list_model = b ? b : stage_model(t, pp->size, pp->rank);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t, &tokens, 0, 1, 0);
    model_zero_gradients(by_loop_model);
    model_zero_gradients(by_list_model);
    comm_ledger_reset(pp);
    memory_reset_peaks();
    PipelineResult by_loop = loop(pp, by_loop_model, batch, t->micro_batches);
    StageCosts costs = { .messages = pp->ledger[COMM_SEND].calls,
                         .message_bytes = pp->ledger[COMM_SEND].bytes,
                         .in_flight = by_loop.in_flight,
                         .activations = memory_peak(MEM_ACTIVATIONS),
                         .message_buffers = memory_peak(MEM_COMMUNICATION) };
    PipelineResult by_list = runner(pp, by_list_model, list, batch, t->micro_batches);
    pipeline_tied_sum(by_loop_model, tied);
    pipeline_tied_sum(by_list_model, tied);
    check_true(run, what, "gradients of a step, every bit",
               tensor_equal(by_loop_model->g, by_list_model->g));
    check_true(run, what, "loss, every bit", by_loop.loss == by_list.loss);
    free(batch);
    arena_free(&tokens);
    if (!a) model_free(by_loop_model);
    if (!b) model_free(by_list_model);
    if (tied) comm_free(tied);
    return costs;
}
