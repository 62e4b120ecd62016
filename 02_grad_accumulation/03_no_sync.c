// ranks: 4
// level: core
// question: When data-parallel ranks also accumulate, when must they talk, and what does it cost to talk too often?
// vary: SEQUENCES 11..30, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// 26 sequences go to N replicas, and each replica takes its part in m micro-batches (--micro-batches, default 3).
// Backward adds to the local gradient and nobody speaks until the last micro-batch is done; then there is one
// all-reduce, as in chapter 01. PyTorch calls the silence no_sync. The forgetful twin reduces after every micro-batch:
// its numbers are right, its bill is m times as long. The third way is DDP's: the one reduction goes in buckets (01.04)
// while the last micro-batch's backward still runs.
#include "01_data_parallel/bucket_costs.h"
#include "01_data_parallel/buckets.h"
#include "01_data_parallel/data_parallel.h"
#include "common/lesson/training.h"
#include "common/model/formulas.h"
#include "common/lesson/picture.h"
#include <stdlib.h>

// ---------------------------------------------------------------- data and sizes

enum { SEQUENCES = 26, STEPS = 3 };            // of 4 ranks two have 7 sequences, in 3 + 2 + 2, and two have 6
enum { BUCKET = 1 << 13 };                     // bytes at which a bucket is closed
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// ---------------------------------------------------------------- one step, cut where the ranks must talk

// One replica. `sum` is a second gradient buffer, which only the forgetful twin needs. As long as buckets->sync is
// false, the buckets are asleep.
typedef struct { Comm *dp; Buckets *buckets; Tensor sum; } Replica;

// The whole batch's gradient is here, alike on every rank. Of the loss only my tokens' part is; as in the gradient, a
// token weighs 1 / (counted tokens of all 26 sequences).
static StepResult update(Model *model, Optimizer *o, double loss, double token_weight) {
    double norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, 1);
    return (StepResult){ loss * token_weight, norm };
}

// Backward adds to the local gradient, m times, and not a word is said. Then everybody speaks once.
static StepResult no_sync(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Replica *r = replica;
    double loss = 0;
    model_zero_gradients(model);
    // EXERCISE 02.03a (3 points): talk once. Walk all t->micro_batches micro-batches forward and backward, add up their
    // losses, and make model->g the whole batch's gradient on every rank with one all-reduce. Mind the two gradients of
    // the tied table.
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(model, &mine[k]);
    model_fold_tied(model);
    data_parallel_all_reduce(r->dp, model);    // once a step, after the last micro-batch: 2(N-1)/N Psi, whatever m is
    // END
    return update(model, o, loss, mine->token_weight);
}

// Every micro-batch is a little step of chapter 01; what comes back is added in a second buffer. Reducing the running
// sum instead would count the earlier micro-batches again, N times: they are everybody's already.
static StepResult forgetful(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Replica *r = replica;
    double loss = 0;
    tensor_fill(r->sum, 0);
    for (size_t k = 0; k < t->micro_batches; k++) {
        model_zero_gradients(model);
        loss += model_forward_backward(model, &mine[k]);
        model_fold_tied(model);
        data_parallel_all_reduce(r->dp, model);            // m times a step
        op_add(r->sum, r->sum, model->g);
    }
    tensor_copy(model->g, r->sum);
    return update(model, o, loss, mine->token_weight);
}

// no_sync for all micro-batches but the last, forward AND backward: whether a backward will reduce is settled when its
// forward begins. The last one starts the all-reduces on its way.
static StepResult overlapped(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Replica *r = replica;
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < t->micro_batches; k++) {
        r->buckets->sync = k + 1 == t->micro_batches;
        loss += model_forward_backward(model, &mine[k]);
    }
    buckets_wait(r->buckets);
    r->buckets->sync = false;
    return update(model, o, loss, mine->token_weight);
}

// For the picture: a step of each kind.
static StepResult one_after_the_other(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    no_sync(replica, model, o, t, mine);
    forgetful(replica, model, o, t, mine);
    return overlapped(replica, model, o, t, mine);
}

// ---------------------------------------------------------------- training

typedef struct {
    size_t calls, bytes;                       // all-reduces of the training; all it sent
    size_t parameters, gradients, optimizer, activations;          // buffers; the peak of the last step
    Timing last;                               // the last step's
} Measured;

static Trajectory train(Run *run, Comm *dp, const Training *t, Step *step, Measured *seen) {
    Trajectory c = trajectory_new(run, t);
    Model *model = model_describe(&t->model, model_layers(&t->model));
    model_allocate(model);                     // functions of the seed: the same weights everywhere
    Replica r = { .dp = dp, .buckets = buckets_new(model, dp, BUCKET) };
    if (step == forgetful || step == one_after_the_other) r.sum = tensor_new(&model->gradients, 1, model->size);
    comm_ledger_reset(dp);
    training_run(&c, model, t, dp->size, dp->rank, step, &r);
    *seen = (Measured){ dp->ledger[COMM_ALL_REDUCE].calls, comm_bytes_sent(dp),
                        memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
                        memory_peak(MEM_ACTIVATIONS), picture_timing(run) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: every rank's part of it
    buckets_free(r.buckets);
    model_free(model);
    return c;
}

// ---------------------------------------------------------------- the predictions

// Micro-batch k of rank r: the batch is cut in N shards, and each shard in m.
static size_t micro_batch_size(size_t N, size_t r, size_t m, size_t k) {
    return part_size(part_size(SEQUENCES, N, r), m, k);
}

// Its forward and backward, in ps.
static double computing(size_t N, size_t r, size_t m, size_t k) {
    return work_model(&tiny, micro_batch_size(N, r, m, k)).time;
}

// Before its last micro-batch a rank computes all the others, and waits for nobody.
static BucketCosts forecast(size_t N, size_t m) {
    LastBatch *batch = host_alloc(N * sizeof *batch);
    for (size_t r = 0; r < N; r++) {
        batch[r].sequences = micro_batch_size(N, r, m, m - 1);
        for (size_t k = 0; k + 1 < m; k++) batch[r].begin += computing(N, r, m, k);
    }
    BucketCosts costs = bucket_costs(&tiny, BUCKET, N, batch);
    free(batch);
    return costs;
}

static void predict(Run *run, const Measured *silent, const Measured *talkative, const Measured *early, size_t m) {
    size_t V = tiny.vocab, T = tiny.context, C = tiny.width, e = sizeof(real);
    size_t N = run->world->size, Psi = config_parameters(&tiny);
    double ring = ring_bytes(ALL_REDUCE_PASSES, N, Psi, e);            // one all-reduce of the gradient, per rank
    // My largest micro-batch; what a token keeps is listed in 02_accumulate.
    size_t largest = micro_batch_size(N, run->world->rank, m, 0);
    cost(run, "no_sync: all-reduces, 3 steps", "calls", STEPS, (double)silent->calls);
    cost(run, "no_sync: sent, 3 steps (no m)", "bytes", STEPS * ring, (double)silent->bytes);
    cost(run, "forgetful: all-reduces, 3 steps", "calls", (double)(STEPS * m), (double)talkative->calls);
    cost(run, "forgetful: sent, 3 steps (m times)", "bytes", (double)(STEPS * m) * ring, (double)talkative->bytes);
    BucketCosts f = forecast(N, m);
    cost(run, "overlapped: all-reduces, 3 steps", "calls", (double)(STEPS * f.buckets), (double)early->calls);
    cost(run, "overlapped: sent, 3 steps (no m)", "bytes", STEPS * f.bytes, (double)early->bytes);
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)silent->parameters);
    cost(run, "no_sync: gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)silent->gradients);
    cost(run, "overlapped: gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)early->gradients);
    cost(run, "forgetful: gradients, and the sum", "bytes", (double)((2 * Psi + V * C) * e),
         (double)talkative->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * Psi * e), (double)silent->optimizer);
    cost(run, "activations, peak", "bytes", (double)(largest * T * kept_model(&tiny) * e), (double)silent->activations);
}

// A step under the simulated clock. An all-reduce waits for the largest micro-batch, which is always rank 0's, and
// nothing hides it.
static void predict_time(Run *run, const Timing *silent, const Timing *talkative, const Timing *early, size_t m) {
    size_t N = run->world->size, Psi = config_parameters(&tiny);
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, sizeof(real));  // 2 (N-1) alpha + bytes / beta
    double slowest = 0;
    for (size_t k = 0; k < m; k++) slowest += computing(N, 0, m, k);
    if (!clock_config()->simulated) return;
    BucketCosts f = forecast(N, m);
    cost(run, "no_sync: exposed, all ranks", "ps", (double)N * ring, (double)silent->exposed);
    cost(run, "forgetful: exposed (m times)", "ps", (double)(N * m) * ring, (double)talkative->exposed);
    cost(run, "no_sync: step", "ps", slowest + ring, (double)silent->step);
    cost(run, "forgetful: step", "ps", slowest + (double)m * ring, (double)talkative->step);
    cost(run, "overlapped: exposed, all ranks", "ps", f.exposed, (double)early->exposed);
    cost(run, "overlapped: hidden, all ranks", "ps", f.hidden, (double)early->hidden);
    cost(run, "overlapped: step", "ps", f.step, (double)early->step);
}

static void accumulation_on_ranks(Run *run) {
    size_t n = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches must be from 1 to %d, the number of sequences", SEQUENCES);
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = m, .recorded = true, .watched = MEM_ACTIVATIONS };
    Measured silent, talkative, early, all;
    t.model.seed = run->seed;
    say(run, "%d sequences on %zu ranks in %zu micro-batches each; rank 0:", SEQUENCES, n, m);
    for (size_t k = 0; k < m; k++) {
        Range r = training_micro_batch(&t, n, 0, k);
        say(run, "    micro-batch %zu: %zu sequences, %zu tokens in step 0\n", k, range_size(r),
            data_count(&t.data, 0, r.lo, range_size(r)));
    }
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Training at_once = t;
        at_once.micro_batches = 1;
        Trajectory got = train(run, run->world, &t, no_sync, &silent);
        Trajectory often = train(run, run->world, &t, forgetful, &talkative);
        Trajectory buckets = train(run, run->world, &t, overlapped, &early);
        // One process that accumulates each replica's micro-batches from zero and then adds the replicas in rank order
        // gets the same bits. Accumulating all n*m micro-batches in one row would group the sum in another way.
        Trajectory whole = training_unsplit(run, &at_once, 1), ordered = training_unsplit(run, &t, n);
        training_compare(run, "no_sync = at once", &got, &whole, LIMIT_ROUNDING);
        training_compare(run, "no_sync = replicas in order", &got, &ordered, every_bit(run));
        // Right numbers, too: only the bill tells the two apart.
        training_compare(run, "forgetful = at once", &often, &whole, LIMIT_ROUNDING);
        training_compare_tensors(run, "overlapped = no_sync", &buckets, &got, every_bit(run));
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
    picture_show(run, "a step of no_sync, a forgetful one, an overlapped one", PICTURE_CHART);
    say(run, "no_sync:");
    picture_summary(run, &silent.last);
    say(run, "forgetful:");
    picture_summary(run, &talkative.last);
    say(run, "overlapped:");
    picture_summary(run, &early.last);
    predict(run, &silent, &talkative, &early, m);
    predict_time(run, &silent.last, &talkative.last, &early.last, m);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "pieces in which a replica takes its part, 1 to 26" },
    { "link", "NAME", "lesson", NULL },
    {0},
};
LESSON(accumulation_on_ranks, options);
