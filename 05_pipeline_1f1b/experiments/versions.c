// versions.c: trains and plays lists with updates in them, PipeDream and 2BW, and measures what
// they hold and send (experiments.h).
#include "05_pipeline_1f1b/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// The micro-batches of all steps. free() the list, arena_free() the tokens.
static Batch *all_batches(const Training *t, Arena *tokens) {
    size_t m = t->micro_batches;
    Batch *all = host_alloc(t->steps * m * sizeof *all);
    for (size_t k = 0; k < t->steps; k++) {
        Batch *b = training_batches(t, tokens, k, 1, 0);
        for (size_t n = 0; n < m; n++) {
            all[k * m + n] = b[n];
            all[k * m + n].number = k * m + n;
        }
        free(b);
    }
    return all;
}

// Records gradients and weights of some tensors after an update (PipelineNotes) in a Trajectory.
static void put(Trajectory *got, Model *m, size_t update, ParamFilter *which) {
    char label[32];
    snprintf(label, sizeof label, " of step %zu", update);
    snapshot_label(got->gradients, label);
    snapshot_label(got->weights, label);
    if (update == 0) model_snapshot(m, got->first, UNIT_GRADIENTS, which);
    model_snapshot(m, got->gradients, UNIT_GRADIENTS, which);
    model_snapshot(m, got->weights, UNIT_WEIGHTS, which);
}

typedef struct {
    Trajectory *got;
    VersionsSeen *seen;
} Notes;
static void note(void *notes, Model *m, size_t update, ParamFilter *which) {
    Notes *n = notes;
    ledger_pause();
    put(n->got, m, update, which);
    if (update == 1 && n->seen->second) {
        real *values = host_alloc(m->size * sizeof *values);
        tensor_download(values, m->g);
        for (size_t e = 0; e < m->size; e++) n->seen->second[e] = values[e];
        free(values);
    }
    ledger_resume();
}

static bool buffers_back(const Model *m) {
    bool back = true;
    for (size_t i = 0; i < m->n_units; i++) {
        const Unit *u = &m->units[i];
        back &= arena_holds(&m->gradients, u->g.data) && (u->tied_to || u->own_g.data == u->g.data);
    }
    return back;
}

VersionsSeen versions_train(Run *run, const Training *t, const Schedule *list, const size_t *older,
                            Trajectory *got) {
    Comm *pp = run->world, *tied = older ? NULL : pipeline_tied_group(pp);
    Model *m =
        model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    Optimizer o = t->optimizer;
    if (older) model_untie(m);
    model_allocate(m);
    optimizer_allocate(&o, m);
    size_t n = t->steps * t->micro_batches;
    VersionsSeen seen = { .size = m->size,
                          .loss = host_alloc(t->steps * sizeof *seen.loss),
                          .second = older ? host_alloc(m->size * sizeof *seen.second) : NULL };
    Notes notes = { got, &seen };
    double *loss = host_alloc(n * sizeof *loss);
    PipelineNotes each = { loss, got ? note : NULL, &notes };
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = all_batches(t, &tokens);
    comm_ledger_reset(pp);
    memory_reset_peaks();
    PipelineResult r = older ? pipeline_pipedream(pp, m, &o, list, *older, batch, n, &each)
                             : pipeline_2bw(pp, tied, m, &o, list, batch, n, &each);
    seen.in_flight = r.in_flight;
    seen.weights = memory_peak(MEM_PARAMETERS);
    seen.gradients = memory_peak(MEM_GRADIENTS);
    seen.optimizer = memory_peak(MEM_OPTIMIZER);
    seen.activations = memory_peak(MEM_ACTIVATIONS);
    seen.buffers = memory_peak(MEM_COMMUNICATION);
    seen.messages = pp->ledger[COMM_SEND].calls;
    seen.message_bytes = pp->ledger[COMM_SEND].bytes;
    seen.table_calls = tied ? tied->ledger[COMM_SEND].calls : 0;
    seen.table_bytes = tied ? tied->ledger[COMM_SEND].bytes : 0;
    seen.sums = pp->ledger[COMM_ALL_REDUCE].calls;
    seen.buffers_back = buffers_back(m);
    ledger_pause();
    comm_all_reduce_doubles(pp, loss, n); // the last stage has the losses, the others have zeros
    ledger_resume();
    for (size_t k = 0; k < n; k++) seen.loss[k / t->micro_batches] += loss[k];
    for (size_t step = 0; step < t->steps; step++) {
        seen.loss[step] *= batch[step * t->micro_batches].token_weight;
        if (got) got->loss[step] = seen.loss[step];
    }
    free(batch);
    free(loss);
    arena_free(&tokens);
    model_free(m);
    if (tied) comm_free(tied);
    return seen;
}

void versions_seen_free(VersionsSeen *seen) {
    free(seen->loss);
    free(seen->second);
}

// ---------------------------------------------------------------- equal stages, on the clock

static PipelineResult by_list(const void *list, Comm *pp, Model *stage, const Batch *batch,
                              size_t m) {
    return zero_bubble_run(pp, stage, list, batch, m);
}
Played play_list(Run *run, const Stack *stack, const Schedule *list, size_t m) {
    return stack_play_by(run, stack, MEM_ACTIVATIONS, by_list, list, m);
}

typedef struct {
    const Schedule *list;
    size_t older;
} ByVersions;
static PipelineResult by_versions(const void *how, Comm *pp, Model *m, const Batch *batch,
                                  size_t n) {
    const ByVersions *by = how;
    Optimizer o = sgd(0.01);
    return pipeline_pipedream(pp, m, &o, by->list, by->older, batch, n, NULL);
}
Played pipedream_play(Run *run, const Stack *stack, const Schedule *list, size_t older, size_t n) {
    return stack_play_by(run, stack, MEM_PARAMETERS, by_versions, &(ByVersions){ list, older }, n);
}

typedef struct {
    Comm *tied;
    const Schedule *list;
} ByTwoBuffers;
// The stack has no embedding and no head, but it has their table. The table's gradient is all
// zeros, and the ends sum it as in a model.
static PipelineResult by_two_buffers(const void *how, Comm *pp, Model *m, const Batch *batch,
                                     size_t n) {
    const ByTwoBuffers *by = how;
    Optimizer o = sgd(0.01);
    tensor_fill(m->g, 0);
    return pipeline_2bw(pp, by->tied, m, &o, by->list, batch, n, NULL);
}
Played two_bw_play(Run *run, const Stack *stack, size_t m, size_t steps) {
    Comm *tied = pipeline_tied_group(run->world);
    Schedule list = schedule_2bw(run->world->size, m, steps, run->world->rank);
    Played out = stack_play_by(run, stack, MEM_ACTIVATIONS, by_two_buffers,
                               &(ByTwoBuffers){ tied, &list }, m * steps);
    schedule_free(&list);
    if (tied) comm_free(tied);
    return out;
}
