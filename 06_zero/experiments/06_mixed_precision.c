// 06_mixed_precision.c: trains one model on a text five times, with weights in reals, bf16 or fp16,
// and compares bytes, losses and replicas. A short training in bf16 is compared with the unsplit
// training, and the loss scale with its rule.
#include <math.h>
#include <stdlib.h>
#include "06_zero/experiments/experiments.h"

// The model is untied, so no table has two gradients, and every byte belongs to one parameter.
static const ModelConfig tiny = {
    .layers = 2, .width = 32, .heads = 4, .context = 16, .vocab = 256, .untied = true
};
enum { STEPS = 160, LAST = 20, SEQUENCES = 16 };
// The first factor for fp16 is too large on purpose, so the run must find a smaller factor.
static const LossScale first_scale = { .factor = 0x1p20, .patience = 60 };

enum { REAL, BF16, MAIN, NO_MASTER, FP16, WAYS };
typedef struct {
    const char *id, *name;
    Element storage;
    bool main_gradients, no_master;
} Way;
static const Way ways[WAYS] = {
    [REAL] = { "real", sizeof(real) == 8 ? "fp64" : "fp32", REALS, true, false },
    [BF16] = { "bf16", "bf16", BF16S, false, false },
    [MAIN] = { "main", "bf16, main g", BF16S, true, false },
    [NO_MASTER] = { "none", "no master", BF16S, false, true },
    [FP16] = { "fp16", "fp16", FP16S, false, false },
};

typedef struct {
    double loss;      // mean of the last LAST steps
    StateBytes state; // bytes between steps
    size_t skipped;   // skipped steps
} Seen;

static Training training(Run *run, const Way *way) {
    Training t = { .model = tiny, .sequences = SEQUENCES, .micro_batches = 1, .clip = 1 };
    t.model.seed = run->seed;
    t.model.storage = way->storage;
    t.model.main_gradients = way->main_gradients;
    return t;
}

// ---------------------------------------------------------------- five trainings on a text

static void check_bytes(Run *run, const Way *way, const StateBytes *state) {
    const double Psi = (double)config_parameters(&tiny), e = sizeof(real);
    const double w = (double)element_size(way->storage), g = way->main_gradients ? e : w;
    const double optimizer = way->storage == REALS || way->no_master ? 2 * e : 3 * e;
    const size_t N = run->world->size, *bytes = state->bytes;
    const double sent = ring_bytes(ALL_REDUCE_PASSES, N, (size_t)Psi, (size_t)g) +
                        ring_bytes(ALL_REDUCE_PASSES, N, 1, sizeof(double));
    const CostRow row[] = {
        { "weight", "a weight", "bytes", BY_FORMULA(w), (double)bytes[0] / Psi },
        { "gradient", "its gradient", "bytes", BY_FORMULA(g), (double)bytes[1] / Psi },
        { "optimizer", "its master, m and v", "bytes", BY_FORMULA(optimizer),
          (double)bytes[2] / Psi },
        { "state", "a parameter", "bytes", BY_FORMULA(w + g + optimizer),
          (double)(bytes[0] + bytes[1] + bytes[2]) / Psi },
        { "sent", "gradients and a loss", "bytes", BY_FORMULA(sent),
          (double)comm_bytes_sent(run->world) },
        { 0 }
    };
    check_costs(run, page_text(run, "%s.%%s", way->id), page_text(run, "%s: %%s", way->name), row);
}

static Seen train(Run *run, const Way *way) {
    Comm *dp = run->world;
    Training t = training(run, way);
    Optimizer o = adamw(2e-4);
    o.no_master = way->no_master;
    t.data = training_text(run, "LICENSE", NULL, t.model.vocab, t.model.context, SEQUENCES);
    Model *m = model_describe(&t.model, model_layers(&t.model));
    Seen seen = { 0 };
    LossScale scale = { .factor = 1 };
    if (way->storage == FP16S) scale = first_scale;
    mixed_allocate(m, dp, &o);
    for (size_t s = 0; s < STEPS; s++) {
        progress(run, way->name, s, STEPS);
        Arena tokens = arena(MEM_WORKSPACE);
        Batch *batch = training_batches(&t, &tokens, s, dp->size, dp->rank);
        comm_ledger_reset(dp);
        StepResult r = mixed_step(m, dp, &scale, batch, 1, &o, t.clip);
        if (s >= STEPS - LAST) seen.loss += r.loss / LAST;
        free(batch);
        arena_free(&tokens);
    }
    progress(run, way->name, STEPS, STEPS);
    seen.state = picture_state_now();
    seen.skipped = scale.skipped;
    check_bytes(run, way, &seen.state);
    Snapshot *prints = snapshot_new_prints(run);
    model_snapshot(m, prints, UNIT_WEIGHTS, NULL);
    check_replicas(run, way->name, prints);
    snapshot_free(prints);
    model_free(m);
    data_free(&t.data);
    return seen;
}

// ---------------------------------------------------------------- against the unsplit training

// Runs one step with a loss scale, then divides the gradients by the scale. The loss scale is a
// power of two, and bf16 has the range of fp32. So these gradients equal the gradients of the
// unsplit training, which has no scale. The unsplit training adds the gradients of the shards in
// rank order, as the all-reduce does, so every bit is equal.
static StepResult scaled_step(Model *m, Comm *dp, const Batch *batch, size_t micro_batches,
                              Optimizer *o, double clip) {
    LossScale scale = { .factor = 0x1p10 };
    StepResult r = mixed_step(m, dp, &scale, batch, micro_batches, o, clip);
    op_scale(m->g, m->g, (real)(1 / scale.factor));
    return r;
}
static void compare(Run *run) {
    Training t = training(run, &ways[BF16]);
    t.data = data_synthetic(t.model.vocab, t.model.context, run->seed);
    t.steps = 3;
    t.optimizer = sgd(0.1);
    ZeroLesson lesson = zero_stages[0];
    lesson.name = "bf16";
    lesson.step = scaled_step;
    zero_compare(run, run->world, &lesson, t);
}

// ---------------------------------------------------------------- the loss scale

// Checks the factor after each step, with a patience of 3. The third step overflows, so the two
// good steps before the overflow no longer count. After a doubling the count begins again at 0.
static void check_scale(Run *run) {
    enum { N = 10 };
    static const bool finite[N] = { true, true, false, true, true, true, true, true, true, false };
    static const double want[N] = { 8, 8, 4, 4, 4, 8, 8, 8, 16, 8 };
    double got[N], fixed[2];
    LossScale scale = { .factor = 8, .patience = 3 }, same = { .factor = 8 };
    for (size_t i = 0; i < N; i++) {
        loss_scale_next(&scale, finite[i]);
        loss_scale_next(&same, finite[i]);
        got[i] = scale.factor;
    }
    fixed[0] = same.factor;
    fixed[1] = (double)(scale.skipped + same.skipped);
    check_numbers(run, "loss scale", "its factor after each step: only good steps in a row count",
                  got, want, N, 0);
    check_numbers(run, "loss scale", "a fixed factor, and skipped steps", fixed,
                  (double[]){ 8, 2 + 2 }, 2, 0);
}

// ---------------------------------------------------------------- the page

#define EACH_WAY(id) \
    { "real." id, "bf16." id, "main." id, "none." id, "fp16." id }
static void table(Run *run, const Seen seen[WAYS]) {
    const char *columns[WAYS + 1] = { 0 };
    Result row[] = { { "weight", sizeof(real) == 8 ? "8 or 2" : "4 or 2", EACH_WAY("weight") },
                     { "gradient",
                       sizeof(real) == 8 ? "as the weight; main g: 8" : "as the weight; main g: 4",
                       EACH_WAY("gradient") },
                     { "master, m, v", "fp32, no master: m, v", EACH_WAY("optimizer") },
                     { "per parameter", "sum", EACH_WAY("state") },
                     { "sent per rank", "2 (N-1)/N of gradients", EACH_WAY("sent") },
                     { "loss", "mean, last 20 steps", { 0 } },
                     { "skipped steps", "a scaled gradient overflows", { 0 } },
                     { 0 } };
    for (size_t i = 0; i < WAYS; i++) {
        columns[i] = ways[i].name;
        row[5].cell[i] = page_text(run, "=%.3f", seen[i].loss);
        row[6].cell[i] = page_text(run, "=%zu", seen[i].skipped);
    }
    results(run, columns, row);
}

static void conclude(Run *run, const Seen seen[WAYS]) {
    const double bf16 = cost_value(run, "bf16.state"), reals = cost_value(run, "real.state");
    const char *name = element_name(REALS);
    const char *state = page_text(run, "no state: %g bytes, as in %s", bf16, name);
    if (bf16 < reals)
        state = page_text(run, "little state: %g bytes instead of %g in %s", bf16, reals, name);
    say_answer(run,
               "In bf16 %g bytes are the weight, %g its gradient, %g the master and AdamW's m and "
               "v. The master cannot be a 16-bit number rounded to nearest, because it would lose "
               "small updates. 16-bit moments were not tried. Without a master the loss is %.3f, "
               "with it %.3f, in %s %.3f.",
               cost_value(run, "bf16.weight"), cost_value(run, "bf16.gradient"),
               cost_value(run, "bf16.optimizer"), seen[NO_MASTER].loss, seen[BF16].loss, name,
               seen[REAL].loss);
    say_cost(run,
             "a master of %zu bytes per parameter, so 16-bit training saves %s. 16-bit storage "
             "saves activations and, with 16-bit gradients, bytes sent. fp16 also needs a loss "
             "scale. The first scale, 2^%.0f, is too large on purpose: %zu of %d steps are "
             "skipped.",
             sizeof(real), state, log2(first_scale.factor), seen[FP16].skipped, STEPS);
    say_use_when(run,
                 "a GPU has fast products of 16-bit matrices (NVIDIA: fp16 since Volta, bf16 "
                 "since Ampere). Choose bf16 where it exists, because it needs no loss scale.");
}

static void mixed_precision(Run *run) {
    Seen seen[WAYS];
    compare(run);
    check_scale(run);
    for (size_t i = 0; i < WAYS; i++) seen[i] = train(run, &ways[i]);
    const double reals = seen[REAL].loss, bf16 = seen[BF16].loss;
    check_true(run, "loss in bf16", "within 0.005 of the loss in reals",
               fabs(bf16 - reals) < 0.005 && fabs(seen[MAIN].loss - reals) < 0.005);
    check_true(run, "loss without a master", "more than 0.1 above the loss with one",
               seen[NO_MASTER].loss > bf16 + 0.1);
    check_true(run, "loss in fp16", "within 0.1, and some steps are skipped",
               fabs(seen[FP16].loss - reals) < 0.1 && seen[FP16].skipped > 0);
    const char *name = element_name(REALS);
    say(run,
        "N = %zu replicas of %zu parameters; AdamW, %d steps of %d sequences of a text.\n"
        "With 16-bit weights a rank also keeps a master: the weight in %s. An update is added to "
        "the\nmaster, because it is often too small to change a 16-bit number. The weight is the "
        "master, rounded.",
        run->world->size, config_parameters(&tiny), STEPS, SEQUENCES, name);
    picture_state(run, page_text(run, "state in %s", name), seen[REAL].state);
    picture_state(run, "state in bf16", seen[BF16].state);
    say(run,
        "o: master, m and v. main g: gradients in %s. no master: updates are added to the bf16 "
        "weights.\n"
        "fp16 has 11 significant bits, bf16 8. bf16 reaches as far as fp32, fp16 only up to 65504. "
        "fp16 has\n"
        "no number between 0 and 6e-8, so small gradients become 0. A loss scale (a power of two) "
        "multiplies\n"
        "the loss and so every gradient; the update divides by the scale. If a scaled gradient "
        "overflows, the\n"
        "step is skipped, and the scale is halved. The scale doubles after %zu good steps.",
        name, first_scale.patience);
    table(run, seen);
    conclude(run, seen);
}

static const Option options[] = {
    REALS_ONLY("this lesson compares all storages itself"),
    { 0 },
};
EXPERIMENT(mixed_precision, options);
