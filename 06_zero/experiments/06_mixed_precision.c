// Trains one model on a text in five precisions, and compares bytes, losses and replicas. Then it
// computes one gradient with the token weight of a large batch in fp16.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "01_data_parallel/data_parallel.h"
#include "06_zero/experiments/experiments.h"

// untied: no table has two gradients, so all bytes are per parameter.
static const ModelConfig tiny = {
    .layers = 2, .width = 32, .heads = 4, .context = 16, .vocab = 256, .untied = true
};
enum { STEPS = 160, LAST = 20, SEQUENCES = 16, COMPARED = 3 };
static const double RATE = 2e-4;

enum { REAL, MAIN, BF16, NO_MASTER, FP16, WAYS };
typedef struct {
    const char *id, *name;
    Element storage;
    bool main_gradients, no_master;
    LossScale scale;
} Way;
// The first factor is too large on purpose: the run has to find a smaller one.
static const Way ways[WAYS] = {
    [REAL] = { "real", sizeof(real) == 8 ? "fp64" : "fp32", REALS, true, false, { .factor = 1 } },
    [MAIN] = { "main", "bf16, main g", BF16S, true, false, { .factor = 1 } },
    [BF16] = { "bf16", "bf16", BF16S, false, false, { .factor = 1 } },
    [NO_MASTER] = { "none", "no master", BF16S, false, true, { .factor = 1 } },
    [FP16] = { "fp16", "fp16", FP16S, false, false, { .factor = 0x1p20, .patience = 60 } },
};

typedef struct {
    double loss;                          // mean of the last steps
    size_t weights, gradients, optimizer; // bytes between steps
    StateBytes state;                     // the same, for the picture
    size_t sent;                          // bytes of the last step's gradients
    LossScale scale;
} Seen;

static Training training(Run *run, const Way *way) {
    Training t = { .model = tiny, .steps = STEPS, .sequences = SEQUENCES, .micro_batches = 1 };
    t.model.seed = run->seed;
    t.model.storage = way->storage;
    t.model.main_gradients = way->main_gradients;
    t.optimizer = adamw(RATE);
    t.optimizer.no_master = way->no_master;
    t.clip = 1;
    return t;
}

// ---------------------------------------------------------------- five trainings on a text

static Seen train(Run *run, Comm *dp, const Way *way) {
    Training t = training(run, way);
    t.data = training_text(run, option_text(run, "data"), NULL, t.model.vocab, t.model.context,
                           SEQUENCES);
    Model *m = model_describe(&t.model, model_layers(&t.model));
    Seen seen = { .scale = way->scale };
    mixed_allocate(m, dp, &t.optimizer);
    for (size_t s = 0; s < STEPS; s++) {
        progress(run, way->name, s, STEPS);
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = training_batches(&t, &tokens, s, dp->size, dp->rank);
        comm_ledger_reset(dp);
        StepResult r = mixed_step(m, dp, &seen.scale, batch, 1, &t.optimizer, t.clip);
        if (s >= STEPS - LAST) seen.loss += r.loss / LAST;
        free(batch);
        arena_free(&tokens);
    }
    progress(run, way->name, STEPS, STEPS);
    seen.weights = memory_now(MEM_PARAMETERS);
    seen.gradients = memory_now(MEM_GRADIENTS);
    seen.optimizer = memory_now(MEM_OPTIMIZER);
    seen.state = picture_state_now();
    seen.sent = dp->ledger[COMM_ALL_REDUCE].bytes;
    Snapshot *prints = snapshot_new_prints(run);
    model_snapshot(m, prints, UNIT_WEIGHTS, NULL);
    check_replicas(run, way->name, prints);
    snapshot_free(prints);
    model_free(m);
    return seen;
}

static void costs(Run *run, Comm *dp, const Way *way, const Seen *seen) {
    const Training t = training(run, way);
    const double Psi = (double)config_parameters(&t.model), e = sizeof(real);
    const double w = (double)element_size(way->storage), g = way->main_gradients ? e : w;
    const double master = way->storage == REALS || way->no_master ? 0 : e;
    const double loss = ring_bytes(ALL_REDUCE_PASSES, dp->size, 1, sizeof(double));
    char ids[32], names[48];
    snprintf(ids, sizeof ids, "%s.%%s", way->id);
    snprintf(names, sizeof names, "%s: %%s", way->name);
    check_costs(
        run, ids, names,
        (const CostRow[]){
            { "weights", "weights", "bytes", BY_FORMULA(w * Psi), (double)seen->weights },
            { "gradients", "gradients", "bytes", BY_FORMULA(g * Psi), (double)seen->gradients },
            { "optimizer", "master, m and v", "bytes", BY_FORMULA((master + 2 * e) * Psi),
              (double)seen->optimizer },
            { "sent", "gradients and a loss", "bytes",
              BY_FORMULA(ring_bytes(ALL_REDUCE_PASSES, dp->size, (size_t)Psi, (size_t)g) + loss),
              (double)seen->sent },
            { 0 } });
}

// ---------------------------------------------------------------- against the unsplit training

typedef struct {
    Comm *dp;
    LossScale scale;
} Replica;
static StepResult one_step(void *lesson, Model *m, Optimizer *o, const Training *t,
                           const Batch *batch) {
    Replica *r = lesson;
    return mixed_step(m, r->dp, &r->scale, batch, t->micro_batches, o, t->clip);
}
// bf16: rank 0 adds the shards' gradients in rank order, so every bit must be equal. fp16: the
// gradients are 2^10 times as large as those of the unsplit training, which has no scale, so only
// losses and norms are compared.
static void compare(Run *run, Comm *dp, const Way *way) {
    const bool scaled = way->storage == FP16S;
    Training t = training(run, way);
    Replica replica = { dp, { .factor = scaled ? 0x1p10 : 1 } };
    t.data = data_synthetic(t.model.vocab, t.model.context, run->seed);
    t.steps = COMPARED;
    t.optimizer = sgd(0.1);
    Model *m = model_describe(&t.model, model_layers(&t.model));
    Trajectory got = trajectory_new(run, &t), want = training_unsplit(run, &t, dp->size);
    model_replicas(m, dp);
    model_allocate(m);
    training_run(&got, m, &t, dp->size, dp->rank, one_step, &replica);
    if (!scaled) training_compare_tensors(run, way->name, &got, &want, training_exact(run, &t));
    training_compare_numbers(run, way->name, &got, &want, training_limit(&t));
    trajectory_free(&got);
    trajectory_free(&want);
    model_free(m);
}

// ---------------------------------------------------------------- the state under ZeRO

// Bytes per parameter of a rank, as the ledger counts them: 2 + 2 + 12, as each stage divides them.
static void zero_states(Run *run, Comm *dp) {
    void (*const allocate[])(Model *, Comm *) = { zero1_allocate, zero2_allocate, zero3_allocate };
    ZeroStep *const step[] = { zero1_step, zero2_step, zero3_step };
    const Training t = training(run, &ways[BF16]);
    const size_t N = dp->size, e = sizeof(real);
    const CutSizes z = cut_sizes(&t.model, 1, 0);
    size_t Psi = config_parameters(&t.model);
    size_t own = stage_tables(&z) * range_size(shard_range(elements_wte(&z), N, dp->rank));
    for (size_t i = 0; i < cut_layers(&z); i++)
        own += range_size(shard_range(elements_unit(&z, i), N, dp->rank));
    const size_t whole[] = { 4, 2, 0 }, part[] = { 3 * e, 2 + 3 * e, 4 + 3 * e };
    for (size_t i = 0; i < 3; i++) {
        char id[16], name[32];
        Optimizer o = t.optimizer;
        Arena tokens = arena(MEM_WORKSPACE);
        Data d = data_synthetic(t.model.vocab, t.model.context, run->seed);
        Batch b = data_batch(&d, &tokens, 0, dp->rank, 1, N);
        Model *m = model_describe(&t.model, model_layers(&t.model));
        allocate[i](m, dp);
        optimizer_allocate(&o, m);
        step[i](m, dp, &b, 1, &o, 0);
        snprintf(id, sizeof id, "zero%zu", i + 1);
        snprintf(name, sizeof name, "state in bf16, ZeRO-%zu", i + 1);
        if (i == 2) picture_state(run, name, picture_state_now());
        check_cost(run, id, name, "bytes", formula((double)(whole[i] * Psi + part[i] * own)),
                   NOT_PREDICTED, zero_state_now());
        model_free(m);
        arena_free(&tokens);
    }
}

// ---------------------------------------------------------------- underflow in a large batch

// Computes one gradient in fp16, with gradients of weights in reals. In a batch of `tokens` tokens
// each token's gradient has the weight 1 / tokens. The result is multiplied by `tokens`, so in
// exact arithmetic it is the same for every batch. Returns |g - want| / |g|. fill: copies g to want
// first.
static double underflow(Comm *dp, Model *m, const Batch *batch, double tokens, double factor,
                        Tensor want, bool fill) {
    Batch b = *batch;
    b.token_weight = factor / tokens;
    model_zero_gradients(m);
    model_forward_backward(m, &b);
    data_parallel_all_reduce(dp, m);
    op_scale(m->g, m->g, (real)(tokens / factor));
    if (fill) tensor_copy(want, m->g);
    double whole = model_grad_norm(m, NULL);
    op_scale(want, want, -1);
    op_add(m->g, m->g, want);
    op_scale(want, want, -1);
    return model_grad_norm(m, NULL) / whole;
}

enum { BATCHES = 3 };
static const double batches[BATCHES] = { 0x1p8, 0x1p16, 0x1p22 }; // tokens
typedef struct {
    double plain[BATCHES], scaled; // scaled: the largest batch, with a factor
} Lost;
static Lost gradients_lost(Run *run, Comm *dp) {
    Training t = training(run, &ways[FP16]);
    Lost lost;
    t.model.main_gradients = true;
    Data d = data_synthetic(t.model.vocab, t.model.context, run->seed);
    Arena a = arena(MEM_WORKSPACE);
    Batch b = data_batch(&d, &a, 0, dp->rank, 1, dp->size);
    Model *m = model_describe(&t.model, model_layers(&t.model));
    model_replicas(m, dp);
    model_allocate(m);
    Tensor want = tensor_new(&a, 1, m->size);
    underflow(dp, m, &b, 1, 1, want, true);
    for (size_t i = 0; i < BATCHES; i++)
        lost.plain[i] = underflow(dp, m, &b, batches[i], 1, want, false);
    lost.scaled = underflow(dp, m, &b, batches[BATCHES - 1], 0x1p16, want, false);
    check_true(run, "fp16, batch of 4 million tokens",
               "without a scale a tenth of the gradient is lost", lost.plain[BATCHES - 1] > 0.1);
    check_true(run, "fp16, batch of 4 million tokens", "with the scale 2^16 less than a thousandth",
               lost.scaled < 1e-3);
    model_free(m);
    arena_free(&a);
    return lost;
}

// ---------------------------------------------------------------- the loss scale

// Rows of finite steps, each ended by an overflow. Within a row the factor has doubled once for
// every `patience` steps, and nothing of an earlier row counts. Every overflow halves it.
enum { PATIENCE = 3 };
static void check_scale(Run *run) {
    static const size_t row[] = { 2, 1, 4, 0, 2, 7, 2, 2, 3, 9 }; // finite steps
    enum { ROWS = sizeof row / sizeof *row, MOST = 64 };
    double got[MOST], want[MOST], fixed[2];
    size_t n = 0, doubled = 0;
    LossScale scale = { .factor = 1, .patience = PATIENCE }, same = { .factor = 8 };
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t k = 1; k <= row[r] + 1; k++) {
            bool finite = k <= row[r];
            loss_scale_next(&scale, finite);
            loss_scale_next(&same, finite);
            size_t in_row = finite ? k / PATIENCE : row[r] / PATIENCE;
            got[n] = scale.factor;
            want[n++] = ldexp(1, (int)(doubled + in_row) - (int)(finite ? r : r + 1));
        }
        doubled += row[r] / PATIENCE;
    }
    fixed[0] = same.factor;
    fixed[1] = (double)(scale.skipped + same.skipped);
    check_numbers(run, "loss scale", "its factor after each step: only good steps in a row count",
                  got, want, n, 0);
    check_numbers(run, "loss scale", "a fixed factor, and skipped steps", fixed,
                  (double[]){ 8, 2 * ROWS }, 2, 0);
}

// ---------------------------------------------------------------- the page

static void checks(Run *run, const Seen seen[WAYS]) {
    check_true(run, "loss in bf16", "within 0.005 of the loss in reals",
               fabs(seen[BF16].loss - seen[REAL].loss) < 0.005 &&
                   fabs(seen[MAIN].loss - seen[REAL].loss) < 0.005);
    check_true(run, "loss without a master", "more than 0.1 above the loss with one",
               seen[NO_MASTER].loss > seen[BF16].loss + 0.1);
    check_true(run, "loss in fp16", "within 0.1, and some steps are skipped",
               fabs(seen[FP16].loss - seen[REAL].loss) < 0.1 && seen[FP16].scale.skipped > 0);
}

static void table(Run *run, const Seen seen[WAYS]) {
    enum { COSTS = 4, LOSS = COSTS, SKIPPED, ROWS };
    static const char *const cost[COSTS] = { "weights", "gradients", "optimizer", "sent" };
    Result row[ROWS + 1] = { { .what = "weights", .formula = "2 Psi; fp32: e Psi" },
                             { .what = "gradients", .formula = "2 Psi; fp32, main: e Psi" },
                             { .what = "master, m, v", .formula = "3 e Psi; 2 without master" },
                             { .what = "sent per rank", .formula = "2 (N-1)/N of gradients" },
                             { .what = "loss", .formula = "mean, last 20 steps" },
                             { .what = "skipped steps", .formula = "a gradient overflows" } };
    char cell[ROWS][WAYS][24];
    const char *columns[WAYS + 1] = { 0 };
    for (size_t i = 0; i < WAYS; i++) {
        columns[i] = ways[i].name;
        for (size_t k = 0; k < COSTS; k++)
            snprintf(cell[k][i], sizeof cell[k][i], "%s.%s", ways[i].id, cost[k]);
        snprintf(cell[LOSS][i], sizeof cell[LOSS][i], "=%.3f", seen[i].loss);
        snprintf(cell[SKIPPED][i], sizeof cell[SKIPPED][i], "=%zu", seen[i].scale.skipped);
        for (size_t k = 0; k < ROWS; k++) row[k].cell[i] = cell[k][i];
    }
    results(run, columns, row);
}

static void conclude(Run *run, const Seen seen[WAYS], const Lost *lost) {
    const double Psi = (double)config_parameters(&tiny);
    const Seen *s = &seen[BF16];
    say_answer(
        run,
        "%.0f bytes are the weight, %.0f its gradient, %.0f the master and AdamW's m and v. Not "
        "all can be 16-bit numbers: without a master the loss is %.3f, with it %.3f. "
        "Training in %s reaches %.3f.",
        (double)s->weights / Psi, (double)s->gradients / Psi, (double)s->optimizer / Psi,
        seen[NO_MASTER].loss, s->loss, element_name(REALS), seen[REAL].loss);
    say_cost(
        run,
        "a master of %zu bytes per parameter. fp16 also needs a loss scale: with a batch of 4 "
        "million tokens a gradient is wrong by %.0f %% without it, by %.2f %% with it; here %zu "
        "of %d steps were skipped.",
        sizeof(real), 100 * lost->plain[BATCHES - 1], 100 * lost->scaled, seen[FP16].scale.skipped,
        STEPS);
    say_use_when(run, "a GPU has fast products of 16-bit matrices, as NVIDIA's have since Volta "
                      "(2017). Choose bf16 where "
                      "it exists, because it has the range of fp32 and needs no loss scale.");
}

static void mixed_precision(Run *run) {
    Comm *dp = comm_split(run->world, 0, run->world->rank, "dp");
    Seen seen[WAYS];
    compare(run, dp, &ways[MAIN]);
    compare(run, dp, &ways[BF16]);
    compare(run, dp, &ways[FP16]);
    for (size_t i = 0; i < WAYS; i++) {
        seen[i] = train(run, dp, &ways[i]);
        costs(run, dp, &ways[i], &seen[i]);
    }
    checks(run, seen);
    check_scale(run);
    const char *real_name = element_name(REALS);
    say(run,
        "Psi = %zu parameters, N = %zu ranks, AdamW, %d steps of %d sequences of a text. e = %zu "
        "bytes: %s.\nbf16 has the range of fp32 and few digits; fp16 has more digits and a small "
        "range. Master (in o):\nthe weights in %s, to which updates are added; the 16-bit weights "
        "are the master, rounded.",
        config_parameters(&tiny), dp->size, STEPS, SEQUENCES, sizeof(real), real_name, real_name);
    picture_state(run, sizeof(real) == 8 ? "state in fp64" : "state in fp32", seen[REAL].state);
    picture_state(run, "state in bf16", seen[BF16].state);
    zero_states(run, dp);
    Lost lost = gradients_lost(run, dp);
    say(run,
        "\nThe loss is a mean, so with more tokens each token's gradient is smaller. fp16 makes "
        "tiny "
        "numbers 0.\nThe error of a gradient for %.0f, %.0f and %.0f tokens: %.2f %%, %.1f %% and "
        "%.0f %%. With a loss scale\n(every gradient times 2^16, divided by it later) the last "
        "error is %.2f %%.",
        batches[0], batches[1], batches[2], 100 * lost.plain[0], 100 * lost.plain[1],
        100 * lost.plain[2], 100 * lost.scaled);
    say(run,
        "main g: bf16, but gradients in %s. no master: updates are added directly to bf16 weights.",
        real_name);
    table(run, seen);
    conclude(run, seen, &lost);
    comm_free(dp);
}

static const Option options[] = {
    { "data", "FILE", "LICENSE", "the text on which the losses are compared" },
    { "link", "NAME[,NAME]", "slow", NULL },
    REALS_ONLY("this lesson compares all storages itself"),
    { 0 },
};
EXPERIMENT(mixed_precision, options);
