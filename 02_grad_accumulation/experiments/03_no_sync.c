// One all-reduce per step, one after every micro-batch, and buckets during the last backward: the
// same gradients; calls, bytes and times differ.
#include "01_data_parallel/experiments/experiments.h"
#include "02_grad_accumulation/accumulation.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// of 4 ranks two have 7 sequences, in 3 + 2 + 2, and two have 6
enum { SEQUENCES = 26, STEPS = 3 };
enum { BUCKET = 1 << 13 };                     // bytes at which a bucket is closed
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// The training: calls and bytes of all steps; buffers; of the last step the peak of activations,
// and its times.
typedef struct {
    size_t calls, bytes, parameters, gradients, optimizer, activations;
    Timing last;
} Measured;

// ---------------------------------------------------------------- three kinds of step

// Only the forgetful step needs a second gradient buffer.
typedef struct { Replica replica; Tensor sum; } Twins;

static StepResult no_sync(void *twins, Model *model, Optimizer *o, const Training *t,
                          const Batch *batch) {
    Twins *r = twins;
    return no_sync_step(&r->replica, model, o, batch, t->micro_batches);
}
static StepResult overlapped(void *twins, Model *model, Optimizer *o, const Training *t,
                             const Batch *batch) {
    Twins *r = twins;
    return overlapped_step(&r->replica, model, o, batch, t->micro_batches);
}
// The forgetful twin: every micro-batch is a little step of chapter 01, and the reduced gradient is
// added in a second buffer. Reducing the running sum instead would count the earlier micro-batches
// N times more: they are summed already.
static StepResult forgetful(void *twins, Model *model, Optimizer *o, const Training *t,
                            const Batch *batch) {
    Twins *r = twins;
    double loss = 0;
    tensor_fill(r->sum, 0);
    for (size_t k = 0; k < t->micro_batches; k++) {
        model_zero_gradients(model);
        loss += model_forward_backward(model, &batch[k]);
        model_fold_tied(model);
        data_parallel_all_reduce(r->replica.dp, model);        // m times a step
        op_add(r->sum, r->sum, model->g);
    }
    tensor_copy(model->g, r->sum);
    return replica_update(model, o, loss, batch->token_weight);
}
// For the picture: a step of each kind.
static StepResult one_after_the_other(void *twins, Model *model, Optimizer *o, const Training *t,
                                      const Batch *batch) {
    no_sync(twins, model, o, t, batch);
    forgetful(twins, model, o, t, batch);
    return overlapped(twins, model, o, t, batch);
}

static Trajectory train(Run *run, Comm *dp, const Training *t, Step *step, Measured *seen) {
    Trajectory c = trajectory_new(run, t);
    Model *model = model_describe(&t->model, model_layers(&t->model));
    model_allocate(model);                     // functions of the seed: the same weights everywhere
    Twins r = { .replica = { dp, buckets_new(model, dp, BUCKET) } };
    if (step == forgetful || step == one_after_the_other)
        r.sum = tensor_new(&model->gradients, 1, model->size);
    comm_ledger_reset(dp);
    training_run(&c, model, t, dp->size, dp->rank, step, &r);
    *seen = (Measured){ dp->ledger[COMM_ALL_REDUCE].calls,
                        comm_bytes_sent(dp),
                        memory_now(MEM_PARAMETERS),
                        memory_now(MEM_GRADIENTS),
                        memory_now(MEM_OPTIMIZER),
                        memory_peak(MEM_ACTIVATIONS),
                        picture_timing(run) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: every rank's part of it
    buckets_free(r.replica.buckets);
    model_free(model);
    return c;
}

// ---------------------------------------------------------------- what it must cost

// Micro-batch k of rank r: the batch is cut in N shards, and each shard in m.
static size_t micro_batch_size(const Training *t, size_t N, size_t r, size_t k) {
    return part_size(part_size(t->sequences, N, r), t->micro_batches, k);
}

// Its forward and backward, in ps.
static double computing(const Training *t, size_t N, size_t r, size_t k) {
    return work_model(&t->model, micro_batch_size(t, N, r, k)).time;
}

// Before its last micro-batch a rank computes all the others, and waits for nobody.
static BucketCosts forecast(const Training *t, size_t bucket, size_t N) {
    size_t m = t->micro_batches;
    LastBatch *batch = host_alloc(N * sizeof *batch);
    for (size_t r = 0; r < N; r++) {
        batch[r].sequences = micro_batch_size(t, N, r, m - 1);
        for (size_t k = 0; k + 1 < m; k++) batch[r].begin += computing(t, N, r, k);
    }
    BucketCosts costs = bucket_costs(&t->model, bucket, N, batch);
    free(batch);
    return costs;
}

// A step under the simulated clock. An all-reduce waits for the largest micro-batch, which is
// always rank 0's, and nothing hides it.
static void time_costs(Run *run, const Training *t, const BucketCosts *f, const Timing *once,
                       const Timing *forgetful, const Timing *early) {
    size_t N = run->world->size, m = t->micro_batches, Psi = config_parameters(&t->model);
    // 2 (N-1) alpha + bytes / beta
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, sizeof(real));
    double slowest = 0;
    for (size_t k = 0; k < m; k++) slowest += computing(t, N, 0, k);
    check_cost(run, "no-sync.exposed", "no_sync: exposed, all ranks", "ps",
               formula((double)N * ring), NOT_PREDICTED, (double)once->exposed);
    check_cost(run, "forgetful.exposed", "forgetful: exposed (m times)", "ps",
               formula((double)(N * m) * ring), NOT_PREDICTED, (double)forgetful->exposed);
    check_cost(run, "no-sync.step", "no_sync: step", "ps", formula(slowest + ring), NOT_PREDICTED,
               (double)once->step);
    check_cost(run, "forgetful.step", "forgetful: step", "ps", formula(slowest + (double)m * ring),
               NOT_PREDICTED, (double)forgetful->step);
    check_cost(run, "overlapped.exposed", "overlapped: exposed, all ranks", "ps", NOT_PREDICTED,
               played(f->exposed), (double)early->exposed);
    check_cost(run, "overlapped.hidden", "overlapped: hidden, all ranks", "ps", NOT_PREDICTED,
               played(f->hidden), (double)early->hidden);
    check_cost(run, "overlapped.step", "overlapped: step", "ps", NOT_PREDICTED, played(f->step),
               (double)early->step);
}

// The page's table. Communication is the mean of the ranks.
static void show(Run *run, size_t steps, const Timing *const way[3]) {
    char exposed[3][32], hidden[3][32], calls[48], bytes[48];
    const char *const columns[] = { "no_sync", "forgetful", "overlapped", NULL };
    double N = (double)run->world->size;
    for (size_t i = 0; i < 3; i++) {
        snprintf(exposed[i], sizeof exposed[i], "=%.2f ms", (double)way[i]->exposed / N / 1e9);
        snprintf(hidden[i], sizeof hidden[i], "=%.2f ms", (double)way[i]->hidden / N / 1e9);
    }
    snprintf(calls, sizeof calls, "all-reduces, %zu steps", steps);
    snprintf(bytes, sizeof bytes, "sent per rank, %zu steps", steps);
    const Result rows[] = {
        { calls,
          "per step: 1; m; a call per bucket",
          { "no-sync.calls", "forgetful.calls", "overlapped.calls" } },
        { bytes,
          "2(N-1)/N Psi e per step; m times that",
          { "no-sync.sent", "forgetful.sent", "overlapped.sent" } },
        { "gradient buffers",
          "Psi + wte; 2 Psi + wte",
          { "no-sync.gradients", "forgetful.gradients", "overlapped.gradients" } },
        { clock_config()->simulated ? "step" : NULL,
          "3F + R; 3F + mR; 3F + R - hidden (rank 0)",
          { "no-sync.step", "forgetful.step", "overlapped.step" } },
        { "exposed, mean of ranks", "R; mR; R - hidden", { exposed[0], exposed[1], exposed[2] } },
        { "hidden, mean of ranks",
          "in the last backward only",
          { hidden[0], hidden[1], hidden[2] } },
        { 0 }
    };
    results(run, columns, rows);
}

// The three trainings: one reduction per step, one after every micro-batch, and one in buckets of
// `bucket` bytes during the last backward.
static void costs(Run *run, const Training *t, size_t bucket, const Measured *once,
                  const Measured *forgetful, const Measured *early) {
    const ModelConfig *c = &t->model;
    size_t V = c->vocab, T = c->context, C = c->width, e = sizeof(real), steps = t->steps,
           m = t->micro_batches;
    size_t N = run->world->size, Psi = config_parameters(c);
    // one all-reduce of the gradient, per rank
    double ring = ring_bytes(ALL_REDUCE_PASSES, N, Psi, e);
    size_t largest = micro_batch_size(t, N, run->world->rank, 0);
    BucketCosts f = forecast(t, bucket, N);
    check_cost(run, "no-sync.calls", "no_sync: all-reduces, 3 steps", "calls",
               formula((double)steps), NOT_PREDICTED, (double)once->calls);
    check_cost(run, "no-sync.sent", "no_sync: sent, 3 steps (no m)", "bytes",
               formula((double)steps * ring), NOT_PREDICTED, (double)once->bytes);
    check_cost(run, "forgetful.calls", "forgetful: all-reduces, 3 steps", "calls",
               formula((double)(steps * m)), NOT_PREDICTED, (double)forgetful->calls);
    check_cost(run, "forgetful.sent", "forgetful: sent, 3 steps (m times)", "bytes",
               formula((double)(steps * m) * ring), NOT_PREDICTED, (double)forgetful->bytes);
    check_cost(run, "overlapped.calls", "overlapped: all-reduces, 3 steps", "calls",
               formula((double)(steps * f.buckets)), NOT_PREDICTED, (double)early->calls);
    check_cost(run, "overlapped.sent", "overlapped: sent, 3 steps (no m)", "bytes",
               formula((double)steps * f.bytes), NOT_PREDICTED, (double)early->bytes);
    check_cost(run, "weights", "parameters", "bytes", formula((double)(Psi * e)), NOT_PREDICTED,
               (double)once->parameters);
    check_cost(run, "no-sync.gradients", "no_sync: gradients (wte twice)", "bytes",
               formula((double)((Psi + V * C) * e)), NOT_PREDICTED, (double)once->gradients);
    check_cost(run, "overlapped.gradients", "overlapped: gradients (wte twice)", "bytes",
               formula((double)((Psi + V * C) * e)), NOT_PREDICTED, (double)early->gradients);
    check_cost(run, "forgetful.gradients", "forgetful: gradients, and the sum", "bytes",
               formula((double)((2 * Psi + V * C) * e)), NOT_PREDICTED,
               (double)forgetful->gradients);
    check_cost(run, "moments", "AdamW's m and v", "bytes", formula((double)(2 * Psi * e)),
               NOT_PREDICTED, (double)once->optimizer);
    check_cost(run, "activations", "activations, peak", "bytes",
               formula((double)(largest * T * kept_model(c) * e)), NOT_PREDICTED,
               (double)once->activations);
    if (clock_config()->simulated)
        time_costs(run, t, &f, &once->last, &forgetful->last, &early->last);
    const Timing *const way[] = { &once->last, &forgetful->last, &early->last };
    show(run, steps, way);
}

// ---------------------------------------------------------------- the trainings

static void accumulation_on_ranks(Run *run) {
    size_t n = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(m >= 1 && m <= SEQUENCES,
            "--micro-batches must be from 1 to %d, the number of sequences", SEQUENCES);
    Training t = { .model = tiny,
                   .data = data_synthetic(tiny.vocab, tiny.context, run->seed),
                   .steps = STEPS,
                   .sequences = SEQUENCES,
                   .micro_batches = m,
                   .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    Measured once_a_step, every_time, early, all;
    t.model.seed = run->seed;
    say_detail(run, "%d sequences on %zu ranks in %zu micro-batches each; rank 0:", SEQUENCES, n,
               m);
    for (size_t k = 0; k < m; k++) {
        Range r = training_micro_batch(&t, n, 0, k);
        say_detail(run, "    micro-batch %zu: %zu sequences, %zu tokens in step 0\n", k,
                   range_size(r), data_count(&t.data, 0, r.lo, range_size(r)));
    }
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Training at_once = t;
        at_once.micro_batches = 1;
        Trajectory got = train(run, run->world, &t, no_sync, &once_a_step);
        Trajectory often = train(run, run->world, &t, forgetful, &every_time);
        Trajectory buckets = train(run, run->world, &t, overlapped, &early);
        // One process that accumulates each replica's micro-batches from zero and then adds the
        // replicas in rank order gets the same bits. Accumulating all n*m micro-batches in one row
        // would group the sum in another way.
        Trajectory whole = training_unsplit(run, &at_once, 1),
                   ordered = training_unsplit(run, &t, n);
        training_compare(run, "no_sync = at once", &got, &whole, LIMIT_ROUNDING);
        training_compare(run, "no_sync = replicas in order", &got, &ordered, every_bit(run));
        // Right numbers, too: only the costs tell the two apart.
        training_compare(run, "forgetful = at once", &often, &whole, LIMIT_ROUNDING);
        training_compare_tensors(run, "overlapped = no_sync", &buckets, &got, every_bit(run));
        bool alike = true;
        for (size_t step = 0; step < STEPS; step++)
            alike = alike &&
                    fabs(buckets.loss[step] - got.loss[step]) <= every_bit(run) * got.loss[step] &&
                    fabs(buckets.norm[step] - got.norm[step]) <= every_bit(run) * got.norm[step];
        check_true(run, i ? "AdamW: overlapped = no_sync" : "SGD: overlapped = no_sync",
                   "loss and norm of every step", alike);
        trajectory_free(&got);
        trajectory_free(&often);
        trajectory_free(&buckets);
        trajectory_free(&whole);
        trajectory_free(&ordered);
    }
    Training once = t;
    once.steps = 1;
    Trajectory drawn = train(run, run->world, &once, one_after_the_other, &all);
    trajectory_free(&drawn);
    say(run, "All-reduce: after the last micro-batch (no_sync), after every one (forgetful),\n"
             "or in buckets during the last backward (overlapped).");
    picture_show(run, "a step of no_sync, of forgetful, of overlapped", PICTURE_CHART);
    const Timing *last[] = { &once_a_step.last, &every_time.last, &early.last };
    static const char *const name[] = { "no_sync", "forgetful", "overlapped" };
    for (size_t i = 0; i < 3; i++)
        if (option_flag(run, "verbose")) {
            say(run, "%s:", name[i]);
            picture_summary(run, last[i]);
        }
    costs(run, &t, BUCKET, &once_a_step, &every_time, &early);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "pieces in which a replica takes its part, 1 to 26" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(accumulation_on_ranks, options);
