// 05_parameter_server.c: runs trainings with servers. The synchronous training must have the bits
// of an all-reduce. An asynchronous training must equal, in every bit, one device that replays the
// server's log (server_log.c). The simulated clock orders the pushes, so the order is the same on
// every machine. The first worker takes --slow times as long per sequence as the other workers. A
// training on text shows the effect of staleness on the loss. tests/test_server.c predicts the log
// from sizes and speeds.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// STEPS is the number of steps of every worker.
enum { SEQUENCES = 7, STEPS = 6 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// Calls server_may_go_on() with each worker in turn as the slowest, 2 steps behind all other
// workers. With staleness 1 only the slowest worker may go on, with staleness 2 every worker. In
// the trainings the slowest worker is always the same one, so only this check tries the other
// workers.
static void check_bound(Run *run, const Cluster *c) {
    size_t done[SEQUENCES];
    bool right = true;
    for (size_t slowest = 0; slowest < c->workers; slowest++) {
        for (size_t w = 0; w < c->workers; w++) done[w] = w == slowest ? 1 : 3;
        for (size_t w = 0; w < c->workers; w++)
            right = right && server_may_go_on(c, done, w, 2) &&
                    server_may_go_on(c, done, w, 1) == (w == slowest);
    }
    check_true(run, "bound", "the others wait, whichever worker is 2 steps behind", right);
}

// Compares gradients, weights and losses, which must be equal in every bit. Frees both
// trajectories.
static void compare(Run *run, const char *what, Trajectory *got, Trajectory *want) {
    training_compare_tensors(run, what, got, want, 0);
    check_numbers(run, what, "loss", got->loss, want->loss, got->steps, 0);
    trajectory_free(got);
    trajectory_free(want);
}

static ServerRecord asynchronous(Run *run, const Cluster *c, const Training *t, size_t staleness) {
    ServerRecord record = { .log = server_log_new(c->workers, STEPS, staleness) };
    Trajectory got = server_train(run, c, t, &record);
    Trajectory replayed = server_log_replay(run, t, &record.log);
    compare(run, page_text(run, "%s = the log replayed", record.log.name), &got, &replayed);
    server_log_check(run, &record.log);
    return record;
}

// ---------------------------------------------------------------- the page

// log[0] is the log of the short training with a bound on staleness, log[1] that without a bound.
static void table(Run *run, const ServerSizes *z, const ServerLog *log[2], const char *bound,
                  const ServerLosses *loss) {
    // Rank 0, a server, has sent its weights STEPS + 1 times, the first time before step 0.
    const char *served = value_cell(run, cost_value(run, "sent") / (STEPS + 1), "bytes");
    const size_t pushed = config_parameters(z->model) * gradient_bytes(z->model);
    const char *worker = value_cell(run, (double)pushed, "bytes");
    Result rows[] = { { "a server sends, per step", "n S/k, weights", { served, served, served } },
                      { "a worker sends, per step",
                        "S, gradients; ring: 2(n-1)/n S",
                        { worker, worker, worker } },
                      { "oldest gradient, updates", "bound s: <= (n-1)(2s+1)", { 0 } },
                      { "pushes at equal time", NULL, { 0 } },
                      { "loss at equal time", "on the training text", { 0 } },
                      { "loss at equal work", NULL, { 0 } },
                      { 0 } };
    rows[3].formula = page_text(run, "after %.0f ms", loss->took / 2 * 1e-9);
    rows[5].formula = page_text(run, "after %d steps of each worker", SERVER_LONG);
    for (size_t rule = 0; rule < SERVER_RULES; rule++) {
        rows[2].cell[rule] =
            page_text(run, "=%zu", rule > 0 ? server_log_oldest(log[rule - 1]) : 0);
        rows[3].cell[rule] = page_text(run, "=%zu", loss->pushes[rule]);
        rows[4].cell[rule] = page_text(run, "=%.2f", loss->half[rule]);
        rows[5].cell[rule] = page_text(run, "=%.2f", loss->end[rule]);
    }
    say(run,
        "\nSynchronous: a server waits for all pushes, then updates once. Otherwise every push is "
        "an update.\nn = %zu worker%s, k = %zu server%s. S: bytes of all weights. Each worker has "
        "its own link. The last three\nrows: another model, on a text (means of %d seeds). Equal "
        "time: half the synchronous time.\n",
        z->workers, z->workers > 1 ? "s" : "", z->servers, z->servers > 1 ? "s" : "", SERVER_SEEDS);
    results(run, (const char *const[]){ "synchronous", bound, "no bound", NULL }, rows);
}

static const char *lower_or_higher(double a, double b) {
    const double seen = 0.05; // at equal work, seeds 1 to 3 alone differ by 0.12, 0.01 and 0.01
    return fabs(a - b) < seen ? "about the same" : a < b ? "lower" : "higher";
}

// `staleness` is the bound of loss->pushes[1].
static void answer(Run *run, const ServerSizes *z, size_t staleness, const ServerLosses *loss) {
    const size_t Psi = config_parameters(z->model), e = gradient_bytes(z->model);
    const double half = loss->half[SERVER_RULES - 1], end = loss->end[SERVER_RULES - 1];
    const size_t waiting = loss->pushes[0], no_bound = loss->pushes[SERVER_RULES - 1];
    const char *sent = value_text(run, cost_value(run, "sent") / (STEPS + 1), "bytes");
    const char *pushes = page_text(run, "as many pushes arrive in equal time (%zu)", waiting);
    if (no_bound > waiting)
        pushes = page_text(run, "%zu pushes arrive in equal time, not %zu (%zu with staleness %zu)",
                           no_bound, waiting, loss->pushes[1], staleness);
    if (z->workers == 1)
        say_answer(run, "A server sends %s per step and receives as much. One worker never waits.",
                   sent);
    else
        say_answer(
            run,
            "A server sends %s per step and receives as much. In a ring all-reduce a worker sends "
            "%s. If no worker waits, %s. The loss is then %s (%.2f against %.2f), although "
            "gradients use older weights. At equal work the loss is %s (%.2f against %.2f).",
            sent, value_text(run, ring_bytes(ALL_REDUCE_PASSES, z->workers, Psi, e), "bytes"),
            pushes, lower_or_higher(half, loss->half[0]), half, loss->half[0],
            lower_or_higher(end, loss->end[0]), end, loss->end[0]);
}

static void ending(Run *run, const ServerSizes *z, const ServerRecord *no_bound) {
    const char *waiting = cost_text(run, "time.links");
    const char *took = value_text(run, (double)no_bound->seen.last.step, "ps");
    took = strcmp(took, waiting) ? page_text(run, "%s, not %s", took, waiting)
                                 : page_text(run, "%s with and without waiting", took);
    say_cost(run,
             "gradients up to %zu updates old. The slowest, rank %zu, saves no time: %d steps take "
             "%s. On one shared link %d synchronous steps take %s.",
             server_log_oldest(&no_bound->log), z->servers, STEPS, took, STEPS,
             cost_text(run, "time.one-port"));
    say_use_when(run, "speeds change, workers come and go, or workers touch few rows of a large "
                      "table. For dense models use an all-reduce.");
}

static void parameter_server(Run *run) {
    REQUIRE(clock_config()->simulated,
            "05_parameter_server needs the simulated clock: leave --clock out");
    require_one_link(run);
    Cluster c = cluster_new(run->world, option_size(run, "servers"), STEPS);
    size_t slow = option_size(run, "slow"), s = option_size(run, "staleness");
    REQUIRE(c.workers <= SEQUENCES,
            "a step has %d sequences, and each of %zu workers needs one: start at most %zu "
            "ranks",
            SEQUENCES, c.workers, c.servers + SEQUENCES);
    REQUIRE(slow >= 1 && slow <= 1000, "--slow must be from 1 to 1000");
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    const ServerSizes z = { &t.model, SEQUENCES, STEPS, c.servers, c.workers, slow };
    if (run->world->rank == c.servers) clock_set_speed(1 / (double)slow);
    check_bound(run, &c);

    say(run,
        "A worker pushes its gradient to %s and pulls new weights. Staleness s: a worker may\n"
        "begin a step if it is at most s steps ahead of the slowest. Rank %zu takes %zu time%s as "
        "long per\nsequence, and has %zu of the %d sequences. Messages: > weights (in a server's "
        "row), < gradients.\n",
        c.servers > 1 ? "the servers" : "the server", c.servers, slow, slow > 1 ? "s" : "",
        part_size(SEQUENCES, c.workers, 0), SEQUENCES);
    const char *servers = "rank 0 is the server";
    if (c.servers > 1) servers = page_text(run, "%zu ranks are servers", c.servers);
    ServerRecord no_bound = asynchronous(run, &c, &t, STEPS);
    picture_show(run,
                 page_text(run, "%d asynchronous steps of each worker, no bound; %s", STEPS,
                           servers),
                 PICTURE_NO_FILES);
    ServerRecord bound = asynchronous(run, &c, &t, s);
    picture_show(run,
                 page_text(run, "%d asynchronous steps of each worker, %s; %s", STEPS,
                           bound.log.name, servers),
                 PICTURE_CHART | PICTURE_DETAIL);

    t.optimizer = adamw(0.01); // so that the memory of its state is measured
    ServerRecord sync = { 0 }, port = { .one_port = true };
    Trajectory got = server_train(run, &c, &t, &sync),
               unsplit = training_unsplit(run, &t, c.workers);
    compare(run, "synchronous = unsplit in the workers' order", &got, &unsplit);
    got = server_train(run, &c, &t, &port);
    trajectory_free(&got);
    server_costs(run, &z, &sync.seen, port.seen.last.step);
    const ServerLosses loss = server_losses(run, &c, s);
    const ServerLog *logs[] = { &bound.log, &no_bound.log };
    table(run, &z, logs, page_text(run, "staleness %zu", s), &loss);
    answer(run, &z, s, &loss);
    ending(run, &z, &no_bound);
    free(bound.log.line);
    free(no_bound.log.line);
    data_free(&t.data);
}

static const Option options[] = {
    { "servers", "N", "1", "ranks that hold the weights, a piece each; the others are workers" },
    { "staleness", "N", "1",
      "a worker begins a step if it is at most N steps ahead of the slowest" },
    { "slow", "N", "2", "the first worker takes N times as long per sequence as the others" },
    { "clock", "simulated", "simulated", "the order of arrival is the simulated clock's" },
    { "link", "NAME[,NAME]", "slow", NULL },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    ONLY_STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(parameter_server, options);
