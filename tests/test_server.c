// test_server.c: tests forms of the parameter server of 01.05 that the lesson does not show: the
// smallest and the largest staleness, and AdamW without a bound. An asynchronous server's log must
// be the log that follows from sizes and speeds.
//
// ranks: 4
// level: core
// question: How does an asynchronous server differ from a synchronous one?
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

enum { SEQUENCES = 7, STEPS = 6 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// ---------------------------------------------------------------- the predicted log

// A Push has the number step * workers + worker, because its place in the log is not known yet.
typedef struct {
    size_t number;
    double arrival;
} Push;
static int by_arrival(const void *a, const void *b) {
    const Push *x = a, *y = b;
    if (x->arrival != y->arrival) return x->arrival < y->arrival ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

// The server answers a push of step j when its weights contain this push, and every worker's push
// of step j - staleness. Returns the largest value[push] among these pushes.
static double answered(const double *value, size_t push, size_t n, size_t staleness) {
    size_t step = push / n;
    double last = value[push];
    for (size_t x = 0; x < n && step >= staleness; x++)
        last = fmax(last, value[(step - staleness) * n + x]);
    return last;
}

// Returns the lines of the log that follow from the times alone. A worker computes its next push
// once it has the answer to its previous push. So a push arrives at the time of this answer, plus
// the answer's message, plus the worker's computation, plus the push's message.
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

static void check_log(Run *run, const Cluster *c, const Training *t, size_t staleness,
                      const ServerSizes *z) {
    static const char *const name[] = { "log: whose push", "log: the version it was taken at",
                                        "log: when it arrived" };
    ServerRecord record = { .log = server_log_new(c->workers, STEPS, staleness) };
    Trajectory got = server_train(run, c, t, &record);
    const ServerLog *log = &record.log;
    const size_t lines = log->workers * log->steps;
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
    free(a);
    free(b);
    free(want);
    free(record.log.line);
    trajectory_free(&got);
}

// ---------------------------------------------------------------- staleness

// Adds the workers' parts of the loss of each step into loss[step].
static void losses_by_step(const Trajectory *got, const ServerLog *log, double loss[STEPS]) {
    size_t *done = host_alloc(log->workers * sizeof *done);
    for (size_t j = 0; j < STEPS; j++) loss[j] = 0;
    for (size_t v = 0; v < got->steps; v++) {
        const size_t step = done[log->line[v].worker]++;
        loss[step] += got->loss[v];
    }
    free(done);
}

// With staleness 0 all workers of a round compute their gradients at the same version. So SGD's
// updates of that round add up to the synchronous update. A larger staleness mixes versions.
static void check_staleness(Run *run, const Cluster *c, const Training *t, const Trajectory *sync,
                            size_t staleness) {
    ServerRecord record = { .log = server_log_new(c->workers, STEPS, staleness) };
    Trajectory got = server_train(run, c, t, &record);
    double loss[STEPS], largest = 0;
    losses_by_step(&got, &record.log, loss);
    for (size_t j = 0; j < STEPS; j++) largest = fmax(largest, fabs(loss[j] / sync->loss[j] - 1));
    if (staleness == 0 || c->workers == 1)
        check_numbers(run, record.log.name, "the losses of the synchronous training", loss,
                      sync->loss, STEPS, LIMIT_ROUNDING);
    else check_true(run, record.log.name, "another training", largest > 1e-4);
    trajectory_free(&got);
    free(record.log.line);
}

static void server(Run *run) {
    Cluster c = cluster_new(run->world, option_size(run, "servers"), STEPS);
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    const size_t slow = option_size(run, "slow"), staleness = option_size(run, "staleness");
    const ServerSizes z = { &t.model, SEQUENCES, STEPS, c.servers, c.workers, slow };
    if (run->world->rank == c.servers) clock_set_speed(1 / (double)slow);
    check_log(run, &c, &t, STEPS, &z);
    check_log(run, &c, &t, staleness < STEPS ? staleness : STEPS, &z);
    ServerRecord plain = { 0 };
    Trajectory sync = server_train(run, &c, &t, &plain);
    check_staleness(run, &c, &t, &sync, 0);
    check_staleness(run, &c, &t, &sync, STEPS);

    t.optimizer = adamw(0.01);
    ServerRecord record = { .log = server_log_new(c.workers, STEPS, STEPS) };
    Trajectory got = server_train(run, &c, &t, &record);
    Trajectory replayed = server_log_replay(run, &t, &record.log);
    training_compare_tensors(run, "no bound = the log replayed", &got, &replayed, 0);
    trajectory_free(&sync);
    trajectory_free(&got);
    trajectory_free(&replayed);
    free(record.log.line);
    data_free(&t.data);
}

static const Option options[] = { { "servers", "N", "1", "ranks that hold the weights" },
                                  { "staleness", "N", "1", "the bound of the second log" },
                                  { "slow", "N", "2", "the first worker's time, in others'" },
                                  { "link", "NAME[,NAME]", "slow", NULL },
                                  ONLY_STORAGE_OPTION,
                                  { 0 } };
EXPERIMENT(server, options);
