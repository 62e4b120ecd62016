// 04_train.c: the trainings of 04_pipedream; see 04_pipedream.h.
#include "05_pipeline_1f1b/experiments/04_pipedream.h"
#include "04_pipeline_naive/experiments/timeline.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Batch *pipedream_batches(const Training *t, Arena *tokens) {
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

void pipeline_note(Trajectory *got, Model *m, size_t update, Which which) {
    char label[32];
    snprintf(label, sizeof label, " of step %zu", update);
    snapshot_label(got->gradients, label);
    snapshot_label(got->weights, label);
    if (update == 0) model_snapshot(m, got->first, UNIT_GRADIENTS, which);
    model_snapshot(m, got->gradients, UNIT_GRADIENTS, which);
    model_snapshot(m, got->weights, UNIT_WEIGHTS, which);
}

typedef struct { Trajectory *got; PipeDreamSeen *seen; } Notes;
static void note(void *notes, Model *m, size_t k, Which which) {
    Notes *n = notes;
    ledger_pause();
    pipeline_note(n->got, m, k, which);
    if (k == 1) {
        real *values = host_alloc(m->size * sizeof *values);
        tensor_download(values, m->g);
        for (size_t e = 0; e < m->size; e++) n->seen->second[e] = values[e];
        free(values);
    }
    ledger_resume();
}

PipeDreamSeen pipedream_train(Run *run, const Training *t, const Schedule *list, size_t older, Trajectory *got) {
    Comm *pp = run->world;
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    Optimizer o = t->optimizer;
    model_untie(m);
    model_allocate(m);
    optimizer_allocate(&o, m);
    PipeDreamSeen seen = { .loss = host_alloc(t->steps * sizeof *seen.loss), .size = m->size,
                           .second = host_alloc(m->size * sizeof *seen.second) };
    Notes notes = { got, &seen };
    PipelineNotes each = { seen.loss, got ? note : NULL, &notes };
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *batch = pipedream_batches(t, &tokens);
    comm_ledger_reset(pp);
    memory_reset_peaks();
    PipelineResult r = pipeline_pipedream(pp, m, &o, list, older, batch, t->steps, &each);
    seen.in_flight = r.in_flight;
    seen.weights = memory_peak(MEM_PARAMETERS);
    seen.gradients = memory_peak(MEM_GRADIENTS);
    seen.optimizer = memory_peak(MEM_OPTIMIZER);
    seen.activations = memory_peak(MEM_ACTIVATIONS);
    seen.buffers = memory_peak(MEM_COMMUNICATION);
    seen.messages = pp->ledger[COMM_SEND].calls;
    seen.message_bytes = pp->ledger[COMM_SEND].bytes;
    seen.sums = pp->ledger[COMM_ALL_REDUCE].calls;
    for (size_t k = 0; k < t->steps; k++) seen.loss[k] *= batch[k].token_weight;
    ledger_pause();
    comm_all_reduce_doubles(pp, seen.loss, t->steps);          // the last stage has them, the others zeros
    ledger_resume();
    if (got) memcpy(got->loss, seen.loss, t->steps * sizeof *seen.loss);
    free(batch);
    arena_free(&tokens);
    model_free(m);
    return seen;
}

void pipedream_seen_free(PipeDreamSeen *seen) {
    free(seen->loss);
    free(seen->second);
}

double pipedream_deviation(Run *run, const PipeDreamSeen *a, const PipeDreamSeen *b) {
    double squares[2] = {0};
    for (size_t e = 0; e < a->size; e++) {
        squares[0] += (a->second[e] - b->second[e]) * (a->second[e] - b->second[e]);
        squares[1] += b->second[e] * b->second[e];
    }
    ledger_pause();
    comm_all_reduce_doubles(run->world, squares, 2);
    ledger_resume();
    return sqrt(squares[0] / squares[1]);
}

// ---------------------------------------------------------------- equal stages, on the clock

Schedule schedule_flushed(size_t p, size_t m, size_t i, size_t times) {
    Schedule all = {0}, one = schedule_1f1b(p, m, i);
    for (size_t step = 0; step < times; step++) {
        for (size_t e = 0; e < one.n; e++) {
            PipeOp op = one.ops[e];
            op.micro_batch += step * m;
            op.version = step;
            schedule_add_op(&all, op);
        }
        schedule_add(&all, UPDATE, step);
    }
    schedule_free(&one);
    return all;
}

typedef struct { const Schedule *list; size_t older; } ByVersions;
static PipelineResult by_versions(const void *how, Comm *pp, Model *m, const Batch *batch, size_t n) {
    const ByVersions *by = how;
    Optimizer o = sgd(0.01);
    return pipeline_pipedream(pp, m, &o, by->list, by->older, batch, n, NULL);
}
Played pipedream_play(Run *run, const Stack *stack, const Schedule *list, size_t older, size_t n) {
    return stack_play_by(run, stack, MEM_PARAMETERS, by_versions, &(ByVersions){ list, older }, n);
}

Picoseconds pipedream_makespan(const Stack *stack, PipeDreamList list, size_t p, size_t n) {
    StackTimes d = stack_times(stack);
    Schedule *stage = host_alloc(p * sizeof *stage);
    for (size_t i = 0; i < p; i++) stage[i] = list(p, n, i);
    Timeline t = timeline_with_times(stage, p, n, &(OpTimes){ d.forward, d.backward, 0, d.message });
    Picoseconds end = t.stuck ? UINT64_MAX : t.end;
    timeline_free(&t);
    schedule_all_free(stage, p);
    return end;
}
