// server_losses.c: measures the effect of staleness on the loss of a training on text
// (experiments.h).
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

enum { LAST = 10 }; // number of last pushes that are averaged

// Returns the mean loss of each worker's last LAST pushes that had arrived at a given time. A push
// has its shard's part of the batch's loss, so the workers' means are added.
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
