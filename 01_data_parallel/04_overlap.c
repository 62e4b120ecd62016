// ranks: 4
// level: core
// question: Why wait for the whole gradient before the first word is sent?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Backward makes the gradients of the last layer first, long before those of the first. What is final can travel while
// the rest is computed. So the gradient goes in buckets, from its end to its beginning (buckets.c, PyTorch's DDP): each
// is all-reduced as soon as it is complete on all ranks. The sums are the same, element by element; only when they are
// taken changes. What stays to wait for is the last bucket, which no backward is left to hide.
// Left out: gradients that become ready in the middle of a layer's backward, and a reduction that slows the products
// down because it needs the device, too.
#include "01_data_parallel/bucket_costs.h"
#include "01_data_parallel/buckets.h"
#include "01_data_parallel/data_parallel.h"
#include "common/lesson/training.h"
#include "common/model/formulas.h"
#include "common/lesson/picture.h"
#include "common/lesson/plot.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- data and sizes

enum { SEQUENCES = 7, STEPS = 3 };             // of 4 ranks one has one sequence, the others two; of 8 one has none
static const ModelConfig tiny = { .layers = 3, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// A bucket is closed at --bucket bytes; at as many as the smallest tensor has, every tensor has its own. (DDP, for
// models of many MiB: 25 MiB, and 1 MiB for the first one, so that it starts early.)
static size_t per_tensor(void) { return tiny.width * sizeof(real); }

// ---------------------------------------------------------------- one step, with and without overlap

typedef struct { Comm *dp; Buckets *buckets; } Replica;

// The whole batch's gradient is here. Of the loss only my tokens' part is.
static StepResult update(Model *m, Optimizer *o, double loss) {
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, 1);
    return (StepResult){ loss, norm };
}

// Chapter 01.02: everybody computes, then everybody talks.
static StepResult at_the_end(void *replica, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    (void)t;
    Replica *r = replica;
    r->buckets->sync = false;
    model_zero_gradients(m);
    double loss = model_forward_backward(m, mine);
    model_fold_tied(m);
    data_parallel_all_reduce(r->dp, m);
    return update(m, o, loss * mine->token_weight);
}

static StepResult overlapped(void *replica, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    (void)t;
    Replica *r = replica;
    double loss = 0;
    r->buckets->sync = true;                               // before the forward
    model_zero_gradients(m);
    if (mine->B > 0) loss = model_forward_backward(m, mine);           // starts the all-reduces on its way
    else buckets_no_work(r->buckets);                      // the others wait for my part of every bucket
    buckets_wait(r->buckets);                              // nobody may use a gradient before: not norm, not optimizer
    return update(m, o, loss * mine->token_weight);
}

// For the picture: a step of each kind.
static StepResult one_after_the_other(void *replica, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    at_the_end(replica, m, o, t, mine);
    return overlapped(replica, m, o, t, mine);
}

// ---------------------------------------------------------------- training

typedef struct {
    size_t buckets, calls, bytes;                          // all-reduces of the training
    size_t parameters, gradients, communication;           // bytes: now, now, the last step's peak
    Timing last;                                           // the last step's
} Measured;

static Trajectory train(Run *run, const Training *t, Step *step, size_t capacity, Measured *seen) {
    Comm *dp = run->world;
    Trajectory c = trajectory_new(run, t);
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);                                     // functions of the seed: the same weights everywhere
    Replica r = { dp, buckets_new(m, dp, capacity) };
    comm_ledger_reset(dp);
    training_run(&c, m, t, dp->size, dp->rank, step, &r);
    *seen = (Measured){ r.buckets->n, dp->ledger[COMM_ALL_REDUCE].calls, comm_bytes_sent(dp),
                        memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_peak(MEM_COMMUNICATION),
                        picture_timing(run) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: every rank's part of it
    buckets_free(r.buckets);
    model_free(m);
    return c;
}

// ---------------------------------------------------------------- the predictions

// bucket_costs.c follows the recurrence: a bucket begins when it is complete on the last rank and the one before has
// ended. A step is over when backward and the last bucket are.
static BucketCosts forecast(size_t N, size_t capacity) {
    LastBatch *batch = host_alloc(N * sizeof *batch);
    for (size_t r = 0; r < N; r++) batch[r] = (LastBatch){ .begin = 0, .sequences = part_size(SEQUENCES, N, r) };
    BucketCosts costs = bucket_costs(&tiny, capacity, N, batch);
    free(batch);
    return costs;
}

static void predict(Run *run, const Measured *is, const Measured *end, const Measured *tensors, size_t capacity) {
    size_t V = tiny.vocab, C = tiny.width, L = tiny.layers, N = run->world->size, e = sizeof(real);
    size_t Psi = config_parameters(&tiny);
    BucketCosts f = forecast(N, capacity), each = forecast(N, per_tensor());
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, e), slowest = work_model(&tiny, part_size(SEQUENCES, N, 0)).time;
    cost(run, "at the end: all-reduces, 3 steps", "calls", STEPS, (double)end->calls);
    cost(run, "in buckets: all-reduces, 3 steps", "calls", (double)(STEPS * f.buckets), (double)is->calls);
    cost(run, "tensor by tensor: all-reduces", "calls", (double)(STEPS * (4 + 12 * L)), (double)tensors->calls);
    cost(run, "at the end: sent, 3 steps", "bytes", STEPS * ring_bytes(ALL_REDUCE_PASSES, N, Psi, e),
         (double)end->bytes);
    cost(run, "in buckets: sent, 3 steps", "bytes", STEPS * f.bytes, (double)is->bytes);
    cost(run, "tensor by tensor: sent, 3 steps", "bytes", STEPS * each.bytes, (double)tensors->bytes);
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)is->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)is->gradients);
    cost(run, "in flight: every bucket's sum", "bytes", (double)f.scratch, (double)is->communication);
    if (!clock_config()->simulated) return;
    cost(run, "at the end: exposed, all ranks", "ps", (double)N * ring, (double)end->last.exposed);
    cost(run, "at the end: step", "ps", slowest + ring, (double)end->last.step);
    cost(run, "in buckets: exposed, all ranks", "ps", f.exposed, (double)is->last.exposed);
    cost(run, "in buckets: hidden, all ranks", "ps", f.hidden, (double)is->last.hidden);
    cost(run, "in buckets: step", "ps", f.step, (double)is->last.step);
}

// ---------------------------------------------------------------- the best size

// A step for every capacity, from a bucket a tensor to one of everything, beside the two that it lies between: all
// talking after all computing, and no talking at all.
enum { SIZES = 12 };
static void sweep(Run *run, const Training *t, const Timing *end, bool files) {
    double x[SIZES], in_buckets[SIZES], at_end[SIZES], alone[SIZES];
    Training one = *t;
    one.steps = 1;
    for (size_t i = 0; i < SIZES; i++) {
        size_t capacity = i ? (size_t)128 << i : per_tensor();
        char name[64];
        Measured seen;
        Trajectory c = train(run, &one, overlapped, capacity, &seen);
        trajectory_free(&c);
        x[i] = (double)((size_t)128 << i);
        in_buckets[i] = (double)seen.last.step * 1e-9;
        at_end[i] = (double)end->step * 1e-9;
        alone[i] = (double)end->busiest * 1e-9;
        snprintf(name, sizeof name, "step, %zu bucket%s of %zu bytes", seen.buckets, seen.buckets > 1 ? "s" : "",
                 capacity);
        if (!clock_config()->simulated) continue;
        cost(run, name, "ps", forecast(run->world->size, capacity).step, (double)seen.last.step);
    }
    PlotLine lines[] = { { "in buckets", in_buckets }, { "at the end", at_end }, { "computing alone", alone } };
    Plot plot = { .title = "a step, by the size of a bucket", .x_label = "bytes a bucket; leftmost: one a tensor",
                  .y_label = "ms", .x = x, .n = SIZES, .lines = lines, .n_lines = 3, .log_x = true };
    plot_show(run, &plot, files ? 0 : PICTURE_NO_FILES);
}

static void overlap(Run *run) {
    size_t capacity = option_size(run, "bucket");
    bool steps = strcmp(option_text(run, "picture"), "step") == 0;
    REQUIRE(capacity >= 1, "--bucket must be at least 1 byte: a bucket of every tensor");
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = 1, .recorded = true, .watched = MEM_GRADIENTS };
    Measured in_buckets, end, tensors, whole_seen, both;
    t.model.seed = run->seed;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Trajectory got = train(run, &t, overlapped, capacity, &in_buckets);
        Trajectory late = train(run, &t, at_the_end, capacity, &end);
        Trajectory each = train(run, &t, overlapped, per_tensor(), &tensors);
        Trajectory fused = train(run, &t, overlapped, SIZE_MAX, &whole_seen);
        Trajectory whole = training_unsplit(run, &t, 1), ordered = training_unsplit(run, &t, run->world->size);
        training_compare(run, "overlapped = unsplit", &got, &whole, LIMIT_ROUNDING);
        // A sum over ranks is taken element by element. It does not matter what travels together, or when.
        training_compare(run, "overlapped = shards in order", &got, &ordered, every_bit(run));
        training_compare_tensors(run, "overlapped = at the end", &got, &late, every_bit(run));
        training_compare_tensors(run, "tensor by tensor = at the end", &each, &late, every_bit(run));
        training_compare_tensors(run, "fused in one = at the end", &fused, &late, every_bit(run));
        trajectory_free(&got);
        trajectory_free(&late);
        trajectory_free(&each);
        trajectory_free(&fused);
        trajectory_free(&whole);
        trajectory_free(&ordered);
    }
    predict(run, &in_buckets, &end, &tensors, capacity);
    Training once = t;
    once.steps = 1;
    Trajectory drawn = train(run, &once, one_after_the_other, capacity, &both);
    trajectory_free(&drawn);
    picture_show(run, "the all-reduce at the end, then in buckets", steps ? PICTURE_CHART : PICTURE_NO_FILES);
    say(run, "at the end:");
    picture_summary(run, &end.last);
    say(run, "in %zu buckets of %zu bytes:", in_buckets.buckets, capacity);
    picture_summary(run, &in_buckets.last);
    sweep(run, &t, &end.last, !steps);
    data_free(&t.data);
}

static const Option options[] = {
    { "bucket", "N", "16384", "bytes at which a bucket is closed; 1: a bucket of every tensor" },
    { "picture", "step|sweep", "step", "what --svg writes: the steps, or the step time by the size of a bucket" },
    { "link", "NAME", "lesson", NULL },
    {0},
};
LESSON(overlap, options);
