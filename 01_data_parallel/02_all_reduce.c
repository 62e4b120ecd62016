// ranks: 4
// level: core
// question: How can N devices train one model, each on a part of the batch, and hold the same weights all the time?
// vary: SEQUENCES 5..11, STEPS 3..4, layers 1..3, width 24|36|48, context 9..14, vocab 40..90
//
// Every rank holds the whole model (a replica: weights, gradients, optimizer state) and a part of the sequences of
// every step. They communicate twice: once at the start, so that all begin with rank 0's weights, and once per step, to
// add their gradients. The sum is right because every shard's loss already carries 1 / (counted tokens of the WHOLE
// batch): nothing is divided by N.
// Left out: communication while backward still runs (04_overlap), and clipping, which would hide a gradient of the
// wrong length.
#include "01_data_parallel/data_parallel.h"
#include "judge/frame/training.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "common/tensor/random.h"

// ---------------------------------------------------------------- data and sizes

// 7 sequences divide by no number of ranks but 7: shards are uneven (of 8 ranks one has nothing). Sequences end early
// at different lengths, so shards of equally many sequences hold unequally many tokens.
enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// ================================ the technique ================================

// Once, before the first step. Rank 0 sends its weights [Psi], Psi e bytes (e: bytes of a real), along a chain of all
// ranks; the others overwrite theirs.
void data_parallel_broadcast(Comm *dp, Model *m) {
    // EXERCISE 01.02b (2 points): all begin alike. Give every rank of dp the weights of rank 0. m->w holds all weights
    // of the model, one after the other, and common/comm/comm.h lists what ranks can send to each other. One call, in
    // which only rank 0 sends.
    comm_broadcast(dp, m->w, 0);
    // END
}

// Once per step, after the last backward. g [Psi] <- the sum over replicas of their g: one all-reduce, for which each
// rank sends 2 (N-1)/N Psi e bytes in a ring (03_ring). Nothing is divided: each replica's g already carries
// 1 / (counted tokens of the whole batch).
void data_parallel_all_reduce(Comm *dp, Model *m) { comm_all_reduce(dp, m->g); }

// Fills m->g with the part of the batch's gradient that comes from sequences `mine`, and returns their part of the
// batch's mean loss. Each counted token enters both with this weight.
static double local_gradients(Model *m, const Data *d, uint64_t step, Range mine, double token_weight) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_micro_batch(d, &tokens, step, mine.lo, range_size(mine), token_weight);
    model_zero_gradients(m);
    double loss = model_forward_backward(m, &b) * token_weight;
    model_fold_tied(m);                        // wte's two gradients become one before anybody adds over ranks
    arena_free(&tokens);
    return loss;
}

static double replica_gradients(Comm *dp, Model *m, const Data *d, uint64_t step) {
    double loss = 0;
    // EXERCISE 01.02a (4 points): my part, and everybody's sum. Leave the gradient of the whole batch's mean loss in
    // m->g, the same on every rank, and in `loss` the part of that mean loss that my shard makes up. Rank r of N has
    // the sequences shard_range(SEQUENCES, N, r). A counted token weighs the same on whichever rank it is: find the
    // weight with data_count() (common/model/data.h), which any rank may ask about any sequences. The gradient of my
    // sequences is local_gradients(); there is one communication, data_parallel_all_reduce(), which adds.
    double token_weight = 1 / (double)data_count(d, step, 0, SEQUENCES);       // ALL sequences, not my shard's
    loss = local_gradients(m, d, step, shard_range(SEQUENCES, dp->size, dp->rank), token_weight);
    data_parallel_all_reduce(dp, m);           // Psi elements, once: m->g is now the whole batch's, on every rank
    // END
    return loss;                               // still my shard's part
}

// Equal weights, equal gradients and equal optimizer state give equal norms and equal weights: nothing more is sent.
static StepResult replica_step(Comm *dp, Model *m, Optimizer *o, const Data *d, uint64_t step) {
    double loss = replica_gradients(dp, m, d, step), norm = model_grad_norm(m, NULL);
    optimizer_step(o, m, 1);
    return (StepResult){ loss, norm };
}

// ================================ the experiment ================================

typedef struct {
    size_t reductions, reduced, broadcasts, broadcast;             // calls, bytes; calls, bytes
    size_t sent, parameters, gradients, optimizer, activations;    // bytes: of all kinds; now; the last step's peak
} Measured;

static Trajectory train_replicas(Run *run, Comm *dp, const Training *t, Measured *cost) {
    Trajectory c = trajectory_new(run, t);
    Optimizer o = t->optimizer;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    model_allocate(m);
    optimizer_allocate(&o, m);
    // As if every process had drawn its own weights, as it would without a common seed: only the broadcast makes them
    // equal.
    if (dp->rank) tensor_randomize(m->w, random_key(run->seed, dp->rank), 0.1);
    comm_ledger_reset(dp);
    data_parallel_broadcast(dp, m);
    for (size_t step = 0; step < t->steps; step++) {
        bool last = step + 1 == t->steps;
        memory_reset_peaks();
        if (last) picture_begin(run, MEM_ACTIVATIONS);
        StepResult r = replica_step(dp, m, &o, &t->data, step);
        if (last) picture_end(run);
        trajectory_record(&c, step, m, r.loss, r.norm);        // put by every rank: a check fails when a bit differs
    }
    *cost = (Measured){
        dp->ledger[COMM_ALL_REDUCE].calls, dp->ledger[COMM_ALL_REDUCE].bytes,
        dp->ledger[COMM_BROADCAST].calls, dp->ledger[COMM_BROADCAST].bytes,
        comm_bytes_sent(dp), memory_now(MEM_PARAMETERS), memory_now(MEM_GRADIENTS), memory_now(MEM_OPTIMIZER),
        memory_peak(MEM_ACTIVATIONS) };
    comm_all_reduce_doubles(dp, c.loss, t->steps);         // for the log: the training never needs to know its loss
    model_free(m);
    return c;
}

// ---------------------------------------------------------------- the predictions

static void predict(Run *run, const Measured *is) {
    size_t V = tiny.vocab, T = tiny.context, C = tiny.width, N = run->world->size, r = run->world->rank;
    size_t Psi = config_parameters(&tiny), e = sizeof(real);       // V C + T C + L (12 C^2 + 13 C) + 2 C
    double ring = ring_bytes(ALL_REDUCE_PASSES, N, Psi, e);        // a rank sends 2 (N-1) ceil(Psi / N) e
    cost(run, "all-reduces, 3 steps", "calls", STEPS, (double)is->reductions);
    cost(run, "sent by all-reduces, 3 steps", "bytes", STEPS * ring, (double)is->reduced);
    cost(run, "broadcasts", "calls", 1, (double)is->broadcasts);
    double first = r == 0 && N > 1 ? (double)(Psi * e) : 0;
    cost(run, "sent by the broadcast: Psi e at the root", "bytes", first, (double)is->broadcast);
    cost(run, "sent in all", "bytes", first + STEPS * ring, (double)is->sent);
    // No N here: a full replica.
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)is->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)((Psi + V * C) * e), (double)is->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * Psi * e), (double)is->optimizer);
    // N is here: a rank keeps what its own sequences cause, so many numbers a token (chapter 02 has the list).
    double activations = (double)(part_size(SEQUENCES, N, r) * T * kept_model(&tiny) * e);
    cost(run, "activations, peak, of my shard", "bytes", activations, (double)is->activations);
}

// Forward and backward of rank r's sequences, in ps.
static double computing(size_t N, size_t r) { return work_model(&tiny, part_size(SEQUENCES, N, r)).time; }

// A step under the simulated clock. All compute at the same time, each its own shard. The all-reduce begins when the
// last one is there, and nothing hides it: the step takes as long as the largest shard, and then the ring.
static void predict_time(Run *run, const Timing *is) {
    size_t N = run->world->size, Psi = config_parameters(&tiny);
    double ring = ring_time(ALL_REDUCE_PASSES, N, Psi, sizeof(real));  // 2 (N-1) alpha + bytes / beta
    double busy = 0;
    for (size_t r = 0; r < N; r++) busy += computing(N, r);
    if (!clock_config()->simulated) return;
    cost(run, "computing, all ranks", "ps", busy, (double)is->busy);
    cost(run, "communication exposed, all ranks", "ps", (double)N * ring, (double)is->exposed);
    cost(run, "communication hidden", "ps", 0, (double)is->hidden);
    cost(run, "step: the largest shard, and the ring", "ps", computing(N, 0) + ring, (double)is->step);
}

static void table(Run *run, const Timing *timing) {
    bool model = clock_config()->simulated;
    const Result rows[] = {
        { "parameters", "Psi e: a whole copy", { "parameters" } },
        { "gradients", "(Psi + VC) e: wte twice", { "gradients (wte twice)" } },
        { "AdamW's m and v", "2 Psi e", { "AdamW's m and v" } },
        { "activations, peak", "of B/N sequences", { "activations, peak, of my shard" } },
        { "broadcasts, all steps", "1, of Psi e bytes, before step 0", { "broadcasts" } },
        { "all-reduces, 3 steps", "1 per step", { "all-reduces, 3 steps" } },
        { "sent by them", "3 * 2(N-1)/N Psi e", { "sent by all-reduces, 3 steps" } },
        { model ? "step" : NULL, "3F(B/N) + 2(N-1) alpha + 2(N-1)/N Psi e / beta, F: forward",
          { "step: the largest shard, and the ring" } },
        {0},
    };
    results(run, (const char *const[]){ "each rank", NULL }, rows);
    say(run, "\nAll begin with rank 0's weights. Then equal gradients keep them equal: one all-reduce per step.\n");
    if (run->world->size > 1 && model)
        say(run, "One device needs %.2f ms for this step, %zu ranks together %.2f ms: %.1f times as fast.\n",
            computing(1, 0) * 1e-9, run->world->size, (double)timing->step * 1e-9,
            computing(1, 0) / (double)timing->step);
}

static void all_reduce(Run *run) {
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    Range mine = shard_range(SEQUENCES, run->world->size, run->world->rank);
    say_detail(run, "%zu parameters on each of %zu ranks\n", config_parameters(&tiny), run->world->size);
    say_detail(run, "rank 0 has sequences %zu to %zu of %d, in step 0 %zu of %zu tokens\n", mine.lo, mine.hi - 1,
               SEQUENCES, data_count(&data, 0, mine.lo, range_size(mine)), data_count(&data, 0, 0, SEQUENCES));
    Training t = { .model = tiny, .data = data, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1 };
    t.model.seed = run->seed;
    Measured measured;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.1);
        Trajectory got = train_replicas(run, run->world, &t, &measured);
        // Two unsplit twins. One takes the whole batch at once. The other does what the ranks do, one shard after the
        // other, and adds in rank order: to the last bit what they must get.
        Trajectory whole = training_unsplit(run, &t, 1), ordered = training_unsplit(run, &t, run->world->size);
        training_compare(run, "replicas = unsplit", &got, &whole, LIMIT_ROUNDING);
        training_compare(run, "replicas = shards in order", &got, &ordered, every_bit(run));
        trajectory_free(&got);
        trajectory_free(&whole);
        trajectory_free(&ordered);
    }
    Timing timing = picture_timing(run);                   // of AdamW's training, as all that follows
    picture_show(run, "data parallel, one step", PICTURE_CHART);
    picture_summary(run, &timing);
    predict(run, &measured);
    predict_time(run, &timing);
    table(run, &timing);
    data_free(&data);
}

static const Option options[] = { { "link", "NAME[,NAME]", "slow", NULL }, {0} };
EXPERIMENT(all_reduce, options);
