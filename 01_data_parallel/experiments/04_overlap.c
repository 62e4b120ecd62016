// 04_overlap.c: the same training with one all-reduce at the end, in buckets, with a bucket per
// tensor and with one bucket. All four must give the same bits. Compares bytes and calls with
// formulas, and times with a recurrence over the buckets (bucket_costs.c). --picture sweep draws
// the step for many sizes of buckets.
#include "01_data_parallel/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <stdio.h>
#include <string.h>

// With 4 ranks the last rank has one sequence and the other ranks have two. With 8 ranks the last
// rank has no sequence.
enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = {
    .layers = 3, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// The capacity that gives every tensor its own bucket: the bytes of the smallest tensor. (DDP
// closes the first bucket at 1 MiB, so that its all-reduce starts early, and the other buckets at
// 25 MiB.)
static size_t per_tensor(const ModelConfig *c) { return c->width * gradient_bytes(c); }

// ---------------------------------------------------------------- training

// Norm and update, with the whole batch's gradient. loss: the part of this rank's tokens.
static StepResult update(Model *m, Optimizer *o, double loss) {
    double norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, 1);
    return (StepResult){ loss, norm };
}

static StepResult overlapped(void *replica, Model *m, Optimizer *o, const Training *t,
                             const Batch *batch) {
    (void)t;
    double loss = buckets_gradients(((BucketReplica *)replica)->buckets, batch);
    return update(m, o, loss);
}

// As in 01.02: all ranks compute, then all communicate.
static StepResult at_the_end(void *replica, Model *m, Optimizer *o, const Training *t,
                             const Batch *batch) {
    (void)t;
    BucketReplica *r = replica;
    r->buckets->sync = false;
    model_zero_gradients(m);
    double loss = model_forward_backward(m, batch);
    model_fold_tied(m);
    data_parallel_all_reduce(r->dp, m);
    return update(m, o, loss * batch->token_weight);
}

// For the picture: a step with one all-reduce at the end, then the same step in buckets.
static StepResult one_after_the_other(void *replica, Model *m, Optimizer *o, const Training *t,
                                      const Batch *batch) {
    at_the_end(replica, m, o, t, batch);
    return overlapped(replica, m, o, t, batch);
}

// The ways to cut the gradient: whole, in buckets of --bucket bytes, tensor by tensor.
enum { AT_END, BUCKETS, TENSORS, CUTS };

// ---------------------------------------------------------------- costs

// The tensors that the model's family has: wte, wpe, 12 of a block and the last norm's two in
// GPT-2; only the matrices and the norms' gains in Llama, and there perhaps the head's table.
static size_t tensors_of(const ModelConfig *c) {
    const CutSizes z = cut_sizes(c, 1, 0);
    const size_t norm = 1 + z.norm_bias, positions = c->positions == POSITIONS_LEARNED;
    const size_t block = 2 * norm + 4 + z.qkv_bias + 3 * z.bias;
    return stage_tables(&z) + positions + c->layers * block + norm;
}

static void costs(Run *run, const ModelConfig *c, size_t capacity, const Measured seen[CUTS]) {
    static const char *const id[CUTS] = { "end", "buckets", "tensors" };
    static const char *const name[CUTS] = { "at the end", "in buckets", "tensor by tensor" };
    size_t N = run->world->size, e = gradient_bytes(c), Psi = config_parameters(c);
    const CutSizes whole = cut_sizes(c, 1, 0);
    double gradients = (double)(elements_gradients(&whole) * e);
    const BucketCosts want = overlap_costs(c, capacity, N, SEQUENCES);
    const BucketCosts each = overlap_costs(c, per_tensor(c), N, SEQUENCES);
    const double calls[CUTS] = { 1, (double)want.buckets, (double)tensors_of(c) };
    const double bytes[CUTS] = { ring_bytes(ALL_REDUCE_PASSES, N, Psi, e), want.bytes, each.bytes };
    for (size_t i = 0; i < CUTS; i++) {
        char ids[32], names[32];
        snprintf(ids, sizeof ids, "%%s.%s", id[i]);
        snprintf(names, sizeof names, "%s: %%s, 3 steps", name[i]);
        check_costs(run, ids, names,
                    (CostRow[]){
                        { "calls", "all-reduces", "calls", BY_FORMULA(STEPS * calls[i]),
                          seen[i].reductions },
                        { "sent", "sent", "bytes", BY_FORMULA(STEPS * bytes[i]), seen[i].sent },
                        { 0 } });
    }
    const Measured *cut = &seen[BUCKETS], *end = &seen[AT_END];
    check_costs(run, "%s", "%s",
                (CostRow[]){ { "held.parameters", "parameters", "bytes",
                               BY_FORMULA((double)(Psi * weight_bytes(c))), cut->parameters },
                             { "held.gradients", "gradients (wte twice)", "bytes",
                               BY_FORMULA(gradients), cut->gradients },
                             { "peak.flight", "in flight: every bucket's sum", "bytes",
                               BY_FORMULA((double)want.scratch), cut->buffers_peak },
                             { 0 } });
    if (!clock_config()->simulated) return;
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, e);
    double slowest = work_model(c, part_size(SEQUENCES, N, 0)).time;
    check_costs(run, "%s", "%s",
                (CostRow[]){ { "exposed.end", "at the end: exposed, all ranks", "ps",
                               BY_FORMULA((double)N * ring), (double)end->last.exposed },
                             { "step.end", "at the end: step", "ps", BY_FORMULA(slowest + ring),
                               (double)end->last.step },
                             { "exposed.buckets", "in buckets: exposed, all ranks", "ps",
                               BY_PLAY(want.exposed), (double)cut->last.exposed },
                             { "hidden.buckets", "in buckets: hidden, all ranks", "ps",
                               BY_PLAY(want.hidden), (double)cut->last.hidden },
                             { "step.buckets", "in buckets: step", "ps", BY_PLAY(want.step),
                               (double)cut->last.step },
                             { 0 } });
}

// ---------------------------------------------------------------- the best size

// Draws a step for every capacity, from a bucket per tensor to one bucket of all, beside two
// bounds: all communication after all computation, and computation alone.
static void sweep(Run *run, const Training *t, const Timing *end) {
    enum { SIZES = 12 };
    double x[SIZES], in_buckets[SIZES], at_end[SIZES], alone[SIZES];
    Training one = *t;
    one.steps = 1;
    for (size_t i = 0; i < SIZES; i++) {
        Measured seen;
        Trajectory c = replica_train(run, &one, overlapped,
                                     i ? (size_t)128 << i : per_tensor(&t->model), &seen);
        trajectory_free(&c);
        x[i] = (double)((size_t)128 << i);
        in_buckets[i] = (double)seen.last.step * 1e-9;
        at_end[i] = (double)end->step * 1e-9;
        alone[i] = (double)end->busiest * 1e-9;
    }
    PlotLine lines[] = { { "in buckets", in_buckets },
                         { "at the end", at_end },
                         { "computing alone", alone } };
    Plot plot = { .title = "a step, by the size of a bucket",
                  .x_label = "bytes a bucket; leftmost: one a tensor",
                  .y_label = "ms",
                  .x = x,
                  .n = SIZES,
                  .lines = lines,
                  .n_lines = 3,
                  .log_x = true };
    plot_show(run, &plot, 0);
}

// ---------------------------------------------------------------- the page

static void table(Run *run, const Measured seen[CUTS]) {
    enum { TIMES = 4 };
    double ranks = (double)run->world->size, buckets = seen[BUCKETS].reductions / STEPS;
    char column[32], time[TIMES][CUTS][24];
    const PageText shares = uneven_shares(" ", SEQUENCES, run->world->size);
    snprintf(column, sizeof column, "%.0f bucket%s", buckets, buckets > 1 ? "s" : "");
    Result rows[] = { { "all-reduces, 3 steps",
                        "3 * number of buckets",
                        { "calls.end", "calls.buckets", "calls.tensors" } },
                      { "sent per rank, 3 steps",
                        "3 * sum of 2(N-1)/N Psi_k e",
                        { "sent.end", "sent.buckets", "sent.tensors" } },
                      { "step", "until the last bucket's end", { 0 } },
                      { "exposed, mean of ranks", "communication without computing", { 0 } },
                      { "hidden, mean of ranks", "communication during backward", { 0 } },
                      { "idle", "1 - computing / (N * step)", { 0 } },
                      { 0 } };
    for (size_t i = 0; i < CUTS; i++) {
        const Timing *t = &seen[i].last;
        page_cell(time[0][i], (double)t->step, "ps");
        page_cell(time[1][i], (double)t->exposed / ranks, "ps");
        if (t->hidden_unknown) snprintf(time[2][i], 24, "=unknown");
        else page_cell(time[2][i], (double)t->hidden / ranks, "ps");
        page_cell(time[3][i], t->idle_of_total * 1e6, "millionths");
        for (size_t k = 0; k < TIMES; k++) rows[2 + k].cell[i] = time[k][i];
    }
    say(run,
        "\nN ranks. Psi_k: the parameters of bucket k, of e bytes each. Exposed: "
        "communication while the rank\ndoes not compute. Hidden: while it computes.%s\n",
        shares.text);
    results(run, (const char *const[]){ "at the end", column, "one per tensor", NULL }, rows);
}

static void answer(Run *run, const Measured seen[CUTS]) {
    const size_t N = run->world->size, n = (size_t)seen[BUCKETS].reductions / STEPS;
    const Timing *buckets = &seen[BUCKETS].last, *late = &seen[AT_END].last;
    const char *verdict = "There is no need to wait";
    char in_buckets[32], at_end[32], hidden[32];
    const bool uneven = part_size(SEQUENCES, N, 0) > SEQUENCES / N;
    if (buckets->step == late->step) verdict = "Waiting makes no difference here";
    if (buckets->step > late->step) verdict = "Waiting is faster here";
    page_value(in_buckets, sizeof in_buckets, (double)buckets->step, "ps");
    page_value(at_end, sizeof at_end, (double)late->step, "ps");
    page_value(hidden, sizeof hidden, (double)buckets->hidden / (double)N, "ps");
    if (N == 1) say_answer(run, "One rank sends nothing, so there is nothing to wait for.");
    else if (buckets->hidden_unknown)
        say_answer(run,
                   "There is no need to wait: each bucket is sent while backward still runs, with "
                   "the same bits. A step takes %s in buckets, %s with one all-reduce at the end.",
                   in_buckets, at_end);
    else
        say_answer(run,
                   "%s: %zu bucket%s hide%s %s of communication behind backward (mean of the "
                   "ranks%s), with the same bits. A step takes %s, with one all-reduce at the end "
                   "%s.",
                   verdict, n, n > 1 ? "s" : "", n > 1 ? "" : "s", hidden,
                   uneven ? "; the slowest hide more" : "", in_buckets, at_end);
    say_cost(run,
             "2(N-1) = %zu message latencies per bucket, and %s for the sums in flight. The last "
             "bucket is exposed: no backward is left to hide it.",
             2 * (N - 1), cost_text(run, "peak.flight"));
    say_use_when(run, "the all-reduce is a visible part of the step. The best size of a bucket "
                      "depends on the link; ARGS=\"--picture sweep\" draws it.");
}

static void overlap(Run *run) {
    size_t capacity = option_size(run, "bucket");
    bool steps = strcmp(option_text(run, "picture"), "step") == 0;
    REQUIRE(capacity >= 1, "--bucket must be at least 1 byte: a bucket of every tensor");
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    t.recorded = true;
    t.watched = MEM_GRADIENTS;
    Measured seen[CUTS], other;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Trajectory got = replica_train(run, &t, overlapped, capacity, &seen[BUCKETS]);
        Trajectory late = replica_train(run, &t, at_the_end, capacity, &seen[AT_END]);
        Trajectory each = replica_train(run, &t, overlapped, per_tensor(&t.model), &seen[TENSORS]);
        Trajectory fused = replica_train(run, &t, overlapped, SIZE_MAX, &other);
        Trajectory whole = training_unsplit(run, &t, 1),
                   ordered = training_unsplit(run, &t, run->world->size);
        training_compare(run, "overlapped = unsplit", &got, &whole, rounding_limit(run));
        // A sum over ranks is taken element by element, so neither the cut in buckets nor the time
        // of a message changes a bit.
        const double bits = exact_limit(run);
        training_compare(run, "overlapped = shards in order", &got, &ordered, bits);
        training_compare_tensors(run, "overlapped = at the end", &got, &late, bits);
        training_compare_tensors(run, "tensor by tensor = at the end", &each, &late, bits);
        training_compare_tensors(run, "fused in one = at the end", &fused, &late, bits);
        Trajectory *all[] = { &got, &late, &each, &fused, &whole, &ordered };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) trajectory_free(all[k]);
    }
    costs(run, &t.model, capacity, seen);
    Training once = t;
    once.steps = 1;
    Trajectory drawn = replica_train(run, &once, one_after_the_other, capacity, &other);
    trajectory_free(&drawn);
    if (steps)
        say(run, "A bucket is a group of tensors. One all-reduce sends it as soon as backward has "
                 "its gradients.\n");
    if (steps) picture_show(run, "The all-reduce at the end, then in buckets", PICTURE_CHART);
    if (!steps) sweep(run, &t, &seen[AT_END].last);
    table(run, seen);
    answer(run, seen);
    data_free(&t.data);
}

static const Option options[] = {
    { "bucket", "N", "16384", "bytes at which a bucket is closed; 1: a bucket of every tensor" },
    { "picture", "step|sweep", "step",
      "draws two steps, or the step time over the size of a bucket" },
    { "link", "NAME[,NAME]", "slow", NULL },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(overlap, options);
