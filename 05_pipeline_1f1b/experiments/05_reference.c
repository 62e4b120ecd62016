// 05_reference.c: 2BW's recurrence on one device, and its training on all ranks; see 05_2bw.h.
#include "05_pipeline_1f1b/experiments/05_2bw.h"
#include <stdlib.h>

Trajectory two_bw_reference(Run *run, const Training *t) {
    Trajectory out = trajectory_new(run, t);
    if (run->world->rank > 0) return out;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    model_allocate(m);
    optimizer_allocate(&o, m);
    Tensor newest = tensor_new(&a, 1, m->size), before = tensor_new(&a, 1, m->size);
    tensor_copy(before, m->w);
    for (size_t step = 0; step < t->steps; step++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *b = training_batches(t, &tokens, step, 1, 0);
        tensor_copy(newest, m->w);
        tensor_copy(m->w, before);                             // the whole batch reads the version before the newest
        model_zero_gradients(m);
        for (size_t k = 0; k < t->micro_batches; k++) out.loss[step] += model_forward_backward(m, &b[k]);
        out.loss[step] *= b->token_weight;
        model_fold_tied(m);
        tensor_copy(before, newest);
        tensor_copy(m->w, newest);
        optimizer_step(&o, m, 1);                              // and the newest is updated
        trajectory_record(&out, step, m, out.loss[step], 0);
        free(b);
        arena_free(&tokens);
    }
    arena_free(&a);
    model_free(m);
    ledger_resume();
    return out;
}

static void note(void *got, Model *m, size_t update, Which which) {
    ledger_pause();
    pipeline_note(got, m, update, which);
    ledger_resume();
}

TwoBwSeen two_bw_train(Run *run, const Training *t, const Schedule *list, bool noted, Trajectory *got) {
    Comm *pp = run->world, *tied = pipeline_tied_group(pp);
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    Optimizer o = t->optimizer;
    model_allocate(m);
    optimizer_allocate(&o, m);
    size_t n = t->steps * t->micro_batches;
    double *loss = host_alloc(n * sizeof *loss);
    PipelineNotes notes = { loss, noted ? note : NULL, got };
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = pipedream_batches(t, &tokens);
    comm_ledger_reset(pp);
    memory_reset_peaks();
    PipelineResult r = pipeline_2bw(pp, tied, m, &o, list, batch, n, &notes);
    TwoBwSeen seen = { .in_flight = r.in_flight, .size = m->size,
        .weights = memory_peak(MEM_PARAMETERS), .gradients = memory_peak(MEM_GRADIENTS),
        .optimizer = memory_peak(MEM_OPTIMIZER), .activations = memory_peak(MEM_ACTIVATIONS),
        .messages = pp->ledger[COMM_SEND].calls, .message_bytes = pp->ledger[COMM_SEND].bytes,
        .table_calls = tied ? tied->ledger[COMM_SEND].calls : 0,
        .table_bytes = tied ? tied->ledger[COMM_SEND].bytes : 0,
        .buffers = memory_peak(MEM_COMMUNICATION), .sums = pp->ledger[COMM_ALL_REDUCE].calls };
    seen.buffers_back = true;
    for (size_t each = 0; each < m->n_units; each++) {
        const Unit *u = &m->units[each];
        seen.buffers_back &= arena_holds(&m->gradients, u->g.data) && (u->tied_to || u->own_g.data == u->g.data);
    }
    ledger_pause();
    comm_all_reduce_doubles(pp, loss, n);                      // the last stage has them, the others zeros
    ledger_resume();
    for (size_t k = 0; k < n; k++) got->loss[k / t->micro_batches] += loss[k];
    for (size_t step = 0; step < t->steps; step++) got->loss[step] *= batch[step * t->micro_batches].token_weight;
    free(batch);
    free(loss);
    arena_free(&tokens);
    model_free(m);
    if (tied) comm_free(tied);
    return seen;
}

// ---------------------------------------------------------------- equal stages, on the clock

typedef struct { Comm *tied; const Schedule *list; } ByTwoBuffers;
// The stack has no embedding and no head, but their table is there: its gradient, all zeros, is summed as in a model.
static PipelineResult by_two_buffers(const void *how, Comm *pp, Model *m, const Batch *batch, size_t n) {
    const ByTwoBuffers *by = how;
    Optimizer o = sgd(0.01);
    tensor_fill(m->g, 0);
    return pipeline_2bw(pp, by->tied, m, &o, by->list, batch, n, NULL);
}
Played two_bw_play(Run *run, const Stack *stack, size_t m, size_t steps) {
    Comm *tied = pipeline_tied_group(run->world);
    Schedule list = schedule_2bw(run->world->size, m, steps, run->world->rank);
    Played out = stack_play_by(run, stack, MEM_ACTIVATIONS, by_two_buffers, &(ByTwoBuffers){ tied, &list }, m * steps);
    schedule_free(&list);
    if (tied) comm_free(tied);
    return out;
}
