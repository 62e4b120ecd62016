// stages.c: see stages.h.
#include "04_pipeline_naive/stages.h"
#include <stdio.h>
#include <stdlib.h>

Course course_new(Run *run) {
    Course c = { .weights = snapshot_new(run) };
    for (size_t s = 0; s < STAGE_STEPS; s++) c.gradients[s] = snapshot_new(run);
    return c;
}
void course_free(Course *c) {
    snapshot_free(c->weights);
    for (size_t s = 0; s < STAGE_STEPS; s++) snapshot_free(c->gradients[s]);
}

Range stages_micro_batch(const Training *t, size_t k) { return shard_range(t->sequences, t->micro_batches, k); }

// Every rank knows all tokens from the data order; the first stage reads them, the last one the targets.
static Batch *cut(const Training *t, Arena *tokens, size_t step) {
    Batch *batch = host_alloc(t->micro_batches * sizeof *batch);
    for (size_t k = 0; k < t->micro_batches; k++) {
        Range r = stages_micro_batch(t, k);
        batch[k] = data_batch(&t->data, tokens, step, r.lo, range_size(r), t->sequences);
    }
    return batch;
}

static void read_ledgers(StageCosts *c, const Stages *s) {
    c->messages = s->pp->ledger[COMM_SEND].calls;
    c->message_bytes = s->pp->ledger[COMM_SEND].bytes;
    c->scalar_calls = s->pp->ledger[COMM_ALL_REDUCE].calls;
    c->scalar_bytes = s->pp->ledger[COMM_ALL_REDUCE].bytes;
    if (s->tied) {
        c->tied_calls = s->tied->ledger[COMM_ALL_REDUCE].calls;
        c->tied_bytes = s->tied->ledger[COMM_ALL_REDUCE].bytes;
    }
    c->parameters = memory_now(MEM_PARAMETERS);
    c->gradients = memory_now(MEM_GRADIENTS);
    c->optimizer = memory_now(MEM_OPTIMIZER);
    c->activations = memory_peak(MEM_ACTIVATIONS);
    c->send_buffers = memory_peak(MEM_COMMUNICATION);
}

StageCosts stages_train(Run *run, const Training *t, ScheduleRule rule, StepOfStages step, Course *out) {
    size_t p = run->world->size, i = run->world->rank;
    Stages s = { .pp = run->world, .tied = pipeline_tied_group(run->world), .optimizer = t->optimizer, .training = t };
    s.model = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, p, i));
    model_allocate(s.model);
    optimizer_allocate(&s.optimizer, s.model);
    s.schedule = rule(p, t->micro_batches, i);
    StageCosts costs = {0};
    for (size_t n = 0; n < STAGE_STEPS; n++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = cut(t, &tokens, n);
        comm_ledger_reset(s.pp);
        if (s.tied) comm_ledger_reset(s.tied);
        memory_reset_peaks();
        StageStep r = step(&s, batch);
        read_ledgers(&costs, &s);
        costs.in_flight = r.in_flight;
        out->loss[n] = r.loss;
        out->norm[n] = r.norm;
        model_snapshot_gradients(s.model, out->gradients[n]);
        free(batch);
        arena_free(&tokens);
    }
    model_snapshot_weights(s.model, out->weights);
    schedule_free(&s.schedule);
    if (s.tied) comm_free(s.tied);
    model_free(s.model);
    return costs;
}

void stages_unsplit(Run *run, const Training *t, Course *out) {
    if (run->world->rank != 0) return;
    ledger_pause();
    Model *whole = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    size_t tensors = config_tensors(&t->model);
    double *squares = host_alloc(tensors * sizeof *squares);
    model_allocate(whole);
    optimizer_allocate(&o, whole);
    for (size_t n = 0; n < STAGE_STEPS; n++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = cut(t, &tokens, n);
        double loss = 0;
        model_zero_gradients(whole);
        for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(whole, &batch[k]);
        model_fold_tied(whole);                          // wte: the head's gradient and the embedding's
        model_grad_squares(whole, squares);
        out->loss[n] = loss * batch[0].token_weight;     // 1 / counted tokens of the batch
        out->norm[n] = norm_of_squares(squares, tensors);
        model_snapshot_gradients(whole, out->gradients[n]);
        optimizer_step(&o, whole, clip_factor(out->norm[n], t->clip));
        free(batch);
        arena_free(&tokens);
    }
    model_snapshot_weights(whole, out->weights);
    free(squares);
    model_free(whole);
    ledger_resume();
}

void stages_compare(Run *run, const char *what, const Course *got, const Course *want) {
    char text[80];
    for (size_t n = 0; n < STAGE_STEPS; n++) {
        snprintf(text, sizeof text, "%s, gradients %zu", what, n + 1);
        check_equal(run, text, got->gradients[n], want->gradients[n]);
    }
    snprintf(text, sizeof text, "%s, weights", what);
    check_equal(run, text, got->weights, want->weights);
    check_numbers(run, what, "loss of every step", got->loss, want->loss, STAGE_STEPS, 0);
    check_numbers(run, what, "gradient norm of every step", got->norm, want->norm, STAGE_STEPS, 0);
}
