// server_training.c: runs a training with servers and workers, and records its weights, losses,
// messages, memory and times. Measures the effect of staleness on the loss of a training on text.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

// Gives every rank server 0's log, and the loss of each update. Only the workers know the losses.
static void tell(ServerLog *log, const Cluster *c, Trajectory *got, const double *loss) {
    size_t seen = 0;
    if (log->line) side_broadcast(log->line, got->steps * sizeof *log->line);
    for (size_t v = 0; v < got->steps && !cluster_serves(c); v++)
        if (!log->line || log->line[v].worker == cluster_worker(c)) got->loss[v] = loss[seen++];
    ledger_pause();
    comm_all_reduce_doubles(c->world, got->loss, got->steps);
    ledger_resume();
}

// Runs a server. Records every version of the server's piece after version 0, and the gradient that
// made this version.
static void serve(const Cluster *c, Model *m, Optimizer *o, Inbox *in, ServerLog *log,
                  Trajectory *got) {
    server_begin(c, m);
    Progress p;
    if (log->line) p = progress_new(c, in);
    for (size_t version = 0; version < got->steps; version++) {
        if (log->line) log->line[version] = server_next(c, m, o, in, &p, log->staleness);
        else server_step(c, m, o, in);
        trajectory_record(got, version, m, 0, 0);
    }
    if (log->line) progress_free(&p);
}

// Runs a worker. If got is given, got records the weights after every step. Then the check compares
// every worker's bits with the servers'.
static void work(const Cluster *c, const Training *t, Model *m, double *loss, Trajectory *got) {
    worker_pull(c, m);
    for (size_t step = 0; step < c->steps; step++) {
        loss[step] = worker_step(c, m, &t->data, t->sequences, step);
        if (!got) continue;
        snapshot_label(got->weights, page_text(got->run, " of step %zu", step));
        model_snapshot(m, got->weights, UNIT_WEIGHTS, NULL);
    }
}

Trajectory server_train(Run *run, const Cluster *c, const Training *t, ServerRecord *record) {
    Training updates = *t;
    if (record->log.line) updates.steps *= c->workers; // one update for every push
    Trajectory got = trajectory_new(run, &updates);
    Optimizer o = t->optimizer;
    Model *m = cluster_model(c, &t->model);
    double *loss = host_alloc(t->steps * sizeof *loss), start = 0;
    comm_all_reduce_doubles(c->world, &start, 1); // a common start for all ranks
    comm_ledger_reset(c->world);
    record->log.begin = clock_now();
    picture_begin(run, MEM_ACTIVATIONS);
    clock_set_one_port(record->one_port && cluster_serves(c));
    if (cluster_serves(c)) {
        Inbox in = inbox_new(c, m);
        optimizer_allocate(&o, m);
        serve(c, m, &o, &in, &record->log, &got);
        record->seen = measured_now(c->world);
        inbox_free(&in);
    } else {
        work(c, t, m, loss, record->log.line ? NULL : &got);
        record->seen = measured_now(c->world);
    }
    clock_set_one_port(false);
    picture_end(run);
    record->seen.last = picture_timing(run);
    tell(&record->log, c, &got, loss);
    model_free(m);
    free(loss);
    return got;
}

// ---------------------------------------------------------------- losses on a text

enum { LAST = 10 }; // last pushes of a worker, whose losses are averaged

// Of each worker's pushes that had arrived at `time`, takes the last LAST pushes and averages their
// losses. Returns the sum of these averages over the workers, because a push has only its shard's
// part of the batch's loss. A synchronous step counts as one push, with the loss of all workers.
static double loss_at(const Trajectory *got, const Cluster *c, const ServerRecord *r, double time) {
    size_t *pushes = host_alloc(c->workers * sizeof *pushes);
    double loss = 0;
    for (size_t v = got->steps; v-- > 0;) {
        const Served *push = r->log.line ? &r->log.line[v] : NULL;
        const double step_ends = (double)r->seen.last.step * (double)(v + 1) / SERVER_LONG;
        const double arrived = push ? (double)(push->arrival - r->log.begin) : step_ends;
        const size_t worker = push ? push->worker : 0;
        if (arrived <= time && pushes[worker]++ < LAST) loss += got->loss[v] / LAST;
    }
    free(pushes);
    return loss;
}

ServerLosses server_losses(Run *run, const Cluster *c, size_t staleness) {
    Training text = text_training(run, SERVER_LONG, 16, 0.15);
    Cluster cluster = *c;
    ServerLosses loss;
    cluster.steps = SERVER_LONG;
    for (size_t rule = 0; rule < SERVER_RULES; rule++) {
        ServerRecord record = { 0 };
        if (rule > 0)
            record.log =
                server_log_new(c->workers, SERVER_LONG, rule == 1 ? staleness : SERVER_LONG);
        Trajectory got = server_train(run, &cluster, &text, &record);
        if (rule == 0) loss.took = (double)record.seen.last.step;
        loss.half[rule] = loss_at(&got, c, &record, loss.took / 2);
        loss.end[rule] = loss_at(&got, c, &record, INFINITY);
        free(record.log.line);
        trajectory_free(&got);
    }
    data_free(&text.data);
    return loss;
}
