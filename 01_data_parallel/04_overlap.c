// ranks: 4
// level: core
// question: Why wait for the whole gradient before its first byte is sent?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Backward makes the gradients of the last layer first, long before those of the first. What is final can travel while
// the rest is computed. So the gradient goes in buckets, from its end to its beginning: each is all-reduced as soon as
// it is complete on all ranks (PyTorch's DistributedDataParallel: Li et al. 2020, arXiv 2006.15704, section 3.2;
// torch/csrc/distributed/c10d/reducer.cpp). The sums are the same, element by element; only when they are taken
// changes. What stays to wait for is the last bucket, which no backward is left to hide.
// The order of a step: zero, forward and backward (starts), buckets_wait, norm, update.
// Left out: gradients that become ready in the middle of a layer's backward, and a reduction that slows the products
// down because it needs the device, too.
#include "01_data_parallel/data_parallel.h"
#include "01_data_parallel/experiments/04_costs.h"
#include "judge/frame/training.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/draw/plot.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ================================ the technique ================================

// b->bucket <- the parts of m->g [Psi] that travel together, cut at the borders of tensors:
//     m->g      wte | wpe | h.0 ...           | h.1 ...           | ln_f
//     buckets   <-- 3 --> | <------ 2 ------> | <-- 1 --> <------ 0 ---->         backward runs from right to left
// A bucket is a view of m->g (DDP's gradient_as_bucket_view): nothing is copied.
static void cut(Buckets *b, size_t capacity) {
    size_t hi = b->end;                            // where the open bucket ends in m->g
    // EXERCISE 01.04b (3 points): cut from the end. Cut m->g into buckets, from its end to its beginning.
    // b->tensor[i].at is the number of the element of m->g with which tensor i begins. Write into tensor[i].bucket in
    // which bucket it is, and into b->bucket[k] its part of m->g and how many tensors lie in it; b->n counts the
    // buckets. Begin with the last tensor; b->n and all of b->bucket are zero now. A bucket is closed by the tensor
    // with which it reaches `capacity` bytes, and tensor 0 closes the last bucket.
    for (size_t i = b->n_tensors; i-- > 0;) {
        Bucket *open = &b->bucket[b->n];
        b->tensor[i].bucket = b->n;
        open->part = (Range){ b->tensor[i].at, hi };
        open->tensors++;
        if (range_size(open->part) * sizeof(real) < capacity && i > 0) continue;
        hi = open->part.lo;
        b->n++;
    }
    // END
}

// One message per bucket: the sum over dp of its part of m->g [bucket], 2 (N-1)/N of the bucket's bytes sent per rank.
// It is under way from here until buckets_wait; backward goes on meanwhile, and must not write into the bucket.
static void start(Buckets *b, Bucket *k) {
    k->request = comm_start_all_reduce(b->dp, tensor_flat_range(b->model->g, k->part.lo, k->part.hi));
}

// The backward of layer l is done.
static void layer_is_ready(Buckets *b, const Layer *l) {
    // EXERCISE 01.04a (8 points): what is ready may go. Say of every tensor of l's units that it is ready, if it is
    // (buckets_tensor_ready): wte has two uses (Unit.tied_use, tied_to), and its gradient is final only when both parts
    // are there and are added (model_fold_tied). Then start() every bucket that has become complete, and count it in
    // b->started. All ranks must start the same buckets in the same order, whatever the order in which they become
    // complete: in that of their numbers.
    for (size_t i = 0; i < l->n_units; i++) {
        const Unit *u = l->units[i];
        if (u->tied_to) continue;                  // the head's part of wte's gradient waits for the embedding's
        if (u->tied_use) model_fold_tied(b->model);
        for (size_t k = 0; k < u->n_params; k++) buckets_tensor_ready(b, &u->params[k]);
    }
    while (b->started < b->n && b->bucket[b->started].pending == 0) start(b, &b->bucket[b->started++]);
    // END
}

static bool may_reduce(const Buckets *b, const Batch *batch) {
    return b->micro_batches == 0 || batch->number + 1 == b->micro_batches;         // 0: no pipeline; b->sync says it
}
// The hook: every layer of the model is wrapped in these two, so they run where its forward and backward would.
static void hooked_forward(Layer *l, const Batch *batch, Tensor x, Tensor y, Saved *s) {
    Buckets *b = l->technique;
    if (l == &b->model->layers[0] && may_reduce(b, batch)) buckets_arm(b);    // no tensor is ready
    layer_forward(l->inner, batch, x, y, s);
}
static void hooked_backward(Layer *l, const Batch *batch, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Buckets *b = l->technique;
    layer_backward(l->inner, batch, x, dy, dx, s);
    if (!b->armed || !may_reduce(b, batch)) return;
    for (size_t i = 0; i < l->n_units; i++) unit_partial_sums(l->units[i]);        // nothing is sent here: see 03.07
    layer_is_ready(b, l);                                          // may start all-reduces, and waits for none
}
static const LayerKind hooked = { .name = "reducing layer", .forward = hooked_forward, .backward = hooked_backward };

Buckets *buckets_new(Model *m, Comm *dp, size_t capacity) {
    Buckets *b = buckets_list_tensors(m, dp);
    cut(b, capacity);
    for (size_t i = 0; i < m->n_layers; i++) {
        layer_wrap(&m->layers[i], &hooked, dp);
        m->layers[i].technique = b;
    }
    return b;
}

// As DDP does with parameters that a forward did not use. They are found in model order, so here the last bucket is
// complete first: without the rule of layer_is_ready this rank would start it while the others start the first.
void buckets_no_work(Buckets *b) {
    Unit *wte = model_wte(b->model);
    tensor_fill(b->model->g, 0);               // model_zero_gradients() leaves that to the first backward
    if (wte && wte->tied_use) tensor_fill(wte->tied_use->g, 0);
    buckets_arm(b);
    for (size_t i = 0; b->armed && i < b->model->n_layers; i++) layer_is_ready(b, &b->model->layers[i]);
}

// For chapter 08: the first and the last stage of a pipeline add their gradients of wte when both have them.
void buckets_start_tied(Buckets *b) {
    if (range_size(b->tied) == 0) return;
    b->tied_request = comm_start_all_reduce(b->dp, tensor_flat_range(b->model->g, b->tied.lo, b->tied.hi));
}

void buckets_wait(Buckets *b) {
    buckets_check_complete(b);
    for (size_t k = 0; k < b->started; k++) comm_wait(b->bucket[k].request);       // the sum is in m->g
    comm_wait(b->tied_request);
    b->tied_request = NULL;
    b->started = 0;
    b->armed = false;
}

typedef struct { Comm *dp; Buckets *buckets; } Replica;

// The whole batch's gradient is here. Of the loss only my tokens' part is.
static StepResult update(Model *m, Optimizer *o, double loss) {
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, 1);
    return (StepResult){ loss, norm };
}

static StepResult overlapped(void *replica, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    (void)t;
    Replica *r = replica;
    double loss = 0;
    r->buckets->sync = true;                               // before the forward
    model_zero_gradients(m);
    if (mine->B > 0) loss = model_forward_backward(m, mine);           // starts the all-reduces on its way
    else buckets_no_work(r->buckets);                      // zeros: the others wait for my part of every bucket
    buckets_wait(r->buckets);                              // nobody may use a gradient before: not norm, not optimizer
    return update(m, o, loss * mine->token_weight);
}

// ================================ the experiment ================================

// ---------------------------------------------------------------- data and sizes

enum { SEQUENCES = 7, STEPS = 3 };             // of 4 ranks one has one sequence, the others two; of 8 one has none
static const ModelConfig tiny = { .layers = 3, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// A bucket is closed at --bucket bytes; at as many as the smallest tensor has, every tensor has its own. (DDP, for
// models of many MiB: 25 MiB, and 1 MiB for the first one, so that it starts early.)
static size_t per_tensor(void) { return tiny.width * sizeof(real); }

// Chapter 01.02: all compute, then all communicate.
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

// For the picture: a step of each kind.
static StepResult one_after_the_other(void *replica, Model *m, Optimizer *o, const Training *t, const Batch *mine) {
    at_the_end(replica, m, o, t, mine);
    return overlapped(replica, m, o, t, mine);
}

// ---------------------------------------------------------------- training

static Trajectory train(Run *run, const Training *t, Step *step, size_t capacity, BucketsSeen *seen) {
    Comm *dp = run->world;
    Trajectory c = trajectory_new(run, t);
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);                                     // functions of the seed: the same weights everywhere
    // As an earlier step would have left them: a rank that has no sequences now must not add them again.
    for (size_t i = 0; i < m->n_units; i++) tensor_fill(m->units[i].g, 1);
    Replica r = { dp, buckets_new(m, dp, capacity) };
    comm_ledger_reset(dp);
    training_run(&c, m, t, dp->size, dp->rank, step, &r);
    *seen = (BucketsSeen){ r.buckets->n, dp->ledger[COMM_ALL_REDUCE].calls, comm_bytes_sent(dp),
                        memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_peak(MEM_COMMUNICATION),
                        picture_timing(run) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: every rank's part of it
    buckets_free(r.buckets);
    model_free(m);
    return c;
}

// ---------------------------------------------------------------- the best size

// A step for every capacity, from a bucket a tensor to one of everything, beside the two that it lies between: all
// communication after all computing, and none at all.
enum { SIZES = 12 };
static void sweep(Run *run, const Training *t, const Timing *end, bool drawn) {
    double x[SIZES], in_buckets[SIZES], at_end[SIZES], alone[SIZES];
    Training one = *t;
    one.steps = 1;
    for (size_t i = 0; i < SIZES; i++) {
        size_t capacity = i ? (size_t)128 << i : per_tensor();
        char name[64];
        BucketsSeen seen;
        Trajectory c = train(run, &one, overlapped, capacity, &seen);
        trajectory_free(&c);
        x[i] = (double)((size_t)128 << i);
        in_buckets[i] = (double)seen.last.step * 1e-9;
        at_end[i] = (double)end->step * 1e-9;
        alone[i] = (double)end->busiest * 1e-9;
        snprintf(name, sizeof name, "step, %zu bucket%s of %zu bytes", seen.buckets, seen.buckets > 1 ? "s" : "",
                 capacity);
        if (!clock_config()->simulated) continue;
        cost(run, name, "ps", overlap_costs(&tiny, capacity, run->world->size, SEQUENCES).step, (double)seen.last.step);
    }
    PlotLine lines[] = { { "in buckets", in_buckets }, { "at the end", at_end }, { "computing alone", alone } };
    Plot plot = { .title = "a step, by the size of a bucket", .x_label = "bytes a bucket; leftmost: one a tensor",
                  .y_label = "ms", .x = x, .n = SIZES, .lines = lines, .n_lines = 3, .log_x = true };
    if (drawn) plot_show(run, &plot, 0);
}

static void overlap(Run *run) {
    size_t capacity = option_size(run, "bucket");
    bool steps = strcmp(option_text(run, "picture"), "step") == 0;
    REQUIRE(capacity >= 1, "--bucket must be at least 1 byte: a bucket of every tensor");
    Training t = { .model = tiny, .data = data_synthetic(tiny.vocab, tiny.context, run->seed), .steps = STEPS,
                   .sequences = SEQUENCES, .micro_batches = 1, .recorded = true, .watched = MEM_GRADIENTS };
    BucketsSeen in_buckets, end, tensors, whole_seen, both;
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
    const OverlapSizes sizes = { tiny, SEQUENCES, STEPS, capacity, per_tensor() };
    overlap_compare_costs(run, &sizes, &in_buckets, &end, &tensors);
    Training once = t;
    once.steps = 1;
    Trajectory drawn = train(run, &once, one_after_the_other, capacity, &both);
    trajectory_free(&drawn);
    if (steps) picture_show(run, "the all-reduce at the end, then in buckets", PICTURE_CHART);
    sweep(run, &t, &end.last, !steps);
    overlap_show_results(run, &sizes, &in_buckets, &end, &tensors);
    data_free(&t.data);
}

static const Option options[] = {
    { "bucket", "N", "16384", "bytes at which a bucket is closed; 1: a bucket of every tensor" },
    { "picture", "step|sweep", "step", "what is drawn: the steps, or the step time by the size of a bucket" },
    { "link", "NAME[,NAME]", "slow", NULL },
    {0},
};
EXPERIMENT(overlap, options);
