// server_log.c: predicts, checks and replays the log of an asynchronous parameter server.
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

// ---------------------------------------------------------------- prediction

// Push number step * workers + worker, before its place in the log is known.
typedef struct {
    size_t number;
    double arrival;
} Push;
static int by_arrival(const void *a, const void *b) {
    const Push *x = a, *y = b;
    if (x->arrival != y->arrival) return x->arrival < y->arrival ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

// Returns the largest of value[push] among the pushes for which the answer to a push of step j
// waits. The weights must contain this push, and every worker's push of step j - s.
static double answered(const double *value, size_t push, size_t n, size_t staleness) {
    size_t step = push / n;
    double last = value[push];
    for (size_t x = 0; x < n && step >= staleness; x++)
        last = fmax(last, value[(step - staleness) * n + x]);
    return last;
}

// Returns the lines of the log that follow from the times alone. A push arrives at the time of the
// answer, plus the worker's computation, plus the push's message.
static Served *predicted(const ServerLog *log, const ServerSizes *z) {
    const double weights = server_answer(z), push_time = server_push(z);
    size_t n = log->workers, lines = n * log->steps;
    Served *line = host_alloc(lines * sizeof *line);
    Push *push = host_alloc(lines * sizeof *push);
    double *arrival = host_alloc(lines * sizeof *arrival);
    double *version = host_alloc(lines * sizeof *version); // the version that each push made
    for (size_t i = 0; i < lines; i++) {
        double answer = i < n ? (double)log->begin : answered(arrival, i - n, n, log->staleness);
        arrival[i] = answer + weights + server_computing(z, i % n) + push_time;
        push[i] = (Push){ i, arrival[i] };
    }
    qsort(push, lines, sizeof *push, by_arrival);
    for (size_t v = 0; v < lines; v++) version[push[v].number] = (double)(v + 1);
    for (size_t v = 0; v < lines; v++) {
        size_t i = push[v].number;
        size_t taken = i < n ? 0 : (size_t)answered(version, i - n, n, log->staleness);
        line[v] = (Served){ i % n, taken, (Picoseconds)push[v].arrival };
    }
    free(push);
    free(arrival);
    free(version);
    return line;
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

// Checks the lines, then the age of the gradients. A worker begins step j when every worker has
// done at least j - s steps. Before this worker pushes, no worker has done more than j + s + 1
// steps. So each of the n - 1 other workers pushes at most 2 s + 1 times between this worker's pull
// and its push.
void server_log_check(Run *run, const ServerLog *log, const ServerSizes *z) {
    static const char *const name[] = { "log: whose push", "log: the version it was taken at",
                                        "log: when it arrived" };
    size_t lines = log->workers * log->steps;
    Served *want = predicted(log, z);
    double *a = host_alloc(lines * sizeof *a), *b = host_alloc(lines * sizeof *b);
    for (size_t column = 0; column < 3; column++) {
        for (size_t v = 0; v < lines; v++) {
            const Served *x = &log->line[v], *y = &want[v];
            a[v] = (double)(column == 0 ? x->worker : column == 1 ? x->taken : x->arrival);
            b[v] = (double)(column == 0 ? y->worker : column == 1 ? y->taken : y->arrival);
        }
        check_numbers(run, log->name, name[column], a, b, lines, 0);
    }
    const size_t oldest = (log->workers - 1) * (2 * log->staleness + 1);
    check_true(run, log->name, "no gradient is older than (n-1)(2s+1)",
               server_log_look(log).lag <= oldest);
    free(a);
    free(b);
    free(want);
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
