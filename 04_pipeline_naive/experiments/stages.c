// stages.c: see stages.h.
#include "04_pipeline_naive/experiments/stages.h"
#include <stdlib.h>

static Model *stage_model(const Training *t, size_t p, size_t i) {
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, p, i));
    model_allocate(m);
    return m;
}

void stages_check_evaluation(Run *run, const Training *t) {
    Comm *pp = run->world;
    size_t p = pp->size, *uneven = host_alloc(p * sizeof *uneven);
    for (size_t i = 0; i < p; i++) uneven[i] = i + 1 < p ? 1 : t->model.layers - (p - 1);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t, &tokens, 0, 1, 0);
    double got[2], want[2] = {0};
    for (size_t k = 0; k < 2; k++) {
        Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, k ? uneven : NULL, p, pp->rank));
        model_allocate(m);
        got[k] = pipeline_loss(pp, m, &batch[0]);          // known on the last stage; the others add 0
        model_free(m);
    }
    comm_all_reduce_doubles(pp, got, 2);
    ledger_pause();
    if (run->is_root) {
        Model *whole = model_describe(&t->model, model_layers(&t->model));
        model_allocate(whole);
        want[0] = want[1] = model_loss(whole, &batch[0]);
        model_free(whole);
    }
    ledger_resume();
    check_numbers(run, "evaluation = unsplit", "loss; even stages, and 1, 1, ... and the rest", got, want, 2, 0);
    free(batch);
    free(uneven);
    arena_free(&tokens);
}

StageCosts stages_train(Run *run, const Training *t, Step *step, ScheduleRule schedule, Trajectory *out) {
    Model *m = stage_model(t, run->world->size, run->world->rank);
    StageCosts costs = stages_train_model(run, t, m, step, schedule, out);
    model_free(m);
    return costs;
}

StageCosts stages_train_model(Run *run, const Training *t, Model *m, Step *step, ScheduleRule schedule,
                              Trajectory *out) {
    PipelineRank me = { .pp = run->world, .tied = pipeline_tied_group(run->world), .schedule = schedule };
    double n = t->steps;
    comm_ledger_reset(me.pp);
    training_run(out, m, t, 1, 0, step, &me);            // every rank knows all tokens from the data order
    StageCosts costs = {
        .messages = me.pp->ledger[COMM_SEND].calls / n, .message_bytes = me.pp->ledger[COMM_SEND].bytes / n,
        .scalar_calls = me.pp->ledger[COMM_ALL_REDUCE].calls / n,
        .scalar_bytes = me.pp->ledger[COMM_ALL_REDUCE].bytes / n,
        .tied_calls = me.tied ? me.tied->ledger[COMM_ALL_REDUCE].calls / n : 0,
        .tied_bytes = me.tied ? me.tied->ledger[COMM_ALL_REDUCE].bytes / n : 0,
        .in_flight = me.in_flight,
        .parameters = memory_now(MEM_PARAMETERS), .gradients = memory_now(MEM_GRADIENTS),
        .optimizer = memory_now(MEM_OPTIMIZER),
        .activations = memory_peak(MEM_ACTIVATIONS), .message_buffers = memory_peak(MEM_COMMUNICATION) };
    if (me.tied) comm_free(me.tied);
    return costs;
}

StageCosts stages_same_bits(Run *run, const char *what, const Training *t, PipelineLoop *loop,
                            ScheduleRule schedule) {
    Comm *pp = run->world;
    Model *a = stage_model(t, pp->size, pp->rank), *b = stage_model(t, pp->size, pp->rank);
    Schedule list = schedule(pp->size, t->micro_batches, pp->rank);
    StageCosts costs = stages_same_bits_models(run, what, t, a, b, loop, &list);
    schedule_free(&list);
    model_free(a);
    model_free(b);
    return costs;
}

StageCosts stages_same_bits_models(Run *run, const char *what, const Training *t, Model *a, Model *b,
                                   PipelineLoop *loop, const Schedule *list) {
    Comm *pp = run->world, *tied = pipeline_tied_group(pp);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = training_batches(t, &tokens, 0, 1, 0);
    model_zero_gradients(a);
    model_zero_gradients(b);
    comm_ledger_reset(pp);
    memory_reset_peaks();
    PipelineResult by_loop = loop(pp, a, batch, t->micro_batches);
    StageCosts costs = { .messages = pp->ledger[COMM_SEND].calls, .message_bytes = pp->ledger[COMM_SEND].bytes,
                         .in_flight = by_loop.in_flight, .activations = memory_peak(MEM_ACTIVATIONS),
                         .message_buffers = memory_peak(MEM_COMMUNICATION) };
    PipelineResult by_list = pipeline_run(pp, b, list, batch, t->micro_batches);
    pipeline_tied_sum(a, tied);
    pipeline_tied_sum(b, tied);
    check_true(run, what, "gradients of a step, every bit", tensor_equal(a->g, b->g));
    check_true(run, what, "loss, every bit", by_loop.loss == by_list.loss);
    free(batch);
    arena_free(&tokens);
    if (tied) comm_free(tied);
    return costs;
}
