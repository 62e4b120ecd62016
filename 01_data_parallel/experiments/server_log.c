// server_log.c: checks and replays the log of an asynchronous parameter server.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

ServerLog server_log_new(size_t workers, size_t steps, size_t staleness) {
    ServerLog log = { .workers = workers,
                      .steps = steps,
                      .staleness = staleness < steps ? staleness : steps,
                      .name = "no bound",
                      .line = host_alloc(workers * steps * sizeof(Served)) };
    if (staleness < steps) snprintf(log.name, sizeof log.name, "staleness %zu", staleness);
    return log;
}

// ---------------------------------------------------------------- checks

size_t server_log_oldest(const ServerLog *log) {
    size_t oldest = 0;
    for (size_t v = 0; v < log->workers * log->steps; v++) {
        const size_t age = v - log->line[v].taken;
        if (age > oldest) oldest = age;
    }
    return oldest;
}

// The log has n workers, and staleness at most s. A worker begins step j only when every worker has
// done at least j - s steps. Before this worker pushes, no worker has done more than j + s + 1
// steps. So each of the n - 1 other workers pushes at most 2 s + 1 times between this worker's pull
// and its push.
void server_log_check(Run *run, const ServerLog *log) {
    const size_t bound = (log->workers - 1) * (2 * log->staleness + 1);
    bool in_order = true;
    for (size_t v = 1; v < log->workers * log->steps; v++) {
        const Served *a = &log->line[v - 1], *b = &log->line[v];
        in_order = in_order &&
                   (a->arrival < b->arrival || (a->arrival == b->arrival && a->worker < b->worker));
    }
    check_true(run, log->name, "the pushes are served in the order of arrival", in_order);
    check_true(run, log->name, "no gradient is older than (n-1)(2s+1)",
               server_log_oldest(log) <= bound);
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
