// 02_all_reduce.c: trains on N replicas and on one device, with SGD and with AdamW. Compares the
// gradients, weights, losses and norms of the two trainings. Compares bytes, memory and time with
// formulas.
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"

// 7 sequences make uneven shards on 2 to 6 ranks, and leave one of 8 ranks without a sequence.
// Sequences have different numbers of counted tokens. So shards with equal numbers of sequences
// have different numbers of counted tokens, too.
enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

static Trajectory train_replicas(Run *run, Comm *dp, const Training *t, Measured *measured) {
    Trajectory c = trajectory_new(run, t);
    Optimizer o = t->optimizer;
    Model *m = whole_model(&t->model);
    // Every rank but rank 0 draws weights of its own, so a missing broadcast becomes visible.
    if (dp->rank) tensor_randomize(m->w, random_key(run->seed, dp->rank), 0.1);
    optimizer_allocate(&o, m);
    comm_ledger_reset(dp);
    data_parallel_broadcast(dp, m);
    for (size_t step = 0; step < t->steps; step++) {
        bool last = step + 1 == t->steps;
        memory_reset_peaks();
        if (last) picture_begin(run, MEM_ACTIVATIONS);
        StepResult r = data_parallel_step(dp, m, &o, &t->data, step, t->sequences);
        if (last) picture_end(run);
        // Every rank records its weights. The replicas must agree in every bit.
        trajectory_record(&c, step, m, r.loss, r.norm);
    }
    *measured = measured_now(dp);
    measured->last = picture_timing(run);
    // Adds the ranks' parts of the losses, which training_compare() needs.
    comm_all_reduce_doubles(dp, c.loss, t->steps);
    model_free(m);
    return c;
}

// ---------------------------------------------------------------- the predictions

// Returns the time of forward and backward of rank r's sequences, in ps.
static double computing(size_t N, size_t r) {
    return work_model(&tiny, part_size(SEQUENCES, N, r)).time;
}

static void costs(Run *run, const ModelConfig *c, const Measured *seen) {
    const CutSizes whole = cut_sizes(c, 1, 0);
    size_t N = run->world->size, r = run->world->rank;
    size_t Psi = config_parameters(c); // V C + T C + L (12 C^2 + 13 C) + 2 C
    size_t e = weight_bytes(c), of_gradient = gradient_bytes(c);
    double weights = (double)(Psi * e);
    double gradients = (double)(elements_gradients(&whole) * of_gradient); // of Psi + V C elements
    double sent =
        STEPS * ring_bytes(ALL_REDUCE_PASSES, N, Psi, of_gradient); // 2 (N-1) ceil(Psi / N) e
    double root = r == 0 && N > 1 ? weights : 0;
    // A rank keeps the activations of its own sequences.
    double kept = (double)activations_bytes(&whole, part_size(SEQUENCES, N, r));
    check_costs(
        run, "%s", "%s",
        (CostRow[]){
            { "calls.all-reduce", "all-reduces, 3 steps", "calls", BY_FORMULA(STEPS),
              seen->reductions },
            { "sent.all-reduce", "sent by all-reduces, 3 steps", "bytes", BY_FORMULA(sent),
              seen->reduced },
            { "calls.broadcast", "broadcasts", "calls", BY_FORMULA(1), seen->broadcasts },
            { "sent.broadcast", "sent by the broadcast: Psi e at the root", "bytes",
              BY_FORMULA(root), seen->broadcast },
            { "sent.all", "sent in all", "bytes", BY_FORMULA(root + sent), seen->sent },
            { "held.parameters", "parameters", "bytes", BY_FORMULA(weights), seen->parameters },
            { "held.gradients", "gradients (wte twice)", "bytes", BY_FORMULA(gradients),
              seen->gradients },
            { "held.optimizer", c->storage == REALS ? "AdamW's m and v" : "m, v and masters",
              "bytes", BY_FORMULA((double)(Psi * adamw_bytes(c))), seen->optimizer },
            { "peak.activations", "activations, peak, of my shard", "bytes", BY_FORMULA(kept),
              seen->activations_peak },
            { 0 } });
    if (!clock_config()->simulated) return;
    // All ranks compute at the same time. The all-reduce begins when the last rank is ready, and
    // nothing hides it. So a step takes the time of the largest shard plus the time of the ring,
    // 2 (N-1) alpha + bytes / beta.
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, of_gradient), busy = 0;
    for (size_t k = 0; k < N; k++) busy += computing(N, k);
    check_costs(run, "time.%s", "%s",
                (CostRow[]){ { "computing", "computing, all ranks", "ps", BY_FORMULA(busy),
                               (double)seen->last.busy },
                             { "exposed", "communication exposed, all ranks", "ps",
                               BY_FORMULA((double)N * ring), (double)seen->last.exposed },
                             { "step", "step: the largest shard, and the ring", "ps",
                               BY_FORMULA(computing(N, 0) + ring), (double)seen->last.step },
                             { 0 } });
}

static void table(Run *run, const ModelConfig *c) {
    const size_t N = run->world->size;
    bool model = clock_config()->simulated, half = c->storage != REALS;
    const char *uneven = uneven_shares(run, "\n", SEQUENCES);
    const Result rows[] = {
        { "parameters", "Psi e: a whole copy", { "held.parameters" } },
        { "gradients", "(Psi + VC) e: wte twice", { "held.gradients" } },
        { half ? "m, v and masters" : "AdamW's m and v",
          half ? "3 Psi e" : "2 Psi e",
          { "held.optimizer" } },
        { "activations, peak", "of B/N sequences", { "peak.activations" } },
        { "broadcasts, all steps", "1, of Psi e bytes, before step 0", { "calls.broadcast" } },
        { "all-reduces, 3 steps", "1 per step", { "calls.all-reduce" } },
        { "sent by the all-reduces", "3 * 2(N-1)/N Psi e", { "sent.all-reduce" } },
        { model ? "step" : NULL,
          "3F(ceil(B/N)) + 2(N-1) alpha + 2(N-1)/N Psi e / beta",
          { "time.step" } },
        { model && N > 1 ? "step on one device" : NULL,
          "3F(B)",
          { value_cell(run, computing(1, 0), "ps") } },
        { 0 },
    };
    say(run,
        "\nN = %zu rank%s, B = %d sequences per step, Psi parameters of e bytes. wte: the V x C "
        "table that\nembedding and head share; each use has a gradient. F(k): a forward of k "
        "sequences. A message takes\nalpha seconds, and 1/beta seconds per byte. Exposed: "
        "communication while a rank does not compute;\nhidden: while it computes.%s%s\n",
        N, N > 1 ? "s" : "", SEQUENCES, uneven,
        *uneven ? " a..b: the least and the most on a rank." : "");
    results(run, (const char *const[]){ "each rank", NULL }, rows);
}

static void answer(Run *run, const Measured *measured) {
    const size_t N = run->world->size;
    const double state = measured->parameters + measured->gradients + measured->optimizer;
    const char *time = "";
    if (clock_config()->simulated)
        time = page_text(run, " A step takes %s on %zu rank%s, %s on one.",
                         cost_text(run, "time.step"), N, N > 1 ? "s" : "",
                         value_text(run, computing(1, 0), "ps"));
    say_answer(run,
               "They start from rank 0's weights and add their gradients with one all-reduce per "
               "step, so their weights stay equal.%s",
               time);
    say_cost(run, "each rank sends %s per step and keeps %s of weights, gradients and moments.",
             value_text(run, cost_value(run, "sent.all-reduce") / STEPS, "bytes"),
             value_text(run, state, "bytes"));
    say_use_when(run, "the model with its optimizer fits on one device and every rank has at "
                      "least one sequence.");
}

static void all_reduce(Run *run) {
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    Measured measured;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Trajectory got = train_replicas(run, run->world, &t, &measured);
        // `whole` takes the whole batch at once. `ordered` takes one shard after the other and adds
        // the gradients in rank order. So with --reduce ordered the ranks must give the bits of
        // `ordered`.
        Trajectory whole = training_unsplit(run, &t, 1),
                   ordered = training_unsplit(run, &t, run->world->size);
        training_compare(run, "replicas = unsplit", &got, &whole, training_limit(&t));
        training_compare(run, "replicas = shards in order", &got, &ordered,
                         training_exact(run, &t));
        trajectory_free(&got);
        trajectory_free(&whole);
        trajectory_free(&ordered);
    }
    // All values below are those of the training with AdamW.
    picture_show(run, "Data parallel, one step", PICTURE_CHART);
    picture_summary(run, &measured.last);
    costs(run, &t.model, &measured);
    table(run, &t.model);
    answer(run, &measured);
    data_free(&t.data);
}

static const Option options[] = { { "link", "NAME[,NAME]", "slow", NULL }, STORAGE_OPTION, { 0 } };
EXPERIMENT(all_reduce, options);
