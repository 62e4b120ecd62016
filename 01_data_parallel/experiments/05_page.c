// 05_page.c: see 05_page.h.
#include "01_data_parallel/experiments/05_page.h"
#include <stdio.h>
#include <stdlib.h>

enum { LONG = 40, LAST = 10, SHARED = 16, WAYS = 3 };      // steps; of which the last are averaged; sequences of a step

// Nats a byte. half: of the last LAST n pushes that had arrived at a moment; end: of the last LAST steps of every
// worker, which are of the same batches in every training.
typedef struct { double half, end; } Losses;

// Of a push: its share of the loss is made a mean of its own tokens.
static Losses losses_of(const Trajectory *got, const Cluster *c, const Log *log, double took, double moment) {
    Losses mean = {0};
    size_t n = log->line ? c->workers : 1, arrived = 0;
    size_t *done = (size_t *)host_alloc(n * sizeof *done);
    for (size_t v = 0; v < got->steps; v++) {
        double at = log->line ? (double)(log->line[v].arrival - log->begin) : took * (double)(v + 1) / LONG;
        arrived += at <= moment;
    }
    for (size_t v = 0; v < got->steps; v++) {
        size_t w = log->line ? log->line[v].worker : 0;
        double own = log->line ? (double)SHARED / (double)range_size(shard_range(SHARED, n, w)) : 1;
        if (v < arrived && v + LAST * n >= arrived) mean.half += got->loss[v] * own / (double)(LAST * n);
        if (done[w]++ >= LONG - LAST) mean.end += got->loss[v] / LAST;
    }
    free(done);
    return mean;
}

static void train_on_text(Run *run, const Cluster *c, const Training *t, size_t staleness, ServerTraining *train,
                          Losses loss[WAYS], double *moment) {
    static const ModelConfig reader = { .layers = 1, .width = 32, .heads = 2, .context = 16, .vocab = 256 };
    Training text = { .model = reader, .steps = LONG, .sequences = SHARED, .micro_batches = 1,
                      .optimizer = sgd(0.15) };
    Cluster cluster = *c;
    cluster.steps = LONG;
    text.model.seed = t->model.seed;
    text.data = training_text(run, option_text(run, "data"), NULL, reader.vocab, reader.context, SHARED);
    for (size_t way = 0; way < WAYS; way++) {
        Log log = {0};
        Picoseconds took;
        if (way > 0) log = log_new(c->workers, LONG, way == 1 ? staleness : LONG);
        Trajectory got = train(run, &cluster, &text, &log, &took);
        if (way == 0) *moment = (double)took / 2;
        loss[way] = losses_of(&got, c, &log, (double)took, *moment);
        log_free(&log);
        trajectory_free(&got);
    }
    data_free(&text.data);
}

void server_results(Run *run, const Cluster *c, const Training *t, const Log *log[2], Picoseconds took,
                    ServerTraining *train) {
    typedef char Cell[64];
    Cell pushes[WAYS], ahead[WAYS] = { "=0" }, behind[WAYS] = { "=0" }, half[WAYS], end[WAYS], what[2];
    Losses loss[WAYS];
    double moment;
    train_on_text(run, c, t, log[0]->staleness, train, loss, &moment);
    snprintf(pushes[0], sizeof *pushes, "=%.3f", (double)(c->steps * c->workers) * 1e9 / (double)took);
    for (size_t way = 0; way < WAYS; way++) {
        snprintf(half[way], sizeof *half, "=%.2f", loss[way].half);
        snprintf(end[way], sizeof *end, "=%.2f", loss[way].end);
        if (way == 0) continue;
        LogSeen seen = log_look(log[way - 1]);
        snprintf(pushes[way], sizeof *pushes, "=%.3f", seen.pushes);
        snprintf(ahead[way], sizeof *ahead, "=%zu", seen.ahead);
        snprintf(behind[way], sizeof *behind, "=%zu", seen.lag);
    }
    snprintf(what[0], sizeof *what, "loss on text after %.0f ms", moment * 1e-9);
    snprintf(what[1], sizeof *what, "and after %d steps of every worker", LONG);
    results(run, (const char *const[]){ "synchronous", log[0]->name, "no bound", NULL }, (const Result[]){
        { "pushes a ms, all workers", "sync.: n/(max t_w + 2c)", { pushes[0], pushes[1], pushes[2] } },
        { "steps ahead of the slowest, most", "bound: s", { ahead[0], ahead[1], ahead[2] } },
        { "age of a gradient, versions, most", "bound: (n-1)(2s+1)", { behind[0], behind[1], behind[2] } },
        { what[0], NULL, { half[0], half[1], half[2] } },
        { what[1], NULL, { end[0], end[1], end[2] } },
        {0} });
}
