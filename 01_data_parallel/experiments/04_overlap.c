// 04_overlap.c: runs the same training with one all-reduce at the end, and in buckets. With sums in
// rank order both trainings must give the same bits. Compares bytes and calls with formulas, and
// times with a recurrence over the buckets (bucket_costs.c). tests/buckets.t has other sizes of
// buckets.
#include "01_data_parallel/experiments/experiments.h"

// With 4 ranks the last rank has one sequence and the other ranks have two. With 8 ranks the last
// rank has no sequence.
enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = {
    .layers = 3, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

// ---------------------------------------------------------------- training

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

// Makes a step as in 01.02, in which all ranks compute and then communicate.
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

// Makes a step in each way, for the picture.
static StepResult one_after_the_other(void *replica, Model *m, Optimizer *o, const Training *t,
                                      const Batch *batch) {
    at_the_end(replica, m, o, t, batch);
    return overlapped(replica, m, o, t, batch);
}

// The gradient is reduced whole at the end, or in buckets that are closed at --bucket bytes.
enum { AT_END, BUCKETS, CUTS };

// ---------------------------------------------------------------- costs

static void costs(Run *run, const ModelConfig *c, size_t capacity, const Measured seen[CUTS]) {
    size_t N = run->world->size, e = gradient_bytes(c), Psi = config_parameters(c);
    const CutSizes whole = cut_sizes(c, 1, 0);
    const BucketCosts want = bucket_costs(c, capacity, N, SEQUENCES, 1);
    const Measured *cut = &seen[BUCKETS], *end = &seen[AT_END];
    const double ring_sends = ring_bytes(ALL_REDUCE_PASSES, N, Psi, e);
    check_costs(run, "%s", "%s",
                (CostRow[]){ { "calls.end", "at the end: all-reduces, 3 steps", "calls",
                               BY_FORMULA(STEPS), end->reductions },
                             { "sent.end", "at the end: sent, 3 steps", "bytes",
                               BY_FORMULA(STEPS * ring_sends), end->sent },
                             { "calls.buckets", "in buckets: all-reduces, 3 steps", "calls",
                               BY_FORMULA((double)(STEPS * want.buckets)), cut->reductions },
                             { "sent.buckets", "in buckets: sent, 3 steps", "bytes",
                               BY_FORMULA(STEPS * want.bytes), cut->sent },
                             { "held.gradients", "gradients (wte twice)", "bytes",
                               BY_FORMULA((double)(elements_gradients(&whole) * e)),
                               cut->gradients },
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

// ---------------------------------------------------------------- the page

static void table(Run *run, const Measured seen[CUTS]) {
    const size_t N = run->world->size, buckets = (size_t)seen[BUCKETS].reductions / STEPS;
    Result rows[] = {
        { "all-reduces, 3 steps", "3 * number of buckets", { "calls.end", "calls.buckets" } },
        { "sent per rank, 3 steps", "3 * sum of 2(N-1)/N Psi_k e", { "sent.end", "sent.buckets" } },
        { "step", "computing + exposed, of the slowest rank", { 0 } },
        { "exposed, mean of ranks", "communication without computing", { 0 } },
        { "hidden, mean of ranks", "communication during backward", { 0 } },
        { 0 }
    };
    for (size_t i = 0; i < CUTS; i++) {
        const Timing *t = &seen[i].last;
        rows[2].cell[i] = value_cell(run, (double)t->step, "ps");
        rows[3].cell[i] = value_cell(run, (double)t->exposed / (double)N, "ps");
        rows[4].cell[i] =
            t->hidden_unknown ? "=unknown" : value_cell(run, (double)t->hidden / (double)N, "ps");
    }
    say(run,
        "\nN ranks. Psi_k: the parameters of bucket k, of e bytes each. Exposed: "
        "communication while the rank\ndoes not compute. Hidden: while it computes.%s\n",
        uneven_shares(run, " ", SEQUENCES));
    const char *column = page_text(run, "%zu bucket%s", buckets, buckets > 1 ? "s" : "");
    results(run, (const char *const[]){ "at the end", column, NULL }, rows);
}

static void answer(Run *run, const ModelConfig *c, size_t capacity, const Measured seen[CUTS]) {
    const size_t N = run->world->size, n = (size_t)seen[BUCKETS].reductions / STEPS;
    const Timing *buckets = &seen[BUCKETS].last, *late = &seen[AT_END].last;
    const char *hidden = value_text(run, (double)buckets->hidden / (double)N, "ps");
    const BucketCosts want = bucket_costs(c, capacity, N, SEQUENCES, 1);
    const char *finished = "";
    if (clock_config()->simulated && want.hidden > 0 && want.hidden_last == 0)
        finished = page_text(run, "; rank %zu has finished and hides nothing", N - 1);
    if (N == 1) say_answer(run, "One rank sends nothing, so there is nothing to wait for.");
    else
        say_answer(run,
                   "%s: %zu bucket%s hide%s %s of communication behind backward (mean of the "
                   "ranks%s). The weights stay equal in every bit. A step takes %s, with one "
                   "all-reduce at the end "
                   "%s.",
                   buckets->step < late->step ? "There is no need to wait"
                                              : "Waiting is no slower here",
                   n, n > 1 ? "s" : "", n > 1 ? "" : "s",
                   buckets->hidden_unknown ? "an unknown part" : hidden, finished,
                   value_text(run, (double)buckets->step, "ps"),
                   value_text(run, (double)late->step, "ps"));
    say_cost(run,
             "2(N-1) = %zu message latencies per bucket, and %s for the sums in flight. The last "
             "bucket is exposed: no backward is left to hide it.",
             2 * (N - 1), cost_text(run, "peak.flight"));
    say_use_when(run,
                 "the all-reduce is a visible part of the step. The best size of a bucket "
                 "depends on the link: many small ones cost latency, few large ones end late.");
}

static void overlap(Run *run) {
    const size_t capacity = option_size(run, "bucket");
    REQUIRE(capacity >= 1, "--bucket must be at least 1 byte: a bucket of every tensor");
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    t.recorded = true;
    t.watched = MEM_GRADIENTS;
    Measured seen[CUTS];
    Trajectory late = replica_train(run, &t, at_the_end, capacity, &seen[AT_END]);
    Trajectory got = replica_train(run, &t, overlapped, capacity, &seen[BUCKETS]);
    Trajectory whole = training_unsplit(run, &t, 1);
    training_compare(run, "overlapped = unsplit", &got, &whole, rounding_limit(run));
    // Each element is added in rank order with --reduce ordered, so neither the cut in buckets nor
    // the time of a message changes a bit.
    training_compare(run, "overlapped = at the end", &got, &late, exact_limit(run));
    costs(run, &t.model, capacity, seen);

    Training once = t;
    Measured drawn;
    once.steps = 1;
    Trajectory both = replica_train(run, &once, one_after_the_other, capacity, &drawn);
    say(run,
        "This model has %zu blocks, 01.02's has 2. A bucket is a group of tensors. One "
        "all-reduce sends\na bucket as soon as backward has the bucket's gradients.\n",
        t.model.layers);
    picture_show(run, "The all-reduce at the end, then in buckets", PICTURE_CHART);
    trajectory_free(&both);
    table(run, seen);
    answer(run, &t.model, capacity, seen);
    trajectory_free(&got);
    trajectory_free(&late);
    trajectory_free(&whole);
    data_free(&t.data);
}

static const Option options[] = {
    { "bucket", "N", "16384", "bytes at which a bucket is closed; 1: a bucket of every tensor" },
    { "link", "NAME[,NAME]", "slow", NULL },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(overlap, options);
