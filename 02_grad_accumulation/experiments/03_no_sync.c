// 03_no_sync.c (experiment): reduces accumulated gradients in three ways, which give the same
// gradients within rounding. no_sync has one all-reduce per step. forgetful has an all-reduce after
// every micro-batch, so each rank sends m times the bytes. overlapped has an all-reduce per bucket
// during the last backward.
#include "01_data_parallel/experiments/experiments.h"
#include "02_grad_accumulation/accumulation.h"

// On 4 ranks, ranks 0 and 1 have 7 sequences each, and ranks 2 and 3 have 6 each. With m = 3, ranks
// 0 and 1 have micro-batches of 3, 2 and 2 sequences, and ranks 2 and 3 micro-batches of 2.
enum { SEQUENCES = 26, STEPS = 3 };
enum { BUCKET = 1 << 13 }; // a bucket is closed when it has at least this many bytes
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// ---------------------------------------------------------------- three kinds of step

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
// Reduces the gradient of every micro-batch, as a program without no_sync does. A second buffer
// holds the sum of the reduced gradients. Reducing the running sum instead would add the earlier
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
enum { NO_SYNC, FORGETFUL, OVERLAPPED, KINDS };
static const struct {
    const char *id, *name;
    Step *step;
} kind[KINDS] = { { "no-sync", "no_sync", no_sync },
                  { "forgetful", "forgetful", forgetful },
                  { "overlapped", "overlapped", overlapped } };

// Makes one step of each kind, for the picture.
static StepResult one_after_the_other(void *replica, Model *model, Optimizer *o, const Training *t,
                                      const Batch *batch) {
    StepResult last = { 0 };
    for (size_t i = 0; i < KINDS; i++) last = kind[i].step(replica, model, o, t, batch);
    return last;
}

// ---------------------------------------------------------------- costs

// Returns the time in which rank 0 computes its micro-batches. No rank has more sequences than rank
// 0.
static double compute_time(const Training *t, size_t N) {
    const size_t shard = part_size(t->sequences, N, 0), m = t->micro_batches;
    double time = 0;
    for (size_t k = 0; k < m; k++) time += work_model(&t->model, part_size(shard, m, k)).time;
    return time;
}

static void costs(Run *run, const Training *t, const Measured way[KINDS]) {
    const ModelConfig *c = &t->model;
    const size_t N = run->world->size, e = gradient_bytes(c), Psi = config_parameters(c);
    const CutSizes whole = cut_sizes(c, 1, 0);
    const double m = t->micro_batches, sum = Psi * e, gradients = elements_gradients(&whole) * e;
    const BucketCosts f = bucket_costs(c, BUCKET, N, t->sequences, t->micro_batches);
    // `ring` is the bytes that a rank sends in one all-reduce, and R is its time. Each all-reduce
    // waits for the slowest rank. No rank has a larger micro-batch than rank 0.
    const double ring = ring_bytes(ALL_REDUCE_PASSES, N, Psi, e);
    const double R = ring_time(ALL_REDUCE_PASSES, N, Psi, e);
    const double compute = compute_time(t, N);
    const double calls[KINDS] = { 1, m, f.buckets }, bytes[KINDS] = { ring, m * ring, f.bytes };
    const double step[KINDS] = { compute + R, compute + m * R, f.step };
    const bool timed = clock_config()->simulated;
    for (size_t i = 0; i < KINDS; i++)
        check_costs(
            run, page_text(run, "%s.%%s", kind[i].id), page_text(run, "%s: %%s", kind[i].name),
            (CostRow[]){
                { "calls", "all-reduces, 3 steps", "calls", BY_FORMULA(t->steps * calls[i]),
                  way[i].reductions },
                { "sent", "sent, 3 steps", "bytes", BY_FORMULA(t->steps * bytes[i]), way[i].sent },
                { "gradients", i == FORGETFUL ? "gradients, and the sum" : "gradients (wte twice)",
                  "bytes", BY_FORMULA((i == FORGETFUL ? sum : 0) + gradients), way[i].gradients },
                // bucket_costs computes the step with buckets by a recurrence, so this time has no
                // formula.
                { timed ? "step" : NULL, "step", "ps",
                  i == OVERLAPPED ? NOT_PREDICTED : formula(step[i]), played(step[i]),
                  (double)way[i].last.step },
                { 0 } });
    const Timing *last = &way[OVERLAPPED].last;
    check_costs(run, "overlapped.%s", "overlapped: %s, all ranks",
                (CostRow[]){ { timed ? "exposed" : NULL, "exposed", "ps", BY_PLAY(f.exposed),
                               (double)last->exposed },
                             { "hidden", "hidden", "ps", BY_PLAY(f.hidden), (double)last->hidden },
                             { 0 } });
}

// ---------------------------------------------------------------- the page

static const char *step_text(Run *run, const char *id) {
    if (!clock_config()->simulated) return "";
    return page_text(run, ", and a step takes %s", cost_text(run, id));
}

static void show(Run *run, const Training *t, const Measured way[KINDS]) {
    const bool timed = clock_config()->simulated;
    const ModelConfig *c = &t->model;
    const size_t N = run->world->size;
    const double buckets = way[OVERLAPPED].reductions / t->steps;
    const double F = compute_time(t, N) / 3;
    const double R = ring_time(ALL_REDUCE_PASSES, N, config_parameters(c), gradient_bytes(c));
    say(run,
        "\nN ranks, m = %zu micro-batches, Psi parameters of e bytes, wte: the embedding table "
        "(two gradients).\nF: forward of rank 0's sequences (a backward takes 2F). R: one "
        "all-reduce of Psi. h: the time that\nbuckets save.%s%s\n",
        t->micro_batches,
        timed ? page_text(run, " Here F = %.2f ms, R = %.2f ms.", F / 1e9, R / 1e9) : "",
        uneven_shares(run, timed ? " " : "\n", SEQUENCES));
    results(run, (const char *const[]){ "no_sync", "forgetful", "overlapped", NULL },
            (const Result[]){
                { "all-reduces, 3 steps",
                  page_text(run, "per step: 1; forgetful: m; overlapped: %.0f", buckets),
                  { "no-sync.calls", "forgetful.calls", "overlapped.calls" } },
                { "sent per rank, 3 steps",
                  "2(N-1)/N Psi e per step; forgetful: x m",
                  { "no-sync.sent", "forgetful.sent", "overlapped.sent" } },
                { "gradient buffers",
                  "Psi + wte; forgetful: + Psi for the sum",
                  { "no-sync.gradients", "forgetful.gradients", "overlapped.gradients" } },
                { timed ? "step" : NULL,
                  "3F+R; forgetful: 3F+mR; overlapped: 3F+R-h",
                  { "no-sync.step", "forgetful.step", "overlapped.step" } },
                { 0 } });
    say_answer(run,
               "Once per step, after the last micro-batch. Then each rank sends %s in 3 steps%s. "
               "An all-reduce after every micro-batch gives the same gradient, but then a rank "
               "sends %s%s.",
               cost_text(run, "no-sync.sent"), step_text(run, "no-sync.step"),
               cost_text(run, "forgetful.sent"), step_text(run, "forgetful.step"));
    say_cost(run,
             "one all-reduce per step for any m. Buckets in the last backward hide a part of it%s, "
             "and need up to Psi elements of communication memory.",
             timed ? page_text(run, " (the step is h = %.2f ms shorter)",
                               (cost_value(run, "no-sync.step") -
                                cost_value(run, "overlapped.step")) /
                                   1e9)
                   : "");
    say_use_when(run, "data-parallel replicas accumulate and keep whole gradients. ZeRO-2 and 3 "
                      "(chapter 06) reduce after every micro-batch. FSDP is ZeRO-3 in PyTorch. "
                      "With its no_sync the ranks reduce once, but each rank keeps whole gradients "
                      "until then.");
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
        Trajectory got[KINDS], whole = training_unsplit(run, &at_once, 1);
        // One process accumulates the gradient of each replica's micro-batches from zero, and then
        // adds these gradients in rank order. With --reduce ordered the bits are equal, because the
        // sums have the same grouping.
        Trajectory ordered = training_unsplit(run, &t, n);
        for (size_t k = 0; k < KINDS; k++)
            got[k] = replica_train(run, &t, kind[k].step, BUCKET, &way[k]);
        training_compare(run, "no_sync = at once", &got[NO_SYNC], &whole, rounding_limit(run));
        training_compare(run, "no_sync = replicas in order", &got[NO_SYNC], &ordered,
                         exact_limit(run));
        // The gradient of `forgetful` is right, too. Only its costs differ.
        training_compare(run, "forgetful = at once", &got[FORGETFUL], &whole, rounding_limit(run));
        training_compare(run, "overlapped = no_sync", &got[OVERLAPPED], &got[NO_SYNC],
                         exact_limit(run));
        for (size_t k = 0; k < KINDS; k++) trajectory_free(&got[k]);
        trajectory_free(&whole);
        trajectory_free(&ordered);
    }
    Training once = t;
    once.steps = 1;
    Trajectory drawn = replica_train(run, &once, one_after_the_other, BUCKET, &other);
    trajectory_free(&drawn);
    say(run,
        "no_sync: one all-reduce per step, after the last micro-batch.\nforgetful: one after "
        "each micro-batch, as if no_sync were forgotten.\noverlapped: as no_sync, but in buckets "
        "(groups of tensors) that start during the last backward.");
    picture_show(run, "Three steps: no_sync, forgetful, overlapped", PICTURE_CHART);
    costs(run, &t, way);
    show(run, &t, way);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "number of micro-batches of each replica, 1 to 26" },
    { "link", "NAME[,NAME]", "slow", NULL },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(accumulation_on_ranks, options);
