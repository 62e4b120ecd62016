// ranks: 4
// level: extra
// question: If servers hold the weights: what do their links carry, and what if no worker waits for the slowest?
// vary: SEQUENCES 5..11, STEPS 4..7, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// The first k ranks (--servers) are servers, each with a piece of the weights and of the optimizer's state
// (parameter_server.c); the other n are workers with a part of the sequences of every step. A worker pulls the weights
// (S bytes), finds its gradient and pushes it (S bytes).
//     synchronous     a server waits for everybody's push, adds them in the workers' order, and updates once: the same
//                     bits as an all-reduce
//     asynchronous    a server updates after every push, and answers it at once with what the weights are then, unless
//                     the worker is more than --staleness steps ahead of the slowest (stale synchronous parallel). A
//                     gradient then belongs to weights that are some versions old. That is no longer the unsplit
//                     training; it equals, to the last bit, one device that replays the server's log.
// Pushes are served in the order of their arrival by the simulated clock, on every machine. The first worker takes
// --slow times as long as the others. What staleness does to the loss is shown on a text (experiments/05_page.c).
// Left out: workers and servers that get lost.
#include "01_data_parallel/parameter_server.h"
#include "01_data_parallel/experiments/05_costs.h"
#include "01_data_parallel/experiments/05_log.h"
#include "01_data_parallel/experiments/05_page.h"
#include "judge/draw/picture.h"
#include <stdio.h>
#include <stdlib.h>

enum { SEQUENCES = 7, STEPS = 6 };             // STEPS of every worker; it has the same sequences under both rules

// ================================ the technique ================================

// m->g <- the part of the gradient that comes from worker w's sequences of this step; returns their part of the loss.
double worker_gradient(Model *m, const Training *t, size_t workers, size_t w, size_t step) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch *b = training_batches(t, &tokens, step, workers, w);
    b->number = step;                              // for pictures
    model_zero_gradients(m);
    double loss = model_forward_backward(m, b) * b->token_weight;      // 1 / counted tokens of all workers together
    model_fold_tied(m);
    free(b);
    arena_free(&tokens);
    return loss;
}

// My gradient [Psi]: to each server its piece, S bytes in all. Does not wait.
static void push(const Cluster *c, Model *m) {
    for (size_t s = 0; s < c->servers; s++) comm_send(c->world, cluster_piece(c, m->g, s), s);     // [Psi/k], S/k bytes
}
// The weights [Psi], a piece from every server, S bytes in all. Waits for all of them.
static void pull(const Cluster *c, Model *m) {
    for (size_t s = 0; s < c->servers; s++) comm_recv(c->world, cluster_piece(c, m->w, s), s);     // [Psi/k], S/k bytes
}

// got, if given, notes the weights after every step, so that a check sees whether all have the server's bits.
static void work(const Cluster *c, const Training *t, Model *m, double *loss, Trajectory *got) {
    pull(c, m);                                            // version 0
    for (size_t step = 0; step < c->steps; step++) {
        loss[step] = worker_gradient(m, t, c->workers, cluster_worker(c), step);
        push(c, m);
        pull(c, m);
        char label[32];
        snprintf(label, sizeof label, " of step %zu", step);
        if (got) snapshot_label(got->weights, label), model_snapshot(m, got->weights, UNIT_WEIGHTS, NULL);
    }
}

// From now on the push of this worker may come: its gradient of my piece [Psi/k], S/k bytes.
static void expect(const Cluster *c, Inbox *in, size_t worker) {
    in->coming[worker] = comm_start_recv(c->world, in->piece[worker], c->servers + worker);
}
// Waits for it. The gradient is in in->piece[worker] afterwards.
static void take(Inbox *in, size_t worker) {
    comm_wait(in->coming[worker]);
    in->coming[worker] = NULL;
}
// My piece of the weights as they are now [Psi/k], S/k bytes.
static void answer(const Cluster *c, const Model *m, size_t worker) { comm_send(c->world, m->w, c->servers + worker); }

// All pushes of a step are in: one update.
static void update_all(const Cluster *c, Model *m, Optimizer *o, Inbox *in) {
    // EXERCISE 01.05a (4 points): add the pushes, update once. Every worker's push has come: in->piece[w] is what
    // worker w found for my piece of the gradient, and carries 1 / (counted tokens of the whole batch) already. Make
    // m->g their sum, added in the order of the workers and starting from worker 0's (tensor_copy, op_add), so that the
    // bits are those of a rank-ordered all-reduce. Then update my piece of the weights, once (optimizer_step; nothing
    // is clipped, so its scale is 1).
    tensor_copy(m->g, in->piece[0]);
    for (size_t w = 1; w < c->workers; w++) op_add(m->g, m->g, in->piece[w]);
    optimizer_step(o, m, 1);
    // END
}

static void serve_synchronously(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Notes *notes) {
    for (size_t w = 0; w < c->workers; w++) answer(c, m, w);           // version 0
    for (size_t step = 0; step < c->steps; step++) {
        for (size_t w = 0; w < c->workers; w++) expect(c, in, w);
        for (size_t w = 0; w < c->workers; w++) take(in, w);           // waits for the slowest
        update_all(c, m, o, in);
        for (size_t w = 0; w < c->workers; w++) answer(c, m, w);       // n S/k bytes
        notes_version(notes, step, m);
    }
}

// Whose push is next, of those that are expected.
static size_t next_push(const Cluster *c, const Inbox *in) {
    size_t next = 0;
    while (next < c->workers && !in->coming[next]) next++;
    if (next == c->workers) fault("every worker waits, and no push is on its way: may nobody begin a step?");
    // EXERCISE 01.05b (3 points): whose push is next. in->coming[w] is NULL for a worker from which no push is
    // expected; `next` is the first from which one is. Make it the one whose push arrives first, and of those that
    // arrive at the same moment the one with the lowest number. comm_arrival(in->coming[w]) says when a push arrives;
    // it really waits until it is there, so ask for every expected one: then the answer is the same on every machine.
    for (size_t w = next + 1; w < c->workers; w++)
        if (in->coming[w] && comm_arrival(in->coming[w]) < comm_arrival(in->coming[next])) next = w;
    // END
    return next;
}

// May a worker that has done so many steps begin another one, if none may be more than `staleness` steps ahead of the
// slowest?
static bool may_go_on(const Cluster *c, const size_t *done, size_t worker, size_t staleness) {
    bool may = true;
    // EXERCISE 01.05c (3 points): the bound on staleness. done[w] is how many pushes of worker w, of c->workers, are in
    // the weights. `worker` may begin its next step if it has done at most `staleness` steps more than the one that has
    // done fewest. Set `may`.
    for (size_t w = 0; w < c->workers; w++) may = may && done[worker] <= done[w] + staleness;
    // END
    return may;
}

static void serve_as_they_come(const Cluster *c, Model *m, Optimizer *o, Inbox *in, Log *log, Notes *notes) {
    size_t *done = host_alloc(c->workers * sizeof *done), *taken = host_alloc(c->workers * sizeof *taken);
    bool *waits = host_alloc(c->workers * sizeof *waits);              // for an answer
    for (size_t w = 0; w < c->workers; w++) {
        answer(c, m, w);                                               // version 0
        expect(c, in, w);
    }
    for (size_t version = 0; version < c->workers * c->steps; version++) {
        size_t next = next_push(c, in);
        log->line[version] = (Served){ next, taken[next], comm_arrival(in->coming[next]) };
        take(in, next);
        tensor_copy(m->g, in->piece[next]);                            // one worker's gradient,
        optimizer_step(o, m, 1);                                       // one update
        done[next]++;
        waits[next] = true;
        notes_version(notes, version, m);
        // This push may have been the one for which others waited.
        for (size_t w = 0; w < c->workers; w++) {
            if (!waits[w] || !may_go_on(c, done, w, log->staleness)) continue;
            answer(c, m, w);                                           // S/k bytes, to this worker alone
            waits[w] = false;
            taken[w] = version + 1;
            if (done[w] < c->steps) expect(c, in, w);
        }
    }
    free(done);
    free(taken);
    free(waits);
}

// ================================ the experiment ================================

static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

typedef struct {
    Log log;                                   // of server 0, on all ranks; without lines when synchronous
    bool one_port;                             // all messages of a server go through one link
    Snapshot *last;                            // the weights at the end
    ServerSeen seen;
} Record;

static Trajectory train(Run *run, const Cluster *c, const Training *t, Record *is) {
    Training updates = *t;
    if (is->log.line) updates.steps *= c->workers;             // one for every push
    Trajectory got = trajectory_new(run, &updates);
    Optimizer o = t->optimizer;
    Model *m = cluster_model(c, &t->model);
    Notes notes = { &got, host_alloc(updates.steps * config_tensors(&t->model) * sizeof *notes.squares) };
    double *loss = host_alloc(t->steps * sizeof *loss);
    is->last = snapshot_new(run);
    comm_all_reduce_doubles(c->world, notes.squares, 1);            // all begin at the same moment
    comm_ledger_reset(c->world);
    is->log.begin = clock_now();
    picture_begin(run, MEM_ACTIVATIONS);
    clock_set_one_port(is->one_port && cluster_serves(c));
    if (cluster_serves(c)) {
        Inbox in = inbox_new(c, m);
        optimizer_allocate(&o, m);
        if (is->log.line) serve_as_they_come(c, m, &o, &in, &is->log, &notes);
        else serve_synchronously(c, m, &o, &in, &notes);
        is->seen.buffers = memory_now(MEM_COMMUNICATION);
        model_snapshot(m, is->last, UNIT_WEIGHTS, NULL);
        inbox_free(&in);
    } else work(c, t, m, loss, is->log.line ? NULL : &got);
    clock_set_one_port(false);
    picture_end(run);
    is->seen = (ServerSeen){ picture_timing(run), comm_bytes_sent(c->world), c->world->ledger[COMM_SEND].calls,
                             memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
                             is->seen.buffers };
    log_tell(&is->log, c, &notes, loss, config_tensors(&t->model));
    model_free(m);
    free(notes.squares);
    free(loss);
    return got;
}

static void forget(Record *is) {
    log_free(&is->log);
    snapshot_free(is->last);
}

static Record synchronous(Run *run, const Cluster *c, const Training *t, bool one_port) {
    Record is = { .one_port = one_port };
    Trajectory got = train(run, c, t, &is);
    Trajectory whole = training_unsplit(run, t, 1), ordered = training_unsplit(run, t, c->workers);
    if (!one_port) training_compare(run, "synchronous = unsplit", &got, &whole, LIMIT_ROUNDING);
    server_compare(run, c, one_port ? "one port = workers in order" : "synchronous = workers in order", &got, &ordered);
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
    server_compare(run, c, line, &got, &replayed);
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

// For the losses on text: the log is filled in.
static Trajectory train_with(Run *run, const Cluster *c, const Training *t, Log *log, Picoseconds *took) {
    Record is = { .log = *log };
    Trajectory got = train(run, c, t, &is);
    *log = is.log;
    *took = is.seen.timing.step;
    snapshot_free(is.last);
    return got;
}

static void parameter_server(Run *run) {
    REQUIRE(clock_config()->simulated, "05_parameter_server needs the simulated clock: leave --clock out");
    require_one_link(run);
    Cluster c = cluster_new(run->world, option_size(run, "servers"), STEPS);
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
    log_check_bound(run, &c, may_go_on);
    // With s = 0 everybody's gradient is of the version that the round began with, and SGD's small steps add up to the
    // one that the synchronous server makes. With s > 0 and more than one worker that is over.
    check_close(run, "SGD: staleness 0 = synchronous, at the end", is[0].last, sync.last, LIMIT_ROUNDING);
    if (c.workers == 1) check_equal(run, "one worker: always synchronous", is[2].last, sync.last);
    else check_differs(run, "SGD: no bound is another training", is[2].last, sync.last, 1e-4);
    t.optimizer = adamw(0.01);
    Record adam = synchronous(run, &c, &t, false), adam_is = asynchronous(run, &c, &t, s, &z);

    show(run, &c, &t, (Log){0}, PICTURE_NO_FILES | PICTURE_DETAIL);
    show(run, &c, &t, log_new(c.workers, STEPS, STEPS), PICTURE_NO_FILES);
    show(run, &c, &t, log_new(c.workers, STEPS, s), PICTURE_CHART | PICTURE_DETAIL);
    server_compare_costs(run, &z, &adam.seen, port.seen.timing.step);
    server_results(run, &c, &t, (const Log *[]){ &is[1].log, &is[2].log }, sync.seen.timing.step, train_with);
    server_say_traffic(run, &z, sync.seen.timing.step, port.seen.timing.step);
    Record *all[] = { &sync, &port, &is[0], &is[1], &is[2], &adam, &adam_is };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) forget(all[i]);
    data_free(&t.data);
}

static const Option options[] = {
    { "servers", "N", "1", "ranks that hold the weights, a piece each; the others work" },
    { "staleness", "N", "1", "steps that a worker may be ahead of the slowest" },
    { "slow", "N", "2", "how many times as long the first worker takes" },
    { "clock", "simulated", "simulated", "the order of arrival is the simulated clock's" },
    { "link", "NAME[,NAME]", "slow", NULL },
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    {0},
};
EXPERIMENT(parameter_server, options);
