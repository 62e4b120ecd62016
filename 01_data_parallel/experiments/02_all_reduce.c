// 02_all_reduce.c: trains on N replicas and on one device, with SGD and with AdamW. Compares the
// gradients, weights, losses and norms of every step, and bytes, memory and time with formulas.
#include "01_data_parallel/data_parallel.h"
#include "01_data_parallel/experiments/experiments.h"
#include "common/model/costs.h"
#include "common/tensor/random.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

// 7 sequences make uneven shards on 2 to 6 ranks, and leave one of 8 ranks without a sequence.
// Sequences end at different lengths, so shards with equal numbers of sequences have unequal
// numbers of tokens.
enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};

typedef struct {
    size_t reductions, reduced;              // all-reduces: calls, bytes sent
    size_t broadcasts, broadcast;            // calls, bytes sent
    size_t sent;                             // bytes of all kinds
    size_t parameters, gradients, optimizer; // bytes at the end
    size_t activations;                      // bytes, the last step's peak
} Measured;

static Trajectory train_replicas(Run *run, Comm *dp, const Training *t, Measured *measured) {
    Trajectory c = trajectory_new(run, t);
    Optimizer o = t->optimizer;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);
    // Every process draws different weights, so only the broadcast makes them equal. With 16-bit
    // weights the masters must come from the broadcast weights, too.
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
    *measured = (Measured){ dp->ledger[COMM_ALL_REDUCE].calls,
                            dp->ledger[COMM_ALL_REDUCE].bytes,
                            dp->ledger[COMM_BROADCAST].calls,
                            dp->ledger[COMM_BROADCAST].bytes,
                            comm_bytes_sent(dp),
                            memory_now(MEM_PARAMETERS),
                            memory_now(MEM_GRADIENTS),
                            memory_now(MEM_OPTIMIZER),
                            memory_peak(MEM_ACTIVATIONS) };
    // The log needs the sum of the ranks' losses; the training itself needs no loss.
    comm_all_reduce_doubles(dp, c.loss, t->steps);
    model_free(m);
    return c;
}

// ---------------------------------------------------------------- the predictions

static void predict(Run *run, const ModelConfig *c, const Measured *measured) {
    size_t V = c->vocab, C = c->width, N = run->world->size, r = run->world->rank;
    size_t Psi = config_parameters(c); // V C + T C + L (12 C^2 + 13 C) + 2 C
    size_t e = weight_bytes(c), of_gradient = gradient_bytes(c);
    // a rank sends 2 (N-1) ceil(Psi / N) e
    double ring = ring_bytes(ALL_REDUCE_PASSES, N, Psi, of_gradient);
    double root = r == 0 && N > 1 ? (double)(Psi * e) : 0;
    // A rank keeps the activations of its own sequences (chapter 02 lists them).
    const CutSizes whole = cut_sizes(c, 1, 0);
    double kept = (double)activations_bytes(&whole, part_size(SEQUENCES, N, r));
    check_cost(run, "calls.all-reduce", "all-reduces, 3 steps", "calls", formula(STEPS),
               NOT_PREDICTED, (double)measured->reductions);
    check_cost(run, "sent.all-reduce", "sent by all-reduces, 3 steps", "bytes",
               formula(STEPS * ring), NOT_PREDICTED, (double)measured->reduced);
    check_cost(run, "calls.broadcast", "broadcasts", "calls", formula(1), NOT_PREDICTED,
               (double)measured->broadcasts);
    check_cost(run, "sent.broadcast", "sent by the broadcast: Psi e at the root", "bytes",
               formula(root), NOT_PREDICTED, (double)measured->broadcast);
    check_cost(run, "sent.all", "sent in all", "bytes", formula(root + STEPS * ring), NOT_PREDICTED,
               (double)measured->sent);
    check_cost(run, "held.parameters", "parameters", "bytes", formula((double)(Psi * e)),
               NOT_PREDICTED, (double)measured->parameters);
    check_cost(run, "held.gradients", "gradients (wte twice)", "bytes",
               formula((double)((Psi + V * C) * of_gradient)), NOT_PREDICTED,
               (double)measured->gradients);
    check_cost(run, "held.optimizer", c->storage == REALS ? "AdamW's m and v" : "m, v and masters",
               "bytes", formula((double)(Psi * adamw_bytes(c))), NOT_PREDICTED,
               (double)measured->optimizer);
    check_cost(run, "peak.activations", "activations, peak, of my shard", "bytes", formula(kept),
               NOT_PREDICTED, (double)measured->activations);
}

// Forward and backward of rank r's sequences, in ps.
static double computing(size_t N, size_t r) {
    return work_model(&tiny, part_size(SEQUENCES, N, r)).time;
}

// A step under the simulated clock. All ranks compute at the same time. The all-reduce begins when
// the last rank is ready, and nothing hides it. So a step takes the time of the largest shard plus
// the time of the ring.
static void predict_time(Run *run, const ModelConfig *c, const Timing *measured) {
    size_t N = run->world->size, Psi = config_parameters(c);
    // 2 (N-1) alpha + bytes / beta
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, gradient_bytes(c));
    double busy = 0;
    for (size_t r = 0; r < N; r++) busy += computing(N, r);
    if (!clock_config()->simulated) return;
    check_cost(run, "time.computing", "computing, all ranks", "ps", formula(busy), NOT_PREDICTED,
               (double)measured->busy);
    check_cost(run, "time.exposed", "communication exposed, all ranks", "ps",
               formula((double)N * ring), NOT_PREDICTED, (double)measured->exposed);
    check_cost(run, "time.hidden", "communication hidden", "ps", formula(0), NOT_PREDICTED,
               (double)measured->hidden);
    check_cost(run, "time.step", "step: the largest shard, and the ring", "ps",
               formula(computing(N, 0) + ring), NOT_PREDICTED, (double)measured->step);
}

static void table(Run *run, const ModelConfig *c) {
    bool model = clock_config()->simulated, half = c->storage != REALS;
    const PageText shares = uneven_shares("\n", SEQUENCES, run->world->size);
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
          "3F(B/N) + 2(N-1) alpha + 2(N-1)/N Psi e / beta",
          { "time.step" } },
        { 0 },
    };
    say(run,
        "\nN ranks, B sequences, Psi parameters of e bytes; wte: the table of V tokens, width "
        "C. F(k): a\nforward of k sequences. A message takes alpha seconds and 1/beta seconds "
        "per byte.%s\n",
        shares.text);
    results(run, (const char *const[]){ "each rank", NULL }, rows);
}

static void answer(Run *run, const Measured *measured) {
    char alone[32], memory[32], sent[32];
    const size_t N = run->world->size;
    const size_t state = measured->parameters + measured->gradients + measured->optimizer;
    page_value(alone, sizeof alone, computing(1, 0), "ps");
    page_value(memory, sizeof memory, (double)state, "bytes");
    page_value(sent, sizeof sent, cost_value(run, "sent.all-reduce") / STEPS, "bytes");
    if (N == 1)
        say_answer(run, "One rank has the whole batch and all weights, so it sends nothing: start "
                        "more ranks.");
    else if (!clock_config()->simulated)
        say_answer(run, "They start from rank 0's weights and add their gradients with one "
                        "all-reduce per step, so their weights stay equal in every bit.");
    else
        say_answer(run,
                   "They start from rank 0's weights and add their gradients with one all-reduce "
                   "per step, so their weights stay equal. A step takes %s on %zu ranks, %s on "
                   "one.",
                   cost_text(run, "time.step"), N, alone);
    say_cost(run, "each rank sends %s per step and keeps %s of weights, gradients and moments.",
             sent, memory);
    say_use_when(run, "the model with its optimizer fits on one device and every rank has at "
                      "least one sequence.");
}

static void all_reduce(Run *run) {
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    Range shard = shard_range(SEQUENCES, run->world->size, run->world->rank);
    say_detail(run, "%zu parameters on each of %zu ranks\n", config_parameters(&tiny),
               run->world->size);
    say_detail(run, "rank 0 has sequences %zu to %zu of %d, in step 0 %zu of %zu tokens\n",
               shard.lo, shard.hi - 1, SEQUENCES, data_count(&data, 0, shard.lo, range_size(shard)),
               data_count(&data, 0, 0, SEQUENCES));
    Training t = {
        .model = tiny, .data = data, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1
    };
    t.model.seed = run->seed;
    training_store(run, &t);
    Measured measured;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Trajectory got = train_replicas(run, run->world, &t, &measured);
        // Two unsplit trainings. `whole` takes the whole batch. `ordered` takes one shard after
        // the other and adds in rank order, so the ranks must give the same bits.
        Trajectory whole = training_unsplit(run, &t, 1),
                   ordered = training_unsplit(run, &t, run->world->size);
        training_compare(run, "replicas = unsplit", &got, &whole, training_limit(&t));
        training_compare(run, "replicas = shards in order", &got, &ordered,
                         training_exact(run, &t));
        trajectory_free(&got);
        trajectory_free(&whole);
        trajectory_free(&ordered);
    }
    Timing timing = picture_timing(run); // from here on: of the training with AdamW
    picture_show(run, "Data parallel, one step", PICTURE_CHART);
    picture_summary(run, &timing);
    predict(run, &t.model, &measured);
    predict_time(run, &t.model, &timing);
    table(run, &t.model);
    answer(run, &measured);
    data_free(&data);
}

static const Option options[] = { { "link", "NAME[,NAME]", "slow", NULL }, STORAGE_OPTION, { 0 } };
EXPERIMENT(all_reduce, options);
