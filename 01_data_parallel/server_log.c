// server_log.c: see server_log.h.
#include "01_data_parallel/server_log.h"
#include "01_data_parallel/parameter_server.h"
#include <math.h>
#include <stdlib.h>

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

void log_predict(Served *log, size_t workers, size_t steps, size_t staleness, Picoseconds begin,
                 const double *computing, double message) {
    size_t n = workers, lines = n * steps;
    Push *push = (Push *)host_alloc(lines * sizeof *push);
    double *arrival = (double *)host_alloc(lines * sizeof *arrival);
    double *version = (double *)host_alloc(lines * sizeof *version);       // that each push made
    for (size_t i = 0; i < lines; i++) {
        double answer = i < n ? (double)begin : answered(arrival, i - n, n, staleness);
        arrival[i] = answer + message + computing[i % n] + message;
        push[i] = (Push){ i, i % n, arrival[i] };
    }
    qsort(push, lines, sizeof *push, by_arrival);
    for (size_t v = 0; v < lines; v++) version[push[v].number] = (double)(v + 1);
    for (size_t v = 0; v < lines; v++) {
        size_t i = push[v].number;
        size_t taken = i < n ? 0 : (size_t)answered(version, i - n, n, staleness);
        log[v] = (Served){ push[v].worker, taken, (Picoseconds)push[v].arrival };
    }
    free(push);
    free(arrival);
    free(version);
}

void log_check(Run *run, const char *what, const Served *got, const Served *want, size_t lines) {
    static const char *const name[] = { "log: whose push", "log: the version it was taken at", "log: when it arrived" };
    double *a = (double *)host_alloc(lines * sizeof *a), *b = (double *)host_alloc(lines * sizeof *b);
    for (size_t column = 0; column < 3; column++) {
        for (size_t v = 0; v < lines; v++) {
            const Served *x = &got[v], *y = &want[v];
            a[v] = (double)(column == 0 ? x->worker : column == 1 ? x->taken : x->arrival);
            b[v] = (double)(column == 0 ? y->worker : column == 1 ? y->taken : y->arrival);
        }
        check_numbers(run, what, name[column], a, b, lines, 0);
    }
    free(a);
    free(b);
}

LogSeen log_look(const Served *log, size_t workers, size_t steps, Picoseconds begin) {
    LogSeen seen = { 0, 0, 0 };
    size_t *done = (size_t *)host_alloc(workers * sizeof *done);           // of each worker, in all lines before
    for (size_t v = 0; v < workers * steps; v++) {
        size_t *then = (size_t *)host_alloc(workers * sizeof *then), slowest = steps;      // when it was answered
        for (size_t i = 0; i < log[v].taken; i++) then[log[i].worker]++;
        for (size_t w = 0; w < workers; w++) slowest = then[w] < slowest ? then[w] : slowest;
        if (then[log[v].worker] - slowest > seen.ahead) seen.ahead = then[log[v].worker] - slowest;
        if (v - log[v].taken > seen.lag) seen.lag = v - log[v].taken;
        free(then);
        if (++done[log[v].worker] < steps || seen.pushes > 0) continue;
        seen.pushes = (double)(v + 1) * 1e9 / (double)(log[v].arrival - begin);
    }
    free(done);
    return seen;
}

bool log_tell(Run *run, Served *log, size_t lines, bool mine) {
    Served *here = (Served *)host_alloc(lines * sizeof *here);
    bool same = true;
    for (size_t v = 0; v < lines; v++) here[v] = log[v];
    side_broadcast(log, lines * sizeof *log);
    for (size_t v = 0; v < lines && mine && run->world->rank > 0; v++)
        same = same && here[v].worker == log[v].worker && here[v].taken == log[v].taken;
    free(here);
    return same;
}

Course log_replay(Run *run, const Training *t, size_t workers, const Served *log) {
    Course c = course_new(run, t);
    if (run->world->rank > 0) return c;
    ledger_pause();
    Model *m = model_describe(&t->model, model_layers(&t->model));
    Optimizer o = t->optimizer;
    Arena a = arena(MEM_REFERENCE);
    size_t *done = (size_t *)host_alloc(workers * sizeof *done);
    model_allocate(m);
    optimizer_allocate(&o, m);
    Tensor version = tensor_new(&a, t->steps + 1, m->size);
    tensor_copy(tensor_row_range(version, 0, 1), m->w);
    for (size_t v = 0; v < t->steps; v++) {
        size_t w = log[v].worker;
        tensor_copy(m->w, tensor_row_range(version, log[v].taken, log[v].taken + 1));
        double loss = worker_gradient(m, t, workers, w, done[w]++);
        tensor_copy(m->w, tensor_row_range(version, v, v + 1));
        double norm = model_grad_norm(m, NULL);
        optimizer_step(&o, m, 1);
        tensor_copy(tensor_row_range(version, v + 1, v + 2), m->w);
        course_record(&c, v, m, loss, norm);
    }
    model_free(m);
    free(done);
    arena_free(&a);
    ledger_resume();
    return c;
}
