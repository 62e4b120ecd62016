// server_training.c: runs a training with servers and workers, and records its weights, losses,
// messages, memory and times. Measures the effect of staleness on the loss of a training on text.
#include "01_data_parallel/experiments/experiments.h"
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

// Returns the loss of version `version` of the weights. Call on rank 0, after snapshot_join().
static double version_loss(Run *run, const Training *t, Snapshot *weights, size_t version) {
    Model *m = whole_model(&t->model); // version 0
    for (size_t i = 0; i < m->n_units && version > 0; i++) {
        const Unit *u = &m->units[i];
        for (size_t k = 0; k < u->n_params && !u->tied_to; k++) {
            const Param *p = &u->params[k];
            const char *name = page_text(run, "%s of step %zu", p->name, version - 1);
            tensor_upload(p->w, snapshot_values(weights, name));
        }
    }
    const double loss = text_loss(t, m);
    model_free(m);
    return loss;
}

// Returns the number of updates in the first half of the time of the synchronous training. All
// steps of this training take the same time.
static size_t updates_by(const ServerLog *log, double half) {
    if (!log->line) return SERVER_LONG / 2;
    size_t n = 0;
    while (n < log->workers * log->steps && (double)(log->line[n].arrival - log->begin) <= half)
        n++;
    return n;
}

// Trains on a text with one rule, and adds 1 / SERVER_SEEDS of the losses to *loss.
static void add_losses(Run *run, const Cluster *c, const Training *text, size_t staleness,
                       size_t rule, ServerLosses *loss) {
    ServerRecord record = { 0 };
    if (rule > 0) record.log = server_log_new(c->workers, SERVER_LONG, staleness);
    Trajectory got = server_train(run, c, text, &record);
    if (rule == 0) loss->took = (double)record.seen.last.step;
    snapshot_join(got.weights);
    ledger_pause();
    if (run->world->rank == 0) {
        const size_t half = updates_by(&record.log, loss->took / 2);
        loss->pushes[rule] = record.log.line ? half : half * c->workers;
        loss->half[rule] += version_loss(run, text, got.weights, half) / SERVER_SEEDS;
        loss->end[rule] += version_loss(run, text, got.weights, got.steps) / SERVER_SEEDS;
    }
    ledger_resume();
    free(record.log.line);
    trajectory_free(&got);
}

ServerLosses server_losses(Run *run, const Cluster *c, size_t staleness) {
    const size_t most[SERVER_RULES] = { 0, staleness, SERVER_LONG };
    Training text = text_training(run, SERVER_LONG, 16, 0.15);
    Cluster cluster = *c;
    cluster.steps = SERVER_LONG;
    ServerLosses loss = { 0 };
    for (size_t i = 0; i < SERVER_SEEDS * SERVER_RULES; i++) {
        progress(run, "training", i, SERVER_SEEDS * SERVER_RULES);
        text.model.seed = text.data.seed = run->seed + i / SERVER_RULES;
        add_losses(run, &cluster, &text, most[i % SERVER_RULES], i % SERVER_RULES, &loss);
    }
    progress(run, "training", SERVER_SEEDS * SERVER_RULES, SERVER_SEEDS * SERVER_RULES);
    data_free(&text.data);
    side_broadcast(&loss, sizeof loss);
    return loss;
}
