// ranks: 4
// level: core
// question: When data-parallel ranks also accumulate, when must they communicate, and what does too often cost?
// vary: SEQUENCES 11..30, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// 26 sequences go to N replicas, and each replica takes its part in m micro-batches (--micro-batches, default 3).
// Backward adds to the local gradient, without communication, until the last micro-batch is done; then there is one
// all-reduce, as in chapter 01. PyTorch calls this no_sync. A second way sends the same bytes while the last
// micro-batch's backward still runs: DDP's buckets (01.04). The forgetful twin of the experiment reduces after every
// micro-batch: its numbers are right, and it sends m times as much.
#include "01_data_parallel/data_parallel.h"
#include "02_grad_accumulation/experiments/03_costs.h"
#include "judge/frame/training.h"
#include "judge/draw/picture.h"
#include <math.h>

// ================================ the technique ================================

// One rank. It has all weights and one gradient buffer, model->g [Psi]. While buckets->sync is false, the buckets that
// are wrapped around the layers do nothing.
typedef struct { Comm *dp; Buckets *buckets; } Replica;

// After the reduction: every rank has the whole batch's gradient, the same bits, so all make the same update. The loss
// is that of my tokens only; in it as in the gradient a token weighs 1 / (counted tokens of all ranks' sequences).
static StepResult update(Model *model, Optimizer *o, double loss, double token_weight) {
    double norm = model_grad_norm(model, NULL);
    optimizer_step(o, model, 1);
    return (StepResult){ loss * token_weight, norm };
}

// A step. Backward adds to the local gradient, m times, without communication. Then there is one all-reduce.
static StepResult no_sync(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Replica *r = replica;
    double loss = 0;
    model_zero_gradients(model);
    // EXERCISE 02.03a (3 points): reduce once. Walk all t->micro_batches micro-batches forward and backward, add up
    // their losses, and make model->g the whole batch's gradient on every rank with one all-reduce. Mind the two
    // gradients of the tied table.
    for (size_t k = 0; k < t->micro_batches; k++) loss += model_forward_backward(model, &mine[k]);
    model_fold_tied(model);
    data_parallel_all_reduce(r->dp, model);    // g [Psi], once a step: sends 2(N-1)/N Psi e bytes, whatever m is
    // END
    return update(model, o, loss, mine->token_weight);
}

// The same bytes, sent earlier. no_sync for all micro-batches but the last, forward AND backward: whether a backward
// will reduce is settled when its forward begins. The last backward starts an all-reduce for each bucket of g (here 7,
// of about 9 kB) as soon as the bucket is complete; together they send what no_sync sends.
static StepResult overlapped(void *replica, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Replica *r = replica;
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < t->micro_batches; k++) {
        r->buckets->sync = k + 1 == t->micro_batches;
        loss += model_forward_backward(model, &mine[k]);
    }
    buckets_wait(r->buckets);                  // until the last all-reduce has ended: g is the sum over all ranks
    r->buckets->sync = false;
    return update(model, o, loss, mine->token_weight);
}

// ================================ the experiment ================================

enum { SEQUENCES = 26, STEPS = 3 };            // of 4 ranks two have 7 sequences, in 3 + 2 + 2, and two have 6
enum { BUCKET = 1 << 13 };                     // bytes at which a bucket is closed
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// What the lesson hands to each of the three kinds of step. Only the forgetful one needs a second gradient buffer.
typedef struct { Replica replica; Tensor sum; } Twins;

// The forgetful twin: every micro-batch is a little step of chapter 01, and what comes back is added in a second
// buffer. Reducing the running sum instead would count the earlier micro-batches N times more: they are summed already.
static StepResult forgetful(void *twins, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    Twins *r = twins;
    double loss = 0;
    tensor_fill(r->sum, 0);
    for (size_t k = 0; k < t->micro_batches; k++) {
        model_zero_gradients(model);
        loss += model_forward_backward(model, &mine[k]);
        model_fold_tied(model);
        data_parallel_all_reduce(r->replica.dp, model);        // m times a step
        op_add(r->sum, r->sum, model->g);
    }
    tensor_copy(model->g, r->sum);
    return update(model, o, loss, mine->token_weight);
}

// For the picture: a step of each kind.
static StepResult one_after_the_other(void *twins, Model *model, Optimizer *o, const Training *t, const Batch *mine) {
    no_sync(twins, model, o, t, mine);
    forgetful(twins, model, o, t, mine);
    return overlapped(twins, model, o, t, mine);
}

static Trajectory train(Run *run, Comm *dp, const Training *t, Step *step, NoSyncMeasured *seen) {
    Trajectory c = trajectory_new(run, t);
    Model *model = model_describe(&t->model, model_layers(&t->model));
    model_allocate(model);                     // functions of the seed: the same weights everywhere
    Twins r = { .replica = { dp, buckets_new(model, dp, BUCKET) } };       // a pointer to it points to its replica, too
    if (step == forgetful || step == one_after_the_other) r.sum = tensor_new(&model->gradients, 1, model->size);
    comm_ledger_reset(dp);
    training_run(&c, model, t, dp->size, dp->rank, step, &r);
    *seen = (NoSyncMeasured){ dp->ledger[COMM_ALL_REDUCE].calls, comm_bytes_sent(dp),
                              memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
                              memory_peak(MEM_ACTIVATIONS), picture_timing(run) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: every rank's part of it
    buckets_free(r.replica.buckets);
    model_free(model);
    return c;
}

static void accumulation_on_ranks(Run *run) {
    size_t n = run->world->size, m = option_size(run, "micro-batches");
    REQUIRE(m >= 1 && m <= SEQUENCES, "--micro-batches must be from 1 to %d, the number of sequences", SEQUENCES);
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = m, .recorded = true, .watched = MEM_ACTIVATIONS };
    NoSyncMeasured once_a_step, every_time, early, all;
    t.model.seed = run->seed;
    say_detail(run, "%d sequences on %zu ranks in %zu micro-batches each; rank 0:", SEQUENCES, n, m);
    for (size_t k = 0; k < m; k++) {
        Range r = training_micro_batch(&t, n, 0, k);
        say_detail(run, "    micro-batch %zu: %zu sequences, %zu tokens in step 0\n", k, range_size(r),
                   data_count(&t.data, 0, r.lo, range_size(r)));
    }
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Training at_once = t;
        at_once.micro_batches = 1;
        Trajectory got = train(run, run->world, &t, no_sync, &once_a_step);
        Trajectory often = train(run, run->world, &t, forgetful, &every_time);
        Trajectory buckets = train(run, run->world, &t, overlapped, &early);
        // One process that accumulates each replica's micro-batches from zero and then adds the replicas in rank order
        // gets the same bits. Accumulating all n*m micro-batches in one row would group the sum in another way.
        Trajectory whole = training_unsplit(run, &at_once, 1), ordered = training_unsplit(run, &t, n);
        training_compare(run, "no_sync = at once", &got, &whole, LIMIT_ROUNDING);
        training_compare(run, "no_sync = replicas in order", &got, &ordered, every_bit(run));
        // Right numbers, too: only the costs tell the two apart.
        training_compare(run, "forgetful = at once", &often, &whole, LIMIT_ROUNDING);
        training_compare_tensors(run, "overlapped = no_sync", &buckets, &got, every_bit(run));
        bool alike = true;
        for (size_t step = 0; step < STEPS; step++)
            alike = alike && fabs(buckets.loss[step] - got.loss[step]) <= every_bit(run) * got.loss[step] &&
                    fabs(buckets.norm[step] - got.norm[step]) <= every_bit(run) * got.norm[step];
        check_true(run, i ? "AdamW: overlapped = no_sync" : "SGD: overlapped = no_sync", "loss and norm of every step",
                   alike);
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
    no_sync_costs(run, &t, BUCKET, &once_a_step, &every_time, &early);
    data_free(&t.data);
}

static const Option options[] = {
    { "micro-batches", "N", "3", "pieces in which a replica takes its part, 1 to 26" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(accumulation_on_ranks, options);
