// stages.c: see stages.h.
#include "04_pipeline_naive/stages.h"

static StageCosts read_ledgers(const Stages *s) {
    return (StageCosts){
        .messages = s->pp->ledger[COMM_SEND].calls, .message_bytes = s->pp->ledger[COMM_SEND].bytes,
        .scalar_calls = s->pp->ledger[COMM_ALL_REDUCE].calls, .scalar_bytes = s->pp->ledger[COMM_ALL_REDUCE].bytes,
        .tied_calls = s->tied ? s->tied->ledger[COMM_ALL_REDUCE].calls : 0,
        .tied_bytes = s->tied ? s->tied->ledger[COMM_ALL_REDUCE].bytes : 0,
        .in_flight = s->in_flight,
        .parameters = memory_now(MEM_PARAMETERS), .gradients = memory_now(MEM_GRADIENTS),
        .optimizer = memory_now(MEM_OPTIMIZER),
        .activations = memory_peak(MEM_ACTIVATIONS), .message_buffers = memory_peak(MEM_COMMUNICATION) };
}

static StepResult counted_step(void *stages, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Stages *s = stages;
    comm_ledger_reset(s->pp);
    if (s->tied) comm_ledger_reset(s->tied);
    return s->step(s, m, o, t, batch);
}

StageCosts stages_train(Run *run, const Training *t, ScheduleRule rule, Step *step, Trajectory *out) {
    size_t p = run->world->size, i = run->world->rank;
    Stages s = { .pp = run->world, .tied = pipeline_tied_group(run->world), .step = step };
    s.schedule = rule(p, t->micro_batches, i);
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, p, i));
    model_allocate(m);
    training_run(out, m, t, 1, 0, counted_step, &s);             // every rank knows all tokens from the data order
    StageCosts costs = read_ledgers(&s);
    schedule_free(&s.schedule);
    if (s.tied) comm_free(s.tied);
    model_free(m);
    return costs;
}
