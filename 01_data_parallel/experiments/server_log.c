// server_log.c: checks and replays the log of an asynchronous parameter server.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

ServerLog server_log_new(size_t workers, size_t steps, size_t staleness) {
    ServerLog log = {
        workers, steps, staleness, "no bound", host_alloc(workers * steps * sizeof(Served)), 0
    };
    if (staleness < steps) snprintf(log.name, sizeof log.name, "staleness %zu", staleness);
    return log;
}

// ---------------------------------------------------------------- checks

ServerLogSeen server_log_look(const ServerLog *log) {
    ServerLogSeen seen = { 0 };
    size_t *done = host_alloc(log->workers * sizeof *done); // pushes in the lines so far
    for (size_t v = 0; v < log->workers * log->steps; v++) {
        const Served *l = &log->line[v];
        if (v - l->taken > seen.lag) seen.lag = v - l->taken;
        done[l->worker]++;
        if (done[l->worker] < log->steps || seen.pushes > 0) continue;
        seen.pushes = (double)(v + 1) * 1e9 / (double)(l->arrival - log->begin);
    }
    free(done);
    return seen;
}

// The log has n workers, and staleness at most s. A worker begins step j only when every worker has
// done at least j - s steps. Before this worker pushes, no worker has done more than j + s + 1
// steps. So each of the n - 1 other workers pushes at most 2 s + 1 times between this worker's pull
// and its push.
void server_log_check(Run *run, const ServerLog *log) {
    const size_t oldest = (log->workers - 1) * (2 * log->staleness + 1);
    bool in_order = true;
    for (size_t v = 1; v < log->workers * log->steps; v++) {
        const Served *a = &log->line[v - 1], *b = &log->line[v];
        in_order = in_order &&
                   (a->arrival < b->arrival || (a->arrival == b->arrival && a->worker < b->worker));
    }
    check_true(run, log->name, "the pushes are served in the order of arrival", in_order);
    check_true(run, log->name, "no gradient is older than (n-1)(2s+1)",
               server_log_look(log).lag <= oldest);
}

// ---------------------------------------------------------------- replay

Trajectory server_log_replay(Run *run, const Training *t, const ServerLog *log) {
    Training updates = *t;
    updates.steps = log->workers * log->steps;
    Trajectory c = trajectory_new(run, &updates);
    if (run->world->rank > 0) return c;
    ledger_pause();
    Model *m = whole_model(&t->model);
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    size_t *done = host_alloc(log->workers * sizeof *done);
    optimizer_allocate(&o, m);
    Tensor version = tensor_new(&a, updates.steps + 1, m->size); // row v: version v
    tensor_copy(tensor_row_range(version, 0, 1), m->w);
    for (size_t v = 0; v < updates.steps; v++) {
        size_t w = log->line[v].worker, taken = log->line[v].taken;
        tensor_copy(m->w, tensor_row_range(version, taken, taken + 1));
        double loss = worker_gradient(m, &t->data, t->sequences, log->workers, w, done[w]);
        done[w]++;
        tensor_copy(m->w, tensor_row_range(version, v, v + 1));
        double norm = model_grad_norm(m, NULL);
        optimizer_step(&o, m, 1);
        tensor_copy(tensor_row_range(version, v + 1, v + 2), m->w);
        trajectory_record(&c, v, m, loss, norm);
    }
    model_free(m);
    free(done);
    arena_free(&a);
    ledger_resume();
    return c;
}
