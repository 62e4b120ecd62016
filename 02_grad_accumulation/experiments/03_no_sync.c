// 03_no_sync.c (experiment): three ways to reduce accumulated gradients. One all-reduce per step,
// one after every micro-batch, and one per bucket during the last backward give the same gradients.
// Their calls, bytes and times differ.
#include "01_data_parallel/experiments/experiments.h"
#include "02_grad_accumulation/accumulation.h"
#include <math.h>
#include <stdlib.h>

// Of 4 ranks, ranks 0 and 1 have 7 sequences each, in micro-batches of 3, 2 and 2. Ranks 2 and 3
// have 6 sequences each, in micro-batches of 2.
enum { SEQUENCES = 26, STEPS = 3 };
enum { BUCKET = 1 << 13 }; // bytes at which a bucket is closed
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// ---------------------------------------------------------------- three kinds of step

enum { NO_SYNC, FORGETFUL, OVERLAPPED, KINDS };
static const char *const kind_name[KINDS] = { "no_sync", "forgetful", "overlapped" };

static StepResult no_sync(void *replica, Model *model, Optimizer *o, const Training *t,
                          const Batch *batch) {
    BucketReplica *r = replica;
    return no_sync_step(&(Replica){ r->dp, r->buckets }, model, o, batch, t->micro_batches);
}
static StepResult overlapped(void *replica, Model *model, Optimizer *o, const Training *t,
                             const Batch *batch) {
    BucketReplica *r = replica;
    return overlapped_step(&(Replica){ r->dp, r->buckets }, model, o, batch, t->micro_batches);
}
// Reduces the gradient of every micro-batch, as a program does that forgets no_sync. A second
// buffer adds the reduced gradients. Reducing the running sum instead would add the earlier
// micro-batches N times, because the sum has been reduced over the ranks already.
static StepResult forgetful(void *replica, Model *model, Optimizer *o, const Training *t,
                            const Batch *batch) {
    BucketReplica *r = replica;
    double loss = 0;
    if (!r->sum.data) r->sum = tensor_like(&model->gradients, model->g);
    tensor_fill(r->sum, 0);
    for (size_t k = 0; k < t->micro_batches; k++) {
        model_zero_gradients(model);
        loss += model_forward_backward(model, &batch[k]);
        model_fold_tied(model);
        data_parallel_all_reduce(r->dp, model); // m times per step
        op_add(r->sum, r->sum, model->g);
    }
    tensor_copy(model->g, r->sum);
    return replica_update(model, o, loss, batch->token_weight);
}
// Makes one step of each kind, for the picture.
static StepResult one_after_the_other(void *replica, Model *model, Optimizer *o, const Training *t,
                                      const Batch *batch) {
    no_sync(replica, model, o, t, batch);
    forgetful(replica, model, o, t, batch);
    return overlapped(replica, model, o, t, batch);
}

// ---------------------------------------------------------------- costs

// Returns the number of sequences in micro-batch k of rank r. The batch is cut in N shards, and
// each shard in m pieces.
static size_t micro_batch_size(const Training *t, size_t N, size_t r, size_t k) {
    return part_size(part_size(t->sequences, N, r), t->micro_batches, k);
}
static double compute_time(const Training *t, size_t N, size_t r, size_t k) {
    return work_model(&t->model, micro_batch_size(t, N, r, k)).time;
}

// Predicts the costs of overlapped_step. A rank computes all micro-batches but the last without
// waiting.
static BucketCosts overlapped_forecast(const Training *t, size_t bucket, size_t N) {
    size_t m = t->micro_batches;
    LastBatch *batch = host_alloc(N * sizeof *batch);
    for (size_t r = 0; r < N; r++) {
        batch[r].sequences = micro_batch_size(t, N, r, m - 1);
        for (size_t k = 0; k + 1 < m; k++) batch[r].begin += compute_time(t, N, r, k);
    }
    BucketCosts costs = bucket_costs(&t->model, bucket, N, batch);
    free(batch);
    return costs;
}

static void costs(Run *run, const Training *t, const Measured way[KINDS]) {
    static const char *const id[KINDS] = { "no-sync", "forgetful", "overlapped" };
    const ModelConfig *c = &t->model;
    size_t N = run->world->size, e = gradient_bytes(c), Psi = config_parameters(c);
    const CutSizes whole = cut_sizes(c, 1, 0);
    double m = t->micro_batches, sum = Psi * e, gradients = elements_gradients(&whole) * e;
    double ring = ring_bytes(ALL_REDUCE_PASSES, N, Psi, e); // of one all-reduce, per rank
    BucketCosts f = overlapped_forecast(t, BUCKET, N);
    const double calls[KINDS] = { 1, m, f.buckets }, bytes[KINDS] = { ring, m * ring, f.bytes };
    // Every all-reduce waits for the rank with the largest micro-batch, which is always rank 0.
    double passes = ring_time(ALL_REDUCE_PASSES, N, Psi, e), compute = 0;
    for (size_t k = 0; k < t->micro_batches; k++) compute += compute_time(t, N, 0, k);
    const double exposed[KINDS] = { N * passes, N * m * passes, f.exposed };
    const double step[KINDS] = { compute + passes, compute + m * passes, f.step };
    const bool timed = clock_config()->simulated;
    for (size_t i = 0; i < KINDS; i++) {
        const bool closed = i != OVERLAPPED; // the buckets' times follow from a recurrence
        const Predicted none = NOT_PREDICTED;
        const Timing *last = &way[i].last;
        check_costs(
            run, page_text(run, "%s.%%s", id[i]), page_text(run, "%s: %%s", kind_name[i]),
            (CostRow[]){
                { "calls", "all-reduces, 3 steps", "calls", BY_FORMULA(t->steps * calls[i]),
                  way[i].reductions },
                { "sent", "sent, 3 steps", "bytes", BY_FORMULA(t->steps * bytes[i]), way[i].sent },
                { "gradients", i == FORGETFUL ? "gradients, and the sum" : "gradients (wte twice)",
                  "bytes", BY_FORMULA((i == FORGETFUL ? sum : 0) + gradients), way[i].gradients },
                { timed ? "step" : NULL, "step", "ps", closed ? formula(step[i]) : none,
                  closed ? none : played(step[i]), last->step },
                { "exposed", "exposed, all ranks", "ps", closed ? formula(exposed[i]) : none,
                  closed ? none : played(exposed[i]), last->exposed },
                { closed ? NULL : "hidden", "hidden, all ranks", "ps", none, played(f.hidden),
                  last->hidden },
                { 0 } });
    }
}

// ---------------------------------------------------------------- the page

// Prints the page's table. Communication times are the mean of the ranks.
static void show(Run *run, size_t steps, const Measured way[KINDS]) {
    const char *exposed[KINDS], *hidden[KINDS];
    const double N = (double)run->world->size;
    for (size_t i = 0; i < KINDS; i++) {
        exposed[i] = page_text(run, "=%.2f ms", (double)way[i].last.exposed / N / 1e9);
        hidden[i] = page_text(run, "=%.2f ms", (double)way[i].last.hidden / N / 1e9);
    }
    const size_t buckets = (size_t)way[OVERLAPPED].reductions / steps;
    const Result rows[] = {
        { page_text(run, "all-reduces, %zu steps", steps),
          page_text(run, "per step: 1; forgetful: m; overlapped: %zu", buckets),
          { "no-sync.calls", "forgetful.calls", "overlapped.calls" } },
        { page_text(run, "sent per rank, %zu steps", steps),
          "2(N-1)/N Psi e per step; forgetful: x m",
          { "no-sync.sent", "forgetful.sent", "overlapped.sent" } },
        { "gradient buffers",
          "Psi + wte; forgetful: + Psi for the sum",
          { "no-sync.gradients", "forgetful.gradients", "overlapped.gradients" } },
        { clock_config()->simulated ? "step" : NULL,
          "3F + R - h; forgetful: 3F + mR",
          { "no-sync.step", "forgetful.step", "overlapped.step" } },
        { "exposed, mean of ranks",
          "R - hidden; forgetful: mR",
          { exposed[0], exposed[1], exposed[2] } },
        { "hidden, mean of ranks", "in the last backward", { hidden[0], hidden[1], hidden[2] } },
        { 0 }
    };
    say(run,
        "\nN ranks, m micro-batches, Psi parameters of e bytes, wte the embedding table. F: "
        "rank 0's forward\n(a backward takes 2F). R: one all-reduce. Exposed: communication "
        "while a rank does not compute;\nhidden: while it computes. h: the part of R that the "
        "slowest rank hides.%s\n",
        uneven_shares("\n", SEQUENCES, run->world->size).text);
    results(run, (const char *const[]){ "no_sync", "forgetful", "overlapped", NULL }, rows);
}

static void answer(Run *run, size_t micro_batches, const Measured way[KINDS]) {
    const double N = (double)run->world->size, hidden = (double)way[OVERLAPPED].last.hidden / N;
    const double exposed = (double)way[OVERLAPPED].last.exposed / N;
    const char *step = "";
    if (clock_config()->simulated)
        step = page_text(run, ", and a step takes %s instead of %s",
                         cost_text(run, "forgetful.step"), cost_text(run, "no-sync.step"));
    if (run->world->size == 1 || micro_batches == 1)
        say_answer(run,
                   "Once per step. With one rank or one micro-batch both ways send the same %s per "
                   "rank.",
                   cost_text(run, "no-sync.sent"));
    else
        say_answer(run,
                   "Once per step, after the last micro-batch. An all-reduce after every "
                   "micro-batch gives the same gradient, but sends %s per rank instead of %s%s.",
                   cost_text(run, "forgetful.sent"), cost_text(run, "no-sync.sent"), step);
    say_cost(run,
             "one all-reduce per step for any m. Buckets in the last backward hide %.2f of their "
             "%.2f ms (mean of the ranks), and need up to Psi elements of communication memory.",
             hidden / 1e9, (hidden + exposed) / 1e9);
    say_use_when(run, "data-parallel replicas accumulate and keep whole gradients. ZeRO-2 and 3 "
                      "reduce after every micro-batch. With FSDP's no_sync they reduce once, but "
                      "each rank keeps whole gradients until then.");
}

// ---------------------------------------------------------------- the trainings

static void accumulation_on_ranks(Run *run) {
    size_t n = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(m >= 1 && m <= SEQUENCES,
            "--micro-batches %zu: choose 1 to %d, because the batch has %d sequences", m, SEQUENCES,
            SEQUENCES);
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    t.micro_batches = m;
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    Measured way[KINDS], other;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Training at_once = t;
        at_once.micro_batches = 1;
        Trajectory got = replica_train(run, &t, no_sync, BUCKET, &way[NO_SYNC]);
        Trajectory often = replica_train(run, &t, forgetful, BUCKET, &way[FORGETFUL]);
        Trajectory buckets = replica_train(run, &t, overlapped, BUCKET, &way[OVERLAPPED]);
        Trajectory whole = training_unsplit(run, &at_once, 1);
        // One process accumulates each replica's micro-batches from zero, and then adds the
        // replicas in rank order. Its bits are equal, because its sums have the same grouping.
        Trajectory ordered = training_unsplit(run, &t, n);
        training_compare(run, "no_sync = at once", &got, &whole, rounding_limit(run));
        training_compare(run, "no_sync = replicas in order", &got, &ordered, exact_limit(run));
        // The forgetful gradient is right, too: only the costs differ.
        training_compare(run, "forgetful = at once", &often, &whole, rounding_limit(run));
        training_compare_tensors(run, "overlapped = no_sync", &buckets, &got, exact_limit(run));
        bool alike = true;
        for (size_t s = 0; s < STEPS; s++)
            alike = alike &&
                    fabs(buckets.loss[s] - got.loss[s]) <= exact_limit(run) * got.loss[s] &&
                    fabs(buckets.norm[s] - got.norm[s]) <= exact_limit(run) * got.norm[s];
        check_true(run, i ? "AdamW: overlapped = no_sync" : "SGD: overlapped = no_sync",
                   "loss and norm of every step", alike);
        Trajectory *all[] = { &got, &often, &buckets, &whole, &ordered };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) trajectory_free(all[k]);
    }
    Training once = t;
    once.steps = 1;
    Trajectory drawn = replica_train(run, &once, one_after_the_other, BUCKET, &other);
    trajectory_free(&drawn);
    say(run, "no_sync makes one all-reduce, after the last micro-batch; forgetful one after "
             "each micro-batch.\noverlapped makes one per bucket during the last backward.");
    picture_show(run, "Three steps: no_sync, forgetful, overlapped", PICTURE_CHART);
    costs(run, &t, way);
    show(run, t.steps, way);
    answer(run, m, way);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "number of micro-batches of each replica, 1 to 26" },
    { "link", "NAME[,NAME]", "slow", NULL },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(accumulation_on_ranks, options);
