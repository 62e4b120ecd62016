// 05_parameter_server.c: trainings with servers. The synchronous one must have the bits of an
// all-reduce. An asynchronous one must equal, in every bit, one device that replays the server's
// log (server_log.c), and the log must follow from sizes and speeds. The simulated clock orders the
// pushes, so the order is the same on every machine. The first worker takes --slow times as long as
// the others. A training on text shows what staleness does to the loss.
#include "01_data_parallel/experiments/server_log.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// STEPS is the number of steps of every worker, in the synchronous and the asynchronous form.
enum { SEQUENCES = 7, STEPS = 6 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// ----------------------------------------------------- the times that follow from sizes and speeds

// The first worker takes `slow` times as long as the others.
typedef struct { size_t servers, workers, slow; } ServerSizes;

// Picoseconds of a forward and backward of worker w's sequences, and of a message with the piece of
// server 0, the largest one.
static double computing(const ServerSizes *z, size_t w) {
    return work_model(&tiny, part_size(SEQUENCES, z->workers, w)).time *
           (double)(w == 0 ? z->slow : 1);
}
static double message(const ServerSizes *z) {
    return send_time(part_size(config_parameters(&tiny), z->servers, 0) * sizeof(real));
}
// The time of all steps of the synchronous training if each worker has its own link. A step has two
// messages, and between them the computation of the slowest worker.
static double all_steps(const ServerSizes *z) {
    double slowest = 0;
    for (size_t w = 0; w < z->workers; w++) slowest = fmax(slowest, computing(z, w));
    return STEPS * (2 * message(z) + slowest);
}
// The same time with one port per server. Then the server's answers leave one after the other, and
// the pushes arrive one after the other, in the workers' order.
static double all_steps_one_port(const ServerSizes *z) {
    double answered = 0, m = message(z);           // m: also how long a message keeps the port busy
    for (size_t step = 0; step < STEPS; step++) {
        double in = 0;
        for (size_t w = 0; w < z->workers; w++) {
            double comes = answered + (double)(w + 1) * m + computing(z, w) + m;
            in = w > 0 && in + m > comes ? in + m : fmax(comes, in);
        }
        answered = in;
    }
    return answered + ((double)z->workers - 1) * m;
}

// With any worker as the slowest, the others must wait and it must not. (In the logs of this lesson
// the slowest worker is always the same.)
static void check_bound(Run *run, const Cluster *c) {
    size_t *done = host_alloc(c->workers * sizeof *done);
    bool right = true;
    for (size_t slowest = 0; slowest < c->workers; slowest++) {
        for (size_t w = 0; w < c->workers; w++) done[w] = w == slowest ? 1 : 3;
        for (size_t w = 0; w < c->workers; w++)
            right = right && server_may_go_on(c, done, w, 2) &&
                    server_may_go_on(c, done, w, 1) == (w == slowest);
    }
    check_true(run, "bound", "the others wait, whichever worker is 2 steps behind", right);
    free(done);
}

// ---------------------------------------------------------------- the training

// A server's record, for the comparison alone. For every version of its piece: the gradient that
// was applied, the new weights, and the gradient's squares per update and tensor.
typedef struct { Trajectory *got; double *squares; } Notes;
static void notes_version(Notes *notes, size_t version, const Model *m) {
    trajectory_record(notes->got, version, m, 0, 0);
    model_grad_squares(m, notes->squares + version * config_tensors(&m->config));
}

// For the comparison, every rank gets server 0's log, the loss of each update (from the workers)
// and the norms (from the servers' squares). The training needs none of them.
static void tell(ServerLog *log, const Cluster *c, Notes *notes, const double *loss,
                 size_t tensors) {
    Trajectory *got = notes->got;
    size_t updates = got->steps, seen = 0;
    if (log->line) server_log_share(log, c);
    for (size_t v = 0; v < updates && !cluster_serves(c); v++)
        if (!log->line || log->line[v].worker == cluster_worker(c)) got->loss[v] = loss[seen++];
    ledger_pause();
    comm_all_reduce_doubles(c->world, got->loss, updates);
    comm_all_reduce_doubles(c->world, notes->squares, updates * tensors);
    ledger_resume();
    for (size_t v = 0; v < updates; v++)
        got->norm[v] = norm_of_squares(notes->squares + v * tensors, tensors);
}

static void serve(const Cluster *c, Model *m, Optimizer *o, Inbox *in, ServerLog *log,
                  Notes *notes) {
    server_begin(c, m);
    if (!log->line) {
        for (size_t step = 0; step < c->steps; step++) {
            server_step(c, m, o, in);
            notes_version(notes, step, m);
        }
        return;
    }
    Progress p = progress_new(c, in);
    for (size_t version = 0; version < c->workers * c->steps; version++) {
        log->line[version] = server_next(c, m, o, in, &p, log->staleness);
        notes_version(notes, version, m);
    }
    progress_free(&p);
}

// If got is given, it records the weights after every step. The check then sees whether all workers
// have the server's bits.
static void work(const Cluster *c, const Training *t, Model *m, double *loss, Trajectory *got) {
    worker_pull(c, m);
    for (size_t step = 0; step < c->steps; step++) {
        char label[32];
        loss[step] = worker_step(c, m, &t->data, t->sequences, step);
        if (!got) continue;
        snprintf(label, sizeof label, " of step %zu", step);
        snapshot_label(got->weights, label);
        model_snapshot(m, got->weights, UNIT_WEIGHTS, NULL);
    }
}

// sent, calls: of a whole training. The others: bytes of memory at its end.
typedef struct {
    Timing timing;
    size_t sent, calls, parameters, gradients, optimizer, buffers;
} ServerSeen;
typedef struct {
    ServerLog log;                             // server 0's, on all ranks; no lines: synchronous
    bool one_port;                             // all messages of a server go through one link
    Snapshot *last;                            // the weights at the end
    ServerSeen seen;
} Record;

static Trajectory train(Run *run, const Cluster *c, const Training *t, Record *record) {
    Training updates = *t;
    if (record->log.line) updates.steps *= c->workers;         // one for every push
    Trajectory got = trajectory_new(run, &updates);
    Optimizer o = t->optimizer;
    Model *m = cluster_model(c, &t->model);
    Notes notes = { &got,
                    host_alloc(updates.steps * config_tensors(&t->model) * sizeof *notes.squares) };
    double *loss = host_alloc(t->steps * sizeof *loss);
    size_t buffers = 0;
    record->last = snapshot_new(run);
    comm_all_reduce_doubles(c->world, notes.squares, 1);       // all begin at the same moment
    comm_ledger_reset(c->world);
    record->log.begin = clock_now();
    picture_begin(run, MEM_ACTIVATIONS);
    clock_set_one_port(record->one_port && cluster_serves(c));
    if (cluster_serves(c)) {
        Inbox in = inbox_new(c, m);
        optimizer_allocate(&o, m);
        serve(c, m, &o, &in, &record->log, &notes);
        buffers = memory_now(MEM_COMMUNICATION);
        model_snapshot(m, record->last, UNIT_WEIGHTS, NULL);
        inbox_free(&in);
    } else work(c, t, m, loss, record->log.line ? NULL : &got);
    clock_set_one_port(false);
    picture_end(run);
    record->seen = (ServerSeen){ picture_timing(run),
                                 comm_bytes_sent(c->world),
                                 c->world->ledger[COMM_SEND].calls,
                                 memory_now(MEM_PARAMETERS),
                                 memory_now(MEM_GRADIENTS),
                                 memory_now(MEM_OPTIMIZER),
                                 buffers };
    tell(&record->log, c, &notes, loss, config_tensors(&t->model));
    model_free(m);
    free(notes.squares);
    free(loss);
    return got;
}

static void forget(Record *record) {
    free(record->log.line);
    snapshot_free(record->last);
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

static Record synchronous(Run *run, const Cluster *c, const Training *t, bool one_port) {
    Record record = { .one_port = one_port };
    Trajectory got = train(run, c, t, &record);
    Trajectory whole = training_unsplit(run, t, 1), ordered = training_unsplit(run, t, c->workers);
    if (!one_port) training_compare(run, "synchronous = unsplit", &got, &whole, LIMIT_ROUNDING);
    compare(run, c, one_port ? "one port = workers in order" : "synchronous = workers in order",
            &got, &ordered);
    trajectory_free(&got);
    trajectory_free(&whole);
    trajectory_free(&ordered);
    return record;
}

static void check_log(Run *run, const ServerLog *log, const ServerSizes *z) {
    double *times = host_alloc(z->workers * sizeof *times);
    for (size_t w = 0; w < z->workers; w++) times[w] = computing(z, w);
    server_log_check(run, log, times, message(z));
    free(times);
}

static Record asynchronous(Run *run, const Cluster *c, const Training *t, size_t staleness,
                           const ServerSizes *z) {
    Record record = { .log = server_log_new(c->workers, STEPS, staleness) };
    char line[96];
    Trajectory got = train(run, c, t, &record), replayed = server_log_replay(run, t, &record.log);
    snprintf(line, sizeof line, "%s = the log replayed", record.log.name);
    compare(run, c, line, &got, &replayed);
    if (!got.adamw) check_log(run, &record.log, z);        // under AdamW it is the same log
    trajectory_free(&got);
    trajectory_free(&replayed);
    return record;
}

// ---------------------------------------------------------------- costs

// Makes one all-reduce of the workers alone. Returns the bytes that this rank sent.
static double ring_of_workers(Comm *world, bool serves, size_t count) {
    Comm *ring = comm_split(world, serves, 0, "ring");
    Arena a = arena(MEM_WORKSPACE);
    Tensor g = tensor_new(&a, 1, count);
    tensor_fill(g, 0);
    if (!serves) comm_all_reduce(ring, g);
    double sent = (double)comm_bytes_sent(ring);
    arena_free(&a);
    comm_free(ring);
    return sent;
}

static void costs(Run *run, const ServerSizes *z, const ServerSeen *seen, Picoseconds one_port) {
    size_t V = tiny.vocab, C = tiny.width, Psi = config_parameters(&tiny), e = sizeof(real);
    size_t n = z->workers, k = z->servers;
    bool serves = run->world->rank < k;
    size_t piece = serves ? part_size(Psi, k, run->world->rank) : 0, holds = serves ? piece : Psi;
    // the first answer is version 0
    size_t sent = serves ? (STEPS + 1) * n * piece * e : STEPS * Psi * e;
    double busy = 0;
    for (size_t w = 0; w < n; w++) busy += STEPS * computing(z, w);
    double ring_sent = ring_of_workers(run->world, serves, Psi);
    check_cost(run, "sent", "sent: S a push, or n S/k of answers, a step", "bytes",
               formula((double)sent), NOT_PREDICTED, (double)seen->sent);
    check_cost(run, "calls", "messages", "calls",
               formula((double)(serves ? (STEPS + 1) * n : STEPS * k)), NOT_PREDICTED,
               (double)seen->calls);
    check_cost(run, "sent.ring", "sent, one step in a ring of the workers", "bytes",
               formula(serves ? 0 : ring_bytes(ALL_REDUCE_PASSES, n, Psi, e)), NOT_PREDICTED,
               ring_sent);
    check_cost(run, "held.parameters", "parameters (server: its piece)", "bytes",
               formula((double)(holds * e)), NOT_PREDICTED, (double)seen->parameters);
    check_cost(run, "held.gradients", "gradients (worker: wte twice)", "bytes",
               formula((double)((serves ? piece : Psi + V * C) * e)), NOT_PREDICTED,
               (double)seen->gradients);
    check_cost(run, "held.optimizer", "AdamW's m and v: on servers only", "bytes",
               formula((double)(2 * piece * e)), NOT_PREDICTED, (double)seen->optimizer);
    check_cost(run, "held.buffers", "buffers: a piece from every worker", "bytes",
               formula((double)(n * piece * e)), NOT_PREDICTED, (double)seen->buffers);
    check_cost(run, "time.computing", "computing, all ranks", "ps", formula(busy), NOT_PREDICTED,
               (double)seen->timing.busy);
    check_cost(run, "time.links", "synchronous, a link for each worker", "ps",
               formula(all_steps(z)), NOT_PREDICTED, (double)seen->timing.step);
    check_cost(run, "time.one-port", "synchronous, one port a server", "ps", NOT_PREDICTED,
               played(all_steps_one_port(z)), (double)one_port);
}

// -------------------------------------------------------- what staleness does to the loss, on text

// LONG: steps of every worker. LAST: number of last steps that are averaged. SHARED: sequences of a
// step. RULES: synchronous, with a bound, without one.
enum { LONG = 40, LAST = 10, SHARED = 16, RULES = 3 };
// Losses in nats per byte. half: mean of the last LAST pushes per worker that had arrived at a
// given time. end: mean of the last LAST steps of every worker; these have the same batches in
// every form.
typedef struct { double half, end; } Losses;

// A push has its shard's part of the loss. `own` turns it into the mean over the shard's tokens.
static Losses losses_of(const Trajectory *got, const Cluster *c, const ServerLog *log, double took,
                        double moment) {
    Losses mean = {0};
    size_t n = log->line ? c->workers : 1, arrived = 0;
    size_t *done = host_alloc(n * sizeof *done);
    for (size_t v = 0; v < got->steps; v++) {
        double at =
            log->line ? (double)(log->line[v].arrival - log->begin) : took * (double)(v + 1) / LONG;
        arrived += at <= moment;
    }
    for (size_t v = 0; v < got->steps; v++) {
        size_t w = log->line ? log->line[v].worker : 0;
        double own = log->line ? (double)SHARED / (double)range_size(shard_range(SHARED, n, w)) : 1;
        if (v < arrived && v + LAST * n >= arrived)
            mean.half += got->loss[v] * own / (double)(LAST * n);
        if (done[w] >= LONG - LAST) mean.end += got->loss[v] / LAST;
        done[w]++;
    }
    free(done);
    return mean;
}

// Trains on text, because the synthetic data of the other trainings cannot be learnt. Returns the
// time at half of the synchronous training.
static double train_on_text(Run *run, const Cluster *c, size_t staleness, Losses loss[RULES]) {
    static const ModelConfig reader = {
        .layers = 1, .width = 32, .heads = 2, .context = 16, .vocab = 256
    };
    Training text = { .model = reader,
                      .steps = LONG,
                      .sequences = SHARED,
                      .micro_batches = 1,
                      .optimizer = sgd(0.15) };
    Cluster cluster = *c;
    double moment = 0;
    cluster.steps = LONG;
    text.model.seed = run->seed;
    text.data =
        training_text(run, option_text(run, "data"), NULL, reader.vocab, reader.context, SHARED);
    for (size_t rule = 0; rule < RULES; rule++) {
        Record record = {0};
        if (rule > 0) record.log = server_log_new(c->workers, LONG, rule == 1 ? staleness : LONG);
        Trajectory got = train(run, &cluster, &text, &record);
        double took = (double)record.seen.timing.step;
        if (rule == 0) moment = took / 2;
        loss[rule] = losses_of(&got, c, &record.log, took, moment);
        forget(&record);
        trajectory_free(&got);
    }
    data_free(&text.data);
    return moment;
}

// ---------------------------------------------------------------- the page

// log: the logs with and without a bound on staleness. took: the time of the synchronous training.
static void table(Run *run, const Cluster *c, const ServerLog *log[2], Picoseconds took,
                  Losses loss[RULES]) {
    typedef char Cell[64];
    Cell pushes[RULES], ahead[RULES] = { "=0" }, behind[RULES] = { "=0" }, half[RULES], end[RULES],
                        what[2];
    double moment = train_on_text(run, c, log[0]->staleness, loss);
    snprintf(pushes[0], sizeof *pushes, "=%.3f",
             (double)(c->steps * c->workers) * 1e9 / (double)took);
    for (size_t rule = 0; rule < RULES; rule++) {
        snprintf(half[rule], sizeof *half, "=%.2f", loss[rule].half);
        snprintf(end[rule], sizeof *end, "=%.2f", loss[rule].end);
        if (rule == 0) continue;
        ServerLogSeen seen = server_log_look(log[rule - 1]);
        snprintf(pushes[rule], sizeof *pushes, "=%.3f", seen.pushes);
        snprintf(ahead[rule], sizeof *ahead, "=%zu", seen.ahead);
        snprintf(behind[rule], sizeof *behind, "=%zu", seen.lag);
    }
    snprintf(what[0], sizeof *what, "after %.0f ms", moment * 1e-9);
    snprintf(what[1], sizeof *what, "after %d steps of each worker", LONG);
    results(
        run, (const char *const[]){ "synchronous", log[0]->name, "no bound", NULL },
        (const Result[]){
            { "pushes per ms, all workers",
              "synchronous: n/(t + 2c)",
              { pushes[0], pushes[1], pushes[2] } },
            { "steps ahead of the slowest",
              "at most the staleness s",
              { ahead[0], ahead[1], ahead[2] } },
            { "updates between pull and push",
              "at most (n-1)(2s+1)",
              { behind[0], behind[1], behind[2] } },
            { "loss at equal time", what[0], { half[0], half[1], half[2] } },
            { "loss at equal work", what[1], { end[0], end[1], end[2] } },
            { 0 } });
}

// Bytes per step that this run measured, on rank 0, which is a server.
static void say_traffic(Run *run, const ServerSizes *z, const ServerSeen *server) {
    char served[32], worker[32], ring[32];
    page_value(served, sizeof served, (double)server->sent / (STEPS + 1), "bytes");
    page_value(worker, sizeof worker, (double)(config_parameters(&tiny) * sizeof(real)), "bytes");
    page_value(ring, sizeof ring, cost_value(run, "sent.ring"), "bytes");
    say(run,
        "n = %zu worker%s, k = %zu server%s. The losses are those of a small model on a text. S: "
        "the bytes of\nall weights. Per step a server sends n S/k = %s and a worker S = %s. With "
        "an all-reduce\namong the workers each sends %s.\n",
        z->workers, z->workers > 1 ? "s" : "", z->servers, z->servers > 1 ? "s" : "", served,
        worker, ring);
}

static const char *lower_or_higher(double a, double b) {
    const double seen = 0.005;                             // losses are printed in hundredths
    return fabs(a - b) < seen ? "the same" : a < b ? "lower" : "higher";
}

// age: of the oldest gradient without a bound, in updates. took: the synchronous training.
static void answer(Run *run, const Cluster *c, const ServerSeen *server, size_t age,
                   const Losses loss[RULES], Picoseconds took) {
    char served[32], ring[32], links[32], port[32];
    const Losses sync = loss[0], none = loss[RULES - 1];
    page_value(served, sizeof served, (double)server->sent / (STEPS + 1), "bytes");
    page_value(ring, sizeof ring, cost_value(run, "sent.ring"), "bytes");
    page_value(links, sizeof links, (double)took / STEPS, "ps");
    page_value(port, sizeof port, cost_value(run, "time.one-port") / STEPS, "ps");
    if (c->workers == 1)
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
             "gradients are up to %zu updates old. All bytes pass the servers: if a server "
             "sends and receives one message at a time, a synchronous step takes %s instead of %s.",
             age, port, links);
    say_use_when(run, "workers differ in speed, come and go, or touch few rows of a large table. "
                      "For dense models use an all-reduce.");
}

static void show(Run *run, const Cluster *c, const Training *t, ServerLog log, int what) {
    Record record = { .log = log };
    char title[96], servers[32] = "rank 0 is the server";
    if (c->servers > 1) snprintf(servers, sizeof servers, "%zu ranks are servers", c->servers);
    if (log.line)
        snprintf(title, sizeof title, "%zu asynchronous steps, %s; %s", c->steps, log.name,
                 servers);
    else snprintf(title, sizeof title, "%zu synchronous steps; %s", c->steps, servers);
    Trajectory drawn = train(run, c, t, &record);
    picture_show(run, title, what);
    trajectory_free(&drawn);
    forget(&record);
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
    if (s > STEPS) s = STEPS;                  // no worker can be further ahead
    REQUIRE(slow >= 1 && slow <= 1000, "--slow must be from 1 to 1000");
    Training t = { .model = tiny,
                   .data = data_synthetic(tiny.vocab, tiny.context, run->seed),
                   .steps = STEPS,
                   .sequences = SEQUENCES,
                   .micro_batches = 1,
                   .optimizer = sgd(0.1) };
    t.model.seed = run->seed;
    const ServerSizes z = { c.servers, c.workers, slow };
    if (run->world->rank == c.servers) clock_set_speed(1 / (double)slow);
    const size_t bound[] = { 0, s, STEPS };
    Record sync = synchronous(run, &c, &t, false), port = synchronous(run, &c, &t, true), async[3];
    for (size_t i = 0; i < 3; i++) async[i] = asynchronous(run, &c, &t, bound[i], &z);
    check_bound(run, &c);
    // With s = 0 all gradients of a round are taken at the same version, so SGD's small steps add
    // up to the synchronous server's step. With s > 0 and several workers they do not.
    check_close(run, "SGD: staleness 0 = synchronous, at the end", async[0].last, sync.last,
                LIMIT_ROUNDING);
    if (c.workers == 1)
        check_equal(run, "one worker: always synchronous", async[2].last, sync.last);
    else check_differs(run, "SGD: no bound is another training", async[2].last, sync.last, 1e-4);
    t.optimizer = adamw(0.01);
    Record adam = synchronous(run, &c, &t, false), adam_async = asynchronous(run, &c, &t, s, &z);

    show(run, &c, &t, (ServerLog){0}, PICTURE_NO_FILES | PICTURE_DETAIL);
    say(run,
        "A worker pushes its gradient to %s and pulls new weights. Staleness s: no worker is\n"
        "more than s steps ahead of the slowest. Rank %zu takes %zu time%s as long for the same "
        "work (--slow),\nand no worker has more sequences. n workers; t: computing time of the "
        "slowest; c: time of a message.\n",
        c.servers > 1 ? "the servers" : "the server", c.servers, slow, slow > 1 ? "s" : "");
    show(run, &c, &t, server_log_new(c.workers, STEPS, STEPS), PICTURE_NO_FILES);
    show(run, &c, &t, server_log_new(c.workers, STEPS, s), PICTURE_CHART | PICTURE_DETAIL);
    costs(run, &z, &adam.seen, port.seen.timing.step);
    Losses loss[RULES];
    const Picoseconds took = sync.seen.timing.step;
    table(run, &c, (const ServerLog *[]){ &async[1].log, &async[2].log }, took, loss);
    say_traffic(run, &z, &adam.seen);
    answer(run, &c, &adam.seen, server_log_look(&async[2].log).lag, loss, took);
    Record *all[] = { &sync, &port, &async[0], &async[1], &async[2], &adam, &adam_async };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) forget(all[i]);
    data_free(&t.data);
}

static const Option options[] = {
    { "servers", "N", "1", "ranks that hold the weights, a piece each; the others are workers" },
    { "staleness", "N", "1", "steps that a worker may be ahead of the slowest" },
    { "slow", "N", "2", "the first worker takes N times as long as the others" },
    { "clock", "simulated", "simulated", "the order of arrival is the simulated clock's" },
    { "link", "NAME[,NAME]", "slow", NULL },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    {0},
};
EXPERIMENT(parameter_server, options);
