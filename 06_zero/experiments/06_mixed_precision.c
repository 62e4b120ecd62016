// 06_mixed_precision.c: trains one model on a text in five precisions, and compares bytes, losses
// and replicas. Then it counts the state in bf16 under ZeRO-1 to ZeRO-3, and computes one gradient
// with the token weight of a large batch in fp16.
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

enum { REAL, BF16, MAIN, NO_MASTER, FP16, WAYS };
typedef struct {
    const char *id, *name;
    Element storage;
    bool main_gradients, no_master;
    LossScale scale;
} Way;
// The first factor is too large on purpose: the run has to find a smaller one.
static const Way ways[WAYS] = {
    [REAL] = { "real", sizeof(real) == 8 ? "fp64" : "fp32", REALS, true, false, { .factor = 1 } },
    [BF16] = { "bf16", "bf16", BF16S, false, false, { .factor = 1 } },
    [MAIN] = { "main", "bf16, main g", BF16S, true, false, { .factor = 1 } },
    [NO_MASTER] = { "none", "no master", BF16S, false, true, { .factor = 1 } },
    [FP16] = { "fp16", "fp16", FP16S, false, false, { .factor = 0x1p20, .patience = 60 } },
};

typedef struct {
    double loss;      // mean of the last steps
    StateBytes state; // bytes between steps
    size_t sent;      // bytes of the last step's gradients
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
            { "weights", "weights", "bytes", BY_FORMULA(w * Psi), (double)seen->state.bytes[0] },
            { "gradients", "gradients", "bytes", BY_FORMULA(g * Psi),
              (double)seen->state.bytes[1] },
            { "optimizer", "master, m and v", "bytes", BY_FORMULA((master + 2 * e) * Psi),
              (double)seen->state.bytes[2] },
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

// ---------------------------------------------------------------- ZeRO in bf16

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

enum { LARGE_BATCH = 1 << 22 }; // tokens

// g <- a gradient with the token weight factor / tokens, multiplied by tokens / factor. In exact
// arithmetic it is the same for all numbers of tokens and all factors.
static void gradient(Comm *dp, Model *m, Batch b, double tokens, double factor) {
    b.token_weight = factor / tokens;
    model_zero_gradients(m);
    model_forward_backward(m, &b);
    data_parallel_all_reduce(dp, m);
    op_scale(m->g, m->g, (real)(tokens / factor));
}

// The error |g - want| / |g| of a gradient in fp16, in a large batch: without a loss scale, and
// with the scale 2^16. The gradients of the weights are reals.
typedef struct {
    double plain, scaled;
} Lost;
static Lost gradients_lost(Run *run, Comm *dp) {
    static const double factors[] = { 1, 0x1p16 };
    double error[2];
    Training t = training(run, &ways[FP16]);
    t.model.main_gradients = true;
    Data d = data_synthetic(t.model.vocab, t.model.context, run->seed);
    Arena a = arena(MEM_WORKSPACE);
    Batch b = data_batch(&d, &a, 0, dp->rank, 1, dp->size);
    Model *m = model_describe(&t.model, model_layers(&t.model));
    model_replicas(m, dp);
    model_allocate(m);
    Tensor minus = tensor_new(&a, 1, m->size);
    gradient(dp, m, b, 1, 1);
    op_scale(minus, m->g, -1);
    for (size_t i = 0; i < 2; i++) {
        gradient(dp, m, b, LARGE_BATCH, factors[i]);
        const double whole = model_grad_norm(m, NULL);
        op_add(m->g, m->g, minus);
        error[i] = model_grad_norm(m, NULL) / whole;
    }
    model_free(m);
    arena_free(&a);
    check_true(run, "fp16, batch of 4 million tokens",
               "without a scale a tenth of the gradient is lost", error[0] > 0.1);
    check_true(run, "fp16, batch of 4 million tokens", "with the scale 2^16 less than a thousandth",
               error[1] < 1e-3);
    return (Lost){ error[0], error[1] };
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

// The table shows bytes per parameter, as the ledger counts them.
static void table(Run *run, const Seen seen[WAYS]) {
    enum { STATES = 3, SUM = STATES, SENT, LOSS, SKIPPED, ROWS };
    Result row[ROWS + 1] = {
        { .what = "weight", .formula = sizeof(real) == 8 ? "8 or 2" : "4 or 2" },
        { .what = "gradient", .formula = "as the weight; main g: fp32" },
        { .what = "master, m, v", .formula = "no master: m, v" },
        { .what = "bytes per parameter", .formula = "sum" },
        { .what = "sent per rank", .formula = "2 (N-1)/N of gradients" },
        { .what = "loss", .formula = "mean, last 20 steps" },
        { .what = "skipped steps", .formula = "a scaled gradient overflows" }
    };
    char cell[ROWS][WAYS][24];
    const char *columns[WAYS + 1] = { 0 };
    const size_t Psi = config_parameters(&tiny);
    for (size_t i = 0; i < WAYS; i++) {
        size_t sum = 0;
        for (size_t k = 0; k < STATES; k++) {
            sum += seen[i].state.bytes[k];
            snprintf(cell[k][i], sizeof cell[k][i], "=%g",
                     (double)seen[i].state.bytes[k] / (double)Psi);
        }
        snprintf(cell[SUM][i], sizeof cell[SUM][i], "=%g", (double)sum / (double)Psi);
        snprintf(cell[SENT][i], sizeof cell[SENT][i], "%s.sent", ways[i].id);
        snprintf(cell[LOSS][i], sizeof cell[LOSS][i], "=%.3f", seen[i].loss);
        snprintf(cell[SKIPPED][i], sizeof cell[SKIPPED][i], "=%zu", seen[i].scale.skipped);
        columns[i] = ways[i].name;
        for (size_t k = 0; k < ROWS; k++) row[k].cell[i] = cell[k][i];
    }
    results(run, columns, row);
}

static void conclude(Run *run, const Seen seen[WAYS], const Lost *lost) {
    const double Psi = (double)config_parameters(&tiny);
    const StateBytes s = seen[BF16].state;
    say_answer(run,
               "%g bytes are the weight, %g its gradient, %g the master and AdamW's m and v. Not "
               "all can be 16-bit numbers: without a master the loss is %.3f, with it %.3f, in %s "
               "%.3f.",
               (double)s.bytes[0] / Psi, (double)s.bytes[1] / Psi, (double)s.bytes[2] / Psi,
               seen[NO_MASTER].loss, seen[BF16].loss, element_name(REALS), seen[REAL].loss);
    say_cost(
        run,
        "a master of %zu bytes per parameter. In fp16 a gradient that is too small "
        "becomes 0. So fp16 also needs a loss scale: a power of two multiplies the loss, and "
        "so every gradient; the update divides by it. In a batch of 4 million tokens a gradient is "
        "wrong by %.0f %% without a scale, by %.2f %% with it.",
        sizeof(real), 100 * lost->plain, 100 * lost->scaled);
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
    const char *name = element_name(REALS);
    picture_state(run, sizeof(real) == 8 ? "state in fp64" : "state in fp32", seen[REAL].state);
    picture_state(run, "state in bf16", seen[BF16].state);
    zero_states(run, dp);
    say(run,
        "\nMaster: the weight in %s, to which updates are added. It is a part of o. The bf16 "
        "weight "
        "is the\nmaster, rounded: an update alone is often too small to change a number of 16 "
        "bits. "
        "So bf16 saves\n%zu bytes on weight and gradient, and needs %zu bytes for the master.\n"
        "main g: gradients in %s. no master: bf16 weights are updated. fp16: more digits, small "
        "range.\n",
        name, 2 * (sizeof(real) - 2), sizeof(real), name);
    table(run, seen);
    say(run, "  %zu parameters, N = %zu ranks, AdamW, %d steps of %d sequences of a text",
        config_parameters(&tiny), dp->size, STEPS, SEQUENCES);
    Lost lost = gradients_lost(run, dp);
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
