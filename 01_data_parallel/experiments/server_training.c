// server_training.c: a training with servers and workers, and a record of its weights, losses,
// messages, memory and times (experiments.h).
#include "01_data_parallel/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// A server's record, which only the comparison needs. For every version of the server's piece it
// holds the gradient that was applied, the new weights, and the gradient's squares per update and
// tensor.
typedef struct {
    Trajectory *got;
    double *squares;
} Notes;
static void notes_version(Notes *notes, size_t version, const Model *m) {
    trajectory_record(notes->got, version, m, 0, 0);
    model_grad_squares(m, notes->squares + version * config_tensors(&m->config));
}

// Gives every rank server 0's log, the loss of each update (from the workers) and the norms (from
// the servers' squares). Only the comparison needs them.
static void tell(ServerLog *log, const Cluster *c, Notes *notes, const double *loss,
                 size_t tensors) {
    Trajectory *got = notes->got;
    size_t updates = got->steps, seen = 0;
    if (log->line) side_broadcast(log->line, updates * sizeof *log->line);
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
    Progress p;
    if (log->line) p = progress_new(c, in);
    for (size_t version = 0; version < notes->got->steps; version++) {
        if (log->line) log->line[version] = server_next(c, m, o, in, &p, log->staleness);
        else server_step(c, m, o, in);
        notes_version(notes, version, m);
    }
    if (log->line) progress_free(&p);
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

Trajectory server_train(Run *run, const Cluster *c, const Training *t, ServerRecord *record) {
    Training updates = *t;
    if (record->log.line) updates.steps *= c->workers; // one for every push
    Trajectory got = trajectory_new(run, &updates);
    Optimizer o = t->optimizer;
    Model *m = cluster_model(c, &t->model);
    Notes notes = { &got,
                    host_alloc(updates.steps * config_tensors(&t->model) * sizeof *notes.squares) };
    double *loss = host_alloc(t->steps * sizeof *loss);
    record->last = snapshot_new(run);
    comm_all_reduce_doubles(c->world, notes.squares, 1); // a barrier; the sum is not used
    comm_ledger_reset(c->world);
    record->log.begin = clock_now();
    picture_begin(run, MEM_ACTIVATIONS);
    clock_set_one_port(record->one_port && cluster_serves(c));
    if (cluster_serves(c)) {
        Inbox in = inbox_new(c, m);
        optimizer_allocate(&o, m);
        serve(c, m, &o, &in, &record->log, &notes);
        model_snapshot(m, record->last, UNIT_WEIGHTS, NULL);
        record->seen = measured_now(c->world);
        inbox_free(&in);
    } else {
        work(c, t, m, loss, record->log.line ? NULL : &got);
        record->seen = measured_now(c->world);
    }
    clock_set_one_port(false);
    picture_end(run);
    record->seen.last = picture_timing(run);
    tell(&record->log, c, &notes, loss, config_tensors(&t->model));
    model_free(m);
    free(notes.squares);
    free(loss);
    return got;
}

void server_record_free(ServerRecord *record) {
    free(record->log.line);
    snapshot_free(record->last);
}
