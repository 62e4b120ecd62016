// test_server.c: tests forms of the parameter server of 01.05 that the lesson does not show: the
// two ends of staleness, and AdamW without a bound. tests/server.t runs this program.
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

// Compares an asynchronous training with the synchronous one. With staleness 0 all workers of a
// round compute their gradients at the same version. So SGD's updates of that round add up to the
// synchronous update. A larger staleness mixes versions.
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
    if (run->world->rank == c.servers) clock_set_speed(0.5);
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
                                  { "link", "NAME[,NAME]", "slow", NULL },
                                  ONLY_STORAGE_OPTION,
                                  { 0 } };
EXPERIMENT(server, options);
