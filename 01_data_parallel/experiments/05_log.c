// 05_log.c: see 05_log.h.
#include "01_data_parallel/experiments/05_log.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

Log log_new(size_t workers, size_t steps, size_t staleness) {
    Served *line = (Served *)host_alloc(workers * steps * sizeof *line);
    Log log = { workers, steps, staleness, "no bound", line, 0, true };
    if (staleness < steps) snprintf(log.name, sizeof log.name, "staleness %zu", staleness);
    return log;
}
void log_free(Log *log) { free(log->line); }

// ---------------------------------------------------------------- for the comparison

static void tell_lines(Log *log, const Cluster *c) {
    size_t lines = log->workers * log->steps;
    Served *mine = (Served *)host_alloc(lines * sizeof *mine);
    for (size_t v = 0; v < lines; v++) mine[v] = log->line[v];
    side_broadcast(log->line, lines * sizeof *log->line);
    for (size_t v = 0; v < lines && cluster_serves(c); v++)    // a smaller piece arrives a little earlier
        log->same = log->same && mine[v].worker == log->line[v].worker && mine[v].taken == log->line[v].taken;
    free(mine);
}

void notes_version(Notes *notes, size_t version, const Model *m) {
    trajectory_record(notes->got, version, m, 0, 0);
    model_grad_squares(m, notes->squares + version * config_tensors(&m->config));
}

void log_tell(Log *log, const Cluster *c, Notes *notes, const double *loss, size_t tensors) {
    Trajectory *got = notes->got;
    double *squares = notes->squares;
    size_t updates = got->steps, seen = 0;
    if (log->line) tell_lines(log, c);
    for (size_t v = 0; v < updates && !cluster_serves(c); v++)
        if (!log->line || log->line[v].worker == cluster_worker(c)) got->loss[v] = loss[seen++];
    ledger_pause();
    comm_all_reduce_doubles(c->world, got->loss, updates);
    comm_all_reduce_doubles(c->world, squares, updates * tensors);
    ledger_resume();
    for (size_t v = 0; v < updates; v++) got->norm[v] = norm_of_squares(squares + v * tensors, tensors);
}

Trajectory log_replay(Run *run, const Training *t, const Log *log) {
    Training updates = *t;
    updates.steps = log->workers * log->steps;
    Trajectory c = trajectory_new(run, &updates);
    if (run->world->rank > 0) return c;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    size_t *done = (size_t *)host_alloc(log->workers * sizeof *done);
    model_allocate(m);
    optimizer_allocate(&o, m);
    Tensor version = tensor_new(&a, updates.steps + 1, m->size);
    tensor_copy(tensor_row_range(version, 0, 1), m->w);
    for (size_t v = 0; v < updates.steps; v++) {
        size_t w = log->line[v].worker;
        tensor_copy(m->w, tensor_row_range(version, log->line[v].taken, log->line[v].taken + 1));
        double loss = worker_gradient(m, t, log->workers, w, done[w]++);
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

// ---------------------------------------------------------------- what it must be

// Push number step * workers + worker, until it has its place in the log.
typedef struct { size_t number, worker; double arrival; } Push;

static int by_arrival(const void *a, const void *b) {
    const Push *x = (const Push *)a, *y = (const Push *)b;
    if (x->arrival != y->arrival) return x->arrival < y->arrival ? -1 : 1;
    return x->worker < y->worker ? -1 : x->worker > y->worker;
}

// A push of step j is answered when it is in the weights, and everybody's push of step j - s too: only then may its
// worker begin step j + 1. The largest of value[push] among all these pushes.
static double answered(const double *value, size_t push, size_t n, size_t staleness) {
    size_t step = push / n;
    double last = value[push];
    for (size_t x = 0; x < n && step >= staleness; x++) last = fmax(last, value[(step - staleness) * n + x]);
    return last;
}

// From sizes and speeds alone: all are sent version 0 at `begin`, and a push arrives after two messages and its
// worker's computing, counted from the answer.
static Served *predicted(const Log *log, const ServerSizes *z) {
    size_t n = log->workers, lines = n * log->steps, staleness = log->staleness;
    double message = server_message(z);
    Served *line = (Served *)host_alloc(lines * sizeof *line);
    Push *push = (Push *)host_alloc(lines * sizeof *push);
    double *arrival = (double *)host_alloc(lines * sizeof *arrival);
    double *version = (double *)host_alloc(lines * sizeof *version);       // that each push made
    for (size_t i = 0; i < lines; i++) {
        double answer = i < n ? (double)log->begin : answered(arrival, i - n, n, staleness);
        arrival[i] = answer + message + server_computing(z, i % n) + message;
        push[i].number = i;
        push[i].worker = i % n;
        push[i].arrival = arrival[i];
    }
    qsort(push, lines, sizeof *push, by_arrival);
    for (size_t v = 0; v < lines; v++) version[push[v].number] = (double)(v + 1);
    for (size_t v = 0; v < lines; v++) {
        size_t i = push[v].number;
        size_t taken = i < n ? 0 : (size_t)answered(version, i - n, n, staleness);
        line[v].worker = push[v].worker;
        line[v].taken = taken;
        line[v].arrival = (Picoseconds)push[v].arrival;
    }
    free(push);
    free(arrival);
    free(version);
    return line;
}

// ---------------------------------------------------------------- what it shows

LogSeen log_look(const Log *log) {
    LogSeen seen = { 0, 0, 0 };
    size_t *done = (size_t *)host_alloc(log->workers * sizeof *done);      // of each worker, in all lines before
    for (size_t v = 0; v < log->workers * log->steps; v++) {
        const Served *l = &log->line[v];
        size_t *then = (size_t *)host_alloc(log->workers * sizeof *then), slowest = log->steps;    // at its answer
        for (size_t i = 0; i < l->taken; i++) then[log->line[i].worker]++;
        for (size_t w = 0; w < log->workers; w++) slowest = then[w] < slowest ? then[w] : slowest;
        if (then[l->worker] - slowest > seen.ahead) seen.ahead = then[l->worker] - slowest;
        if (v - l->taken > seen.lag) seen.lag = v - l->taken;
        free(then);
        if (++done[l->worker] < log->steps || seen.pushes > 0) continue;
        seen.pushes = (double)(v + 1) * 1e9 / (double)(l->arrival - log->begin);
    }
    free(done);
    return seen;
}

// A worker may begin step j when everybody has done at least j - s, and until its push nobody does more than j + s + 1:
// each of the n - 1 others comes at most 2 s + 1 times between.
size_t log_oldest(const Log *log) { return (log->workers - 1) * (2 * log->staleness + 1); }

void log_check(Run *run, const Log *log, const ServerSizes *z) {
    static const char *const name[] = { "log: whose push", "log: the version it was taken at", "log: when it arrived" };
    size_t lines = log->workers * log->steps;
    Served *want = predicted(log, z);
    double *a = (double *)host_alloc(lines * sizeof *a), *b = (double *)host_alloc(lines * sizeof *b);
    for (size_t column = 0; column < 3; column++) {
        for (size_t v = 0; v < lines; v++) {
            const Served *x = &log->line[v], *y = &want[v];
            a[v] = (double)(column == 0 ? x->worker : column == 1 ? x->taken : x->arrival);
            b[v] = (double)(column == 0 ? y->worker : column == 1 ? y->taken : y->arrival);
        }
        check_numbers(run, log->name, name[column], a, b, lines, 0);
    }
    LogSeen seen = log_look(log);
    check_true(run, log->name, "nobody begins more than s steps ahead", seen.ahead <= log->staleness);
    check_true(run, log->name, "no gradient is older than (n-1)(2s+1)", seen.lag <= log_oldest(log));
    check_true(run, log->name, "all servers have the same log", log->same);
    free(a);
    free(b);
    free(want);
}

void log_check_bound(Run *run, const Cluster *c, bool (*may_go_on)(const Cluster *, const size_t *, size_t, size_t)) {
    size_t *done = (size_t *)host_alloc(c->workers * sizeof *done);
    bool right = true;
    for (size_t slowest = 0; slowest < c->workers; slowest++) {
        for (size_t w = 0; w < c->workers; w++) done[w] = w == slowest ? 1 : 3;
        for (size_t w = 0; w < c->workers; w++)
            right = right && may_go_on(c, done, w, 2) && may_go_on(c, done, w, 1) == (w == slowest);
    }
    check_true(run, "bound", "the others wait, whichever worker is 2 steps behind", right);
    free(done);
}

void server_compare(Run *run, const Cluster *c, const char *what, Trajectory *got, Trajectory *want) {
    char line[96];
    snprintf(line, sizeof line, "%s: %s", got->adamw ? "AdamW" : "SGD", what);
    training_compare_tensors(run, what, got, want, 0);
    check_numbers(run, line, "loss", got->loss, want->loss, got->steps, 0);
    // Of a tensor that two servers share, each squares its part.
    check_numbers(run, line, "gradient norm", got->norm, want->norm, got->steps, c->servers > 1 ? LIMIT_ROUNDING : 0);
}
