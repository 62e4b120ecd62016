// 05_parameter_server.c: trainings with servers. The synchronous one must have the bits of an
// all-reduce. An asynchronous one must equal, in every bit, one device that replays the server's
// log (server_log.c). The log must be the one that follows from sizes and speeds. The simulated
// clock orders the pushes, so the order is the same on every machine. The first worker takes --slow
// times as long as the other workers. A training on text shows what staleness does to the loss.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// STEPS is the number of steps of every worker, in the synchronous and the asynchronous form.
enum { SEQUENCES = 7, STEPS = 6 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// Calls server_may_go_on() with each worker in turn as the slowest, 2 steps behind all other
// workers. With staleness 1 only the slowest worker may go on, with staleness 2 every worker. The
// trainings do not check this, because their slowest worker is always the same one.
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

// Gradients, weights, losses and norms must be equal in every bit. With several servers the norms
// may differ by rounding, because each server squares its own part of a tensor.
static void compare(Run *run, const Cluster *c, const char *what, Trajectory *got,
                    Trajectory *want) {
    char line[96];
    snprintf(line, sizeof line, "%s: %s", got->adamw ? "AdamW" : "SGD", what);
    training_compare_tensors(run, what, got, want, 0);
    check_numbers(run, line, "loss", got->loss, want->loss, got->steps, 0);
    check_numbers(run, line, "gradient norm", got->norm, want->norm, got->steps,
                  c->servers > 1 ? LIMIT_ROUNDING : 0);
}

static ServerRecord synchronous(Run *run, const Cluster *c, const Training *t, bool one_port) {
    ServerRecord record = { .one_port = one_port };
    Trajectory got = server_train(run, c, t, &record);
    Trajectory whole = training_unsplit(run, t, 1), ordered = training_unsplit(run, t, c->workers);
    if (!one_port)
        training_compare(run, "synchronous = unsplit", &got, &whole, rounding_limit(run));
    compare(run, c, one_port ? "one port = workers in order" : "synchronous = workers in order",
            &got, &ordered);
    trajectory_free(&got);
    trajectory_free(&whole);
    trajectory_free(&ordered);
    return record;
}

static ServerRecord asynchronous(Run *run, const Cluster *c, const Training *t, size_t staleness,
                                 const ServerSizes *z) {
    ServerRecord record = { .log = server_log_new(c->workers, STEPS, staleness) };
    char line[96];
    Trajectory got = server_train(run, c, t, &record);
    Trajectory replayed = server_log_replay(run, t, &record.log);
    snprintf(line, sizeof line, "%s = the log replayed", record.log.name);
    compare(run, c, line, &got, &replayed);
    if (!got.adamw) server_log_check(run, &record.log, z); // the log under AdamW is the same
    trajectory_free(&got);
    trajectory_free(&replayed);
    return record;
}

// -------------------------------------------------------- what staleness does to the loss, on text

// LONG: steps of every worker. LAST: number of last steps that are averaged. RULES: synchronous,
// with a bound, without one.
enum { LONG = 40, LAST = 10, RULES = 3 };
// Losses in nats per byte. half: mean of the last LAST pushes per worker that had arrived at a
// given time. end: mean of the last LAST steps of every worker; these have the same batches in
// every form.
typedef struct {
    double half, end;
} Losses;

// A push has its shard's part of the loss. `own` turns this part into the mean over the shard's
// tokens.
static Losses losses_of(const Trajectory *got, const Cluster *c, const ServerLog *log, double took,
                        double moment) {
    Losses mean = { 0 };
    size_t n = log->line ? c->workers : 1, arrived = 0;
    size_t *done = host_alloc(n * sizeof *done);
    for (size_t v = 0; v < got->steps; v++) {
        double at =
            log->line ? (double)(log->line[v].arrival - log->begin) : took * (double)(v + 1) / LONG;
        arrived += at <= moment;
    }
    for (size_t v = 0; v < got->steps; v++) {
        size_t w = log->line ? log->line[v].worker : 0;
        double own = log->line ? (double)TEXT_SEQUENCES /
                                     (double)range_size(shard_range(TEXT_SEQUENCES, n, w))
                               : 1;
        if (v < arrived && v + LAST * n >= arrived)
            mean.half += got->loss[v] * own / (double)(LAST * n);
        if (done[w] >= LONG - LAST) mean.end += got->loss[v] / LAST;
        done[w]++;
    }
    free(done);
    return mean;
}

// Trains on text. Returns the time at half of the synchronous training.
static double train_on_text(Run *run, const Cluster *c, size_t staleness, Losses loss[RULES]) {
    Training text = text_training(run, LONG, 0.15);
    Cluster cluster = *c;
    double moment = 0;
    cluster.steps = LONG;
    for (size_t rule = 0; rule < RULES; rule++) {
        ServerRecord record = { 0 };
        if (rule > 0) record.log = server_log_new(c->workers, LONG, rule == 1 ? staleness : LONG);
        Trajectory got = server_train(run, &cluster, &text, &record);
        double took = (double)record.seen.last.step;
        if (rule == 0) moment = took / 2;
        loss[rule] = losses_of(&got, c, &record.log, took, moment);
        server_record_free(&record);
        trajectory_free(&got);
    }
    data_free(&text.data);
    return moment;
}

// ---------------------------------------------------------------- the page

typedef char Cell[64];

// log: the logs with and without a bound on staleness. took: the time of the synchronous training.
// moment: the time at which losses are compared. served, worker: bytes per step.
static void table(Run *run, const ServerSizes *z, const ServerLog *log[2], Picoseconds took,
                  const Losses loss[RULES], double moment, const Cell served, const Cell worker) {
    Cell pushes[RULES], behind[RULES], half[RULES], end[RULES], what[2];
    for (size_t rule = 0; rule < RULES; rule++) {
        ServerLogSeen seen = { .pushes = (double)(z->steps * z->workers) * 1e9 / (double)took };
        if (rule > 0) seen = server_log_look(log[rule - 1]);
        snprintf(pushes[rule], sizeof(Cell), "=%.3f", seen.pushes);
        snprintf(behind[rule], sizeof(Cell), "=%zu", seen.lag);
        snprintf(half[rule], sizeof(Cell), "=%.2f", loss[rule].half);
        snprintf(end[rule], sizeof(Cell), "=%.2f", loss[rule].end);
    }
    snprintf(what[0], sizeof(Cell), "after %.0f ms", moment * 1e-9);
    snprintf(what[1], sizeof(Cell), "after %d steps of each worker", LONG);
    results(run, (const char *const[]){ "synchronous", log[0]->name, "no bound", NULL },
            (const Result[]){
                { "a server sends, per step", "n S/k, weights", { served, served, served } },
                { "a worker sends, per step", "S, gradients", { worker, worker, worker } },
                { "pushes per ms, all workers",
                  "synchronous: n/(t + 2c)",
                  { pushes[0], pushes[1], pushes[2] } },
                { "updates from pull to push",
                  "0; staleness s: <= (n-1)(2s+1)",
                  { behind[0], behind[1], behind[2] } },
                { "loss at equal time", what[0], { half[0], half[1], half[2] } },
                { "loss at equal work", what[1], { end[0], end[1], end[2] } },
                { 0 } });
    say(run,
        "  n = %zu worker%s, k = %zu server%s, S: the bytes of all weights. t: computing of the "
        "slowest worker.\n  c: one message. The losses are those of a small model on a text.\n",
        z->workers, z->workers > 1 ? "s" : "", z->servers, z->servers > 1 ? "s" : "");
}

static const char *lower_or_higher(double a, double b) {
    const double seen = 0.005; // losses are printed in hundredths
    return fabs(a - b) < seen ? "the same" : a < b ? "lower" : "higher";
}

// age: the most updates between a pull and its push without a bound. took: the time of the
// synchronous training. served: bytes that a server sends in a step.
static void answer(Run *run, const ServerSizes *z, const char *served, size_t age,
                   const Losses loss[RULES], Picoseconds took) {
    Cell ring, links, port;
    const Losses sync = loss[0], none = loss[RULES - 1];
    page_value(ring, sizeof ring, cost_value(run, "sent.ring"), "bytes");
    page_value(links, sizeof links, (double)took / STEPS, "ps");
    page_value(port, sizeof port, cost_value(run, "time.one-port") / STEPS, "ps");
    if (z->workers == 1)
        say_answer(run,
                   "A server sends %s per step. One worker never waits for another, so both forms "
                   "are the same training (loss %.2f).",
                   served, sync.end);
    else
        say_answer(run,
                   "A server sends %s per step; in an all-reduce of the workers each sends %s. If "
                   "no worker waits, the loss is %s after equal time (%.2f against %.2f) and %s "
                   "after equal work (%.2f against %.2f).",
                   served, ring, lower_or_higher(none.half, sync.half), none.half, sync.half,
                   lower_or_higher(none.end, sync.end), none.end, sync.end);
    say_cost(run,
             "up to %zu updates come between a pull and its push. All bytes pass the servers. The "
             "picture lets a server send and receive several messages at once. If it handles one "
             "at a time, a synchronous step takes %s instead of %s.",
             age, port, links);
    say_use_when(run, "workers differ in speed, come and go, or touch few rows of a large table. "
                      "For dense models use an all-reduce.");
}

static void show(Run *run, const Cluster *c, const Training *t, ServerLog log, int what) {
    ServerRecord record = { .log = log };
    char title[96], servers[32] = "rank 0 is the server";
    if (c->servers > 1) snprintf(servers, sizeof servers, "%zu ranks are servers", c->servers);
    if (log.line)
        snprintf(title, sizeof title, "%zu asynchronous steps, %s; %s", c->steps, log.name,
                 servers);
    else snprintf(title, sizeof title, "%zu synchronous steps; %s", c->steps, servers);
    Trajectory drawn = server_train(run, c, t, &record);
    picture_show(run, title, what);
    trajectory_free(&drawn);
    server_record_free(&record);
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
    if (s > STEPS) s = STEPS; // no worker can be further ahead
    REQUIRE(slow >= 1 && slow <= 1000, "--slow must be from 1 to 1000");
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    const ServerSizes z = { &t.model, SEQUENCES, STEPS, c.servers, c.workers, slow };
    if (run->world->rank == c.servers) clock_set_speed(1 / (double)slow);
    const size_t bound[] = { 0, s, STEPS };
    ServerRecord sync = synchronous(run, &c, &t, false), async[3];
    ServerRecord port = synchronous(run, &c, &t, true);
    for (size_t i = 0; i < 3; i++) async[i] = asynchronous(run, &c, &t, bound[i], &z);
    check_bound(run, &c);
    // With staleness 0 all workers of a round compute their gradients at the same version. So SGD's
    // updates of that round add up to the synchronous update. A larger staleness mixes versions.
    check_close(run, "SGD: staleness 0 = synchronous, at the end", async[0].last, sync.last,
                rounding_limit(run));
    if (c.workers == 1)
        check_equal(run, "one worker: always synchronous", async[2].last, sync.last);
    else check_differs(run, "SGD: no bound is another training", async[2].last, sync.last, 1e-4);
    t.optimizer = adamw(0.01);
    ServerRecord adam = synchronous(run, &c, &t, false);
    ServerRecord adam_async = asynchronous(run, &c, &t, s, &z);

    show(run, &c, &t, (ServerLog){ 0 }, PICTURE_NO_FILES | PICTURE_DETAIL);
    say(run,
        "A worker pushes its gradient to %s and pulls new weights. Staleness s: no worker is\n"
        "more than s steps ahead of the slowest. Rank %zu takes %zu time%s as long per sequence "
        "(--slow).\nA server's row shows its messages: > is weights to a worker. In a link row, < "
        "is a gradient.\n",
        c.servers > 1 ? "the servers" : "the server", c.servers, slow, slow > 1 ? "s" : "");
    show(run, &c, &t, server_log_new(c.workers, STEPS, STEPS), PICTURE_NO_FILES);
    show(run, &c, &t, server_log_new(c.workers, STEPS, s), PICTURE_CHART | PICTURE_DETAIL);
    server_costs(run, &z, &adam.seen, port.seen.last.step);
    Losses loss[RULES];
    const Picoseconds took = sync.seen.last.step;
    const double moment = train_on_text(run, &c, s, loss);
    Cell served = "=", worker = "="; // rank 0, a server, has sent the weights once more
    page_value(served + 1, sizeof served - 1, adam.seen.sent / (STEPS + 1), "bytes");
    page_value(worker + 1, sizeof worker - 1,
               (double)(config_parameters(z.model) * gradient_bytes(z.model)), "bytes");
    table(run, &z, (const ServerLog *[]){ &async[1].log, &async[2].log }, took, loss, moment,
          served, worker);
    answer(run, &z, served + 1, server_log_look(&async[2].log).lag, loss, took);
    ServerRecord *all[] = { &sync, &port, &async[0], &async[1], &async[2], &adam, &adam_async };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) server_record_free(all[i]);
    data_free(&t.data);
}

static const Option options[] = {
    { "servers", "N", "1", "ranks that hold the weights, a piece each; the others are workers" },
    { "staleness", "N", "1", "steps that a worker may be ahead of the slowest" },
    { "slow", "N", "2", "the first worker takes N times as long as the others" },
    { "clock", "simulated", "simulated", "the order of arrival is the simulated clock's" },
    { "link", "NAME[,NAME]", "slow", NULL },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    ONLY_STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(parameter_server, options);
