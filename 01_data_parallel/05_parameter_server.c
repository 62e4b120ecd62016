// ranks: 4
// level: extra
// question: What if the weights live on a server: what does its link carry, and what if nobody waits for the slowest?
// vary: SEQUENCES 5..11, STEPS 4..7, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// The first --servers ranks are servers, each with a piece of the weights and of the optimizer's state; the others are
// workers with a part of the sequences of every step. A worker pulls the weights, finds its gradient and pushes it.
//     synchronous     a server waits for everybody's push, adds them in the workers' order, and updates once: the same
//                     bits as an all-reduce
//     asynchronous    a server updates after every push, and answers it at once with what the weights are then, unless
//                     the worker is more than --staleness steps ahead of the slowest (stale synchronous parallel). A
//                     gradient then belongs to weights that are some versions old. That is no longer the unsplit
//                     training; it equals, to the last bit, one device that replays the server's log.
// Pushes are served in the order of their arrival by the simulated clock, on every machine. The first worker takes
// --slow times as long as the others. Left out: workers and servers that get lost.
#include "01_data_parallel/parameter_server.h"
#include "01_data_parallel/server_costs.h"
#include "01_data_parallel/server_log.h"
#include "common/model/formulas.h"
#include "common/lesson/picture.h"
#include <stdio.h>
#include <stdlib.h>

// ---------------------------------------------------------------- data and sizes

enum { SEQUENCES = 7, STEPS = 6 };             // STEPS of every worker; it has the same sequences under both rules
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

typedef struct {
    Log log;                                   // of server 0, on all ranks; without lines when synchronous
    bool one_port;                             // all messages of a server go through one link
    Snapshot *last;                            // the weights at the end
    Timing timing;
    size_t sent, calls, parameters, gradients, optimizer, buffers;
} Record;

// ---------------------------------------------------------------- a worker

static void work(const Cluster *c, const Training *t, bool asynchronous, Model *m, double *loss, Trajectory *got) {
    worker_pull(c, m);
    for (size_t step = 0; step < STEPS; step++) {
        loss[step] = worker_gradient(m, t, c->workers, cluster_worker(c), step);
        worker_push(c, m);
        worker_pull(c, m);
        if (asynchronous) continue;
        char label[32];                        // so that a check sees whether all have the server's bits
        snprintf(label, sizeof label, " of step %zu", step);
        snapshot_label(got->weights, label);
        model_snapshot_weights(m, got->weights);
    }
}

// ---------------------------------------------------------------- a server

// The gradient that has just been applied, and the weights that came of it.
static void write_down(Trajectory *got, size_t version, const Model *m, double *squares) {
    trajectory_record(got, version, m, 0, 0);
    model_grad_squares(m, squares + version * config_tensors(&m->config));
}

static void serve_synchronously(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Trajectory *got, double *squares) {
    for (size_t w = 0; w < c->workers; w++) server_answer(c, m, w);    // version 0
    for (size_t step = 0; step < STEPS; step++) {
        for (size_t w = 0; w < c->workers; w++) server_expect(c, in, w);
        server_update_all(c, m, o, in);
        for (size_t w = 0; w < c->workers; w++) server_answer(c, m, w);
        write_down(got, step, m, squares);
    }
}

static void serve_as_they_come(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Log *log, Trajectory *got,
                               double *squares) {
    size_t *done = host_alloc(c->workers * sizeof *done), *taken = host_alloc(c->workers * sizeof *taken);
    bool *waits = host_alloc(c->workers * sizeof *waits);              // for an answer
    for (size_t w = 0; w < c->workers; w++) {
        server_answer(c, m, w);
        server_expect(c, in, w);
    }
    for (size_t version = 0; version < c->workers * STEPS; version++) {
        size_t next = server_next(c, in);
        log->line[version] = (Served){ next, taken[next], comm_arrival(in->coming[next]) };
        server_take(in, next);
        tensor_copy(m->g, in->piece[next]);
        optimizer_step(o, m, 1);
        done[next]++;
        waits[next] = true;
        write_down(got, version, m, squares);
        // This push may have been the one for which others waited.
        for (size_t w = 0; w < c->workers; w++) {
            if (!waits[w] || !server_lets_go(c, done, w, log->staleness)) continue;
            server_answer(c, m, w);
            waits[w] = false;
            taken[w] = version + 1;
            if (done[w] < STEPS) server_expect(c, in, w);
        }
    }
    free(done);
    free(taken);
    free(waits);
}

// ---------------------------------------------------------------- training

static Trajectory train(Run *run, const Cluster *c, const Training *t, Record *is) {
    Training updates = *t;
    if (is->log.line) updates.steps *= c->workers;             // one for every push
    Trajectory got = trajectory_new(run, &updates);
    Optimizer o = t->optimizer;
    Model *m = cluster_model(c, &t->model);
    double loss[STEPS], *squares = host_alloc(updates.steps * config_tensors(&tiny) * sizeof *squares);
    is->last = snapshot_new(run);
    comm_all_reduce_doubles(c->world, squares, 1);             // all begin at the same moment
    comm_ledger_reset(c->world);
    is->log.begin = clock_now();
    picture_begin(run, MEM_ACTIVATIONS);
    clock_set_one_port(is->one_port && cluster_serves(c));
    if (cluster_serves(c)) {
        Inbox in = inbox_new(c, m);
        optimizer_allocate(&o, m);
        if (is->log.line) serve_as_they_come(c, m, &o, &in, &is->log, &got, squares);
        else serve_synchronously(c, m, &o, &in, &got, squares);
        is->buffers = memory_now(MEM_COMMUNICATION);
        model_snapshot_weights(m, is->last);
        inbox_free(&in);
    } else {
        work(c, t, is->log.line, m, loss, &got);
    }
    clock_set_one_port(false);
    picture_end(run);
    is->timing = picture_timing(run);
    is->sent = comm_bytes_sent(c->world);
    is->calls = c->world->ledger[COMM_SEND].calls;
    is->parameters = memory_now(MEM_PARAMETERS);
    is->gradients = memory_now(MEM_GRADIENTS);
    is->optimizer = memory_now(MEM_OPTIMIZER);
    log_tell(&is->log, c, &got, loss, squares, config_tensors(&tiny));
    model_free(m);
    free(squares);
    return got;
}

static void forget(Record *is) {
    log_free(&is->log);
    snapshot_free(is->last);
}

// ---------------------------------------------------------------- the predictions

// z: for the times, which server_costs.c works out.
static void predict(Run *run, const Cluster *c, const ServerSizes *z, const Record *is, const Record *port,
                    double ring_sent) {
    size_t V = tiny.vocab, C = tiny.width, Psi = config_parameters(&tiny), e = sizeof(real);
    size_t n = z->workers, k = z->servers;
    bool serves = cluster_serves(c);
    size_t piece = serves ? part_size(Psi, k, c->world->rank) : 0;
    double busy = 0;
    for (size_t w = 0; w < n; w++) busy += STEPS * server_computing(z, w);
    size_t pushes = STEPS * Psi * e, answers = (STEPS + 1) * n * piece * e;      // the first answer is version 0
    cost(run, "sent: S a push, or n S/k of answers, a step", "bytes", (double)(serves ? answers : pushes),
         (double)is->sent);
    cost(run, "messages", "calls", (double)(serves ? (STEPS + 1) * n : STEPS * k), (double)is->calls);
    cost(run, "sent, one step in a ring of the workers", "bytes", serves ? 0 : ring_bytes(ALL_REDUCE_PASSES, n, Psi, e),
         ring_sent);
    cost(run, "parameters (server: its piece)", "bytes", (double)((serves ? piece : Psi) * e), (double)is->parameters);
    cost(run, "gradients (worker: wte twice)", "bytes", (double)((serves ? piece : Psi + V * C) * e),
         (double)is->gradients);
    cost(run, "AdamW's m and v: on servers only", "bytes", (double)(2 * piece * e), (double)is->optimizer);
    cost(run, "buffers: a piece from every worker", "bytes", (double)(n * piece * e), (double)is->buffers);
    cost(run, "computing, all ranks", "ps", busy, (double)is->timing.busy);
    cost(run, "synchronous, a link for each worker", "ps", server_all_steps(z, false), (double)is->timing.step);
    cost(run, "synchronous, one port a server", "ps", server_all_steps(z, true), (double)port->timing.step);
}

// ---------------------------------------------------------------- the lesson

static void compare(Run *run, const Cluster *c, const char *what, Trajectory *got, Trajectory *want) {
    char line[96];
    snprintf(line, sizeof line, "%s: %s", got->adamw ? "AdamW" : "SGD", what);
    training_compare_tensors(run, what, got, want, 0);
    check_numbers(run, line, "loss", got->loss, want->loss, got->steps, 0);
    // Of a tensor that two servers share, each squares its part.
    check_numbers(run, line, "gradient norm", got->norm, want->norm, got->steps, c->servers > 1 ? LIMIT_ROUNDING : 0);
}

static Record synchronous(Run *run, const Cluster *c, const Training *t, bool one_port) {
    Record is = { .one_port = one_port };
    Trajectory got = train(run, c, t, &is);
    Trajectory whole = training_unsplit(run, t, 1), ordered = training_unsplit(run, t, c->workers);
    if (!one_port) training_compare(run, "synchronous = unsplit", &got, &whole, LIMIT_ROUNDING);
    compare(run, c, one_port ? "one port = workers in order" : "synchronous = workers in order", &got, &ordered);
    trajectory_free(&got);
    trajectory_free(&whole);
    trajectory_free(&ordered);
    return is;
}

static Record asynchronous(Run *run, const Cluster *c, const Training *t, size_t staleness, const ServerSizes *z) {
    Record is = { .log = log_new(c->workers, STEPS, staleness) };
    char line[96];
    Trajectory got = train(run, c, t, &is), replayed = log_replay(run, t, &is.log);
    snprintf(line, sizeof line, "%s = the log replayed", is.log.name);
    compare(run, c, line, &got, &replayed);
    if (!got.adamw) log_check(run, &is.log, z);        // under AdamW it is the same log
    trajectory_free(&got);
    trajectory_free(&replayed);
    return is;
}

static void show(Run *run, const Cluster *c, const Training *t, Log log, int what) {
    Record is = { .log = log };
    char title[64] = "synchronous";
    if (log.line) snprintf(title, sizeof title, "asynchronous, %s", log.name);
    Trajectory drawn = train(run, c, t, &is);
    picture_show(run, title, what);
    trajectory_free(&drawn);
    forget(&is);
}

static void parameter_server(Run *run) {
    REQUIRE(clock_config()->simulated, "05_parameter_server needs the simulated clock: leave --clock out");
    Cluster c = cluster_new(run->world, option_size(run, "servers"));
    size_t slow = option_size(run, "slow"), s = option_size(run, "staleness");
    REQUIRE(c.workers <= SEQUENCES, "a step has %d sequences, and each of %zu workers needs one: start at most %zu "
            "ranks", SEQUENCES, c.workers, c.servers + SEQUENCES);
    if (s > STEPS) s = STEPS;                  // nobody can be that far ahead
    REQUIRE(slow >= 1 && slow <= 1000, "--slow must be from 1 to 1000");
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = 1, .optimizer = sgd(0.1) };
    t.model.seed = run->seed;
    const ServerSizes z = { tiny, c.servers, c.workers, SEQUENCES, STEPS, slow };
    if (run->world->rank == c.servers) clock_set_speed(1 / (double)slow);
    const size_t bound[] = { 0, s, STEPS };
    Record sync = synchronous(run, &c, &t, false), port = synchronous(run, &c, &t, true), is[3];
    for (size_t i = 0; i < 3; i++) is[i] = asynchronous(run, &c, &t, bound[i], &z);
    // With s = 0 everybody's gradient is of the version that the round began with, and SGD's small steps add up to the
    // one that the synchronous server makes. With s > 0 and more than one worker that is over.
    check_close(run, "SGD: staleness 0 = synchronous, at the end", is[0].last, sync.last, LIMIT_ROUNDING);
    if (c.workers == 1) check_equal(run, "one worker: always synchronous", is[2].last, sync.last);
    else check_differs(run, "SGD: no bound is another training", is[2].last, sync.last, 1e-4);
    t.optimizer = adamw(0.01);
    Record adam = synchronous(run, &c, &t, false), adam_is = asynchronous(run, &c, &t, s, &z);

    show(run, &c, &t, (Log){0}, PICTURE_NO_FILES);
    show(run, &c, &t, log_new(c.workers, STEPS, STEPS), PICTURE_NO_FILES);
    show(run, &c, &t, log_new(c.workers, STEPS, s), PICTURE_CHART);
    double pushes = STEPS * (double)c.workers * 1e9 / (double)sync.timing.step;
    say(run, "\n%-15s %12s %18s %24s", "", "pushes a ms", "most steps ahead", "versions behind (bound)");
    say(run, "%-15s %12.3f %18d %17d (0)", "synchronous", pushes, 0, 0);
    for (size_t i = 0; i < 3; i++) log_say(run, &is[i].log);
    say(run, "(pushes until the first worker is through)");
    cluster_say_traffic(run, &c, config_parameters(&tiny), (double)sync.timing.step / STEPS,
                        (double)port.timing.step / STEPS);
    predict(run, &c, &z, &adam, &port, cluster_ring(&c, config_parameters(&tiny)));
    Record *all[] = { &sync, &port, &is[0], &is[1], &is[2], &adam, &adam_is };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) forget(all[i]);
    data_free(&t.data);
}

static const Option options[] = {
    { "servers", "N", "1", "ranks that hold the weights, a piece each; the others work" },
    { "staleness", "N", "1", "steps that a worker may be ahead of the slowest" },
    { "slow", "N", "2", "how many times as long the first worker takes" },
    { "clock", "simulated", "simulated", "the order of arrival is the simulated clock's" },
    { "link", "NAME", "ethernet", NULL },
    {0},
};
LESSON(parameter_server, options);
