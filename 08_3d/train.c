// ranks: 8
// level: core
// question: Can everything so far be combined, and does the whole still compute what one device would?
//
// Trains GPT-2's architecture on bytes of real text with data x tensor x pipeline parallelism. What a step does is in trainer.c;
// here are the options, the loop, the log, and (--check) the unsplit model that is trained beside it and compared.
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "05_pipeline_1f1b/schedule_1f1b.h"
#include "08_3d/predict.h"
#include "08_3d/safetensors.h"
#include "08_3d/trainer.h"
#include "common/picture.h"
#include "common/sketch.h"

static const Option options[] = {
    { "dp", "N", NULL, "data-parallel replicas; without it: the ranks that --tp and --pp leave" },
    { "tp", "N", NULL, "tensor-parallel ranks of a stage; without it: 2 where the ranks allow, else 1" },
    { "pp", "N", NULL, "pipeline stages; without it: 2 where the ranks allow, else 1" },
    { "batch", "N", "16", "sequences of one step, over all replicas" },
    { "micro-batch", "N", "4", "sequences of one replica and micro-batch, at most" },
    { "schedule", "naive|gpipe|1f1b", "1f1b", "order of forwards and backwards in the pipeline" },
    { "stage-layers", "LIST", NULL, "blocks of each stage, such as 3,4,3; without it: as equal as possible" },
    { "zero", "0|1|2|3", "0", "shard nothing, optimizer state, gradients too, weights too, over the replicas" },
    { "recompute", "none|selective|full", "none", "what backward computes again instead of keeping it" },
    { "layers", "N", "4", "blocks" },
    { "width", "N", "128", "features of a token" },
    { "heads", "N", "4", "attention heads" },
    { "context", "N", "64", "tokens of a sequence" },
    { "dropout", "X", "0", "probability of dropping an element; with --check: 0.1 unless given" },
    { "data", "FILE", NULL, "text to learn; without it: this tree's own Markdown and sources" },
    { "steps", "N", "400", "optimizer steps" },
    { "lr", "X", "0.003", "highest learning rate" },
    { "warmup", "N", "20", "steps of linear warm-up; then the rate falls as a cosine to a tenth" },
    { "weight-decay", "X", "0.1", "of matrices; AdamW only" },
    { "clip", "X", "1", "largest gradient norm; 0: no clipping" },
    { "optimizer", "sgd|adamw", "adamw", "update rule" },
    { "eval-every", "N", "100", "steps between evaluations on held-out text; 0: at the end only" },
    { "export", "FILE", NULL, "write the weights as safetensors, for Hugging Face's GPT-2" },
    { "check", NULL, NULL, "train the unsplit model beside it and compare losses, norms, gradients and weights" },
    { "log", "FILE", NULL, "one JSON object a step" },
    { "reduce", "ordered|fast", "fast", "add in rank order on every transport, or as the library likes" },
    {0},
};

// ---------------------------------------------------------------- options

// "3,4,3" -> {3, 4, 3}
static size_t *stage_layers(Run *run, size_t stages) {
    if (!option_given(run, "stage-layers")) return NULL;
    const char *text = option_text(run, "stage-layers");
    size_t *blocks = host_alloc(stages * sizeof *blocks), n = 0;
    for (const char *s = text; ; s++) {
        char *end;
        REQUIRE(*s >= '0' && *s <= '9', "--stage-layers %s: expected whole numbers with commas between them, such as 3,4,3", text);
        unsigned long value = strtoul(s, &end, 10);
        REQUIRE(n < stages && value > 0 && value <= option_size(run, "layers"),
                "--stage-layers %s: expected %zu numbers, one for each stage of --pp %zu, each from 1 to --layers %zu",
                text, stages, stages, option_size(run, "layers"));
        blocks[n++] = value;
        s = end;
        if (*s != ',') break;
    }
    REQUIRE(n == stages && text[strspn(text, "0123456789,")] == 0, "--stage-layers %s: expected %zu numbers, one for each stage of --pp %zu", text, stages, stages);
    return blocks;
}

static TrainerConfig trainer_config(Run *run) {
    const char *schedule = option_text(run, "schedule"), *how = option_text(run, "recompute");
    bool check = option_flag(run, "check");
    TrainerConfig c = {
        .model = { .layers = option_size(run, "layers"), .width = option_size(run, "width"), .heads = option_size(run, "heads"),
                   .context = option_size(run, "context"), .vocab = 256, .seed = run->seed,
                   .dropout = check && !option_given(run, "dropout") ? 0.1 : option_real(run, "dropout") },
        .mesh = mesh_degrees(run), .batch = option_size(run, "batch"), .micro_batch = option_size(run, "micro-batch"),
        .schedule = !strcmp(schedule, "naive") ? schedule_naive : !strcmp(schedule, "gpipe") ? schedule_gpipe : schedule_1f1b,
        .zero = (size_t)atoi(option_text(run, "zero")), .clip = option_real(run, "clip"),
        .recompute = !strcmp(how, "full") ? RECOMPUTE_FULL : !strcmp(how, "selective") ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE,
    };
    REQUIRE(c.clip >= 0, "--clip must not be negative: 0 turns clipping off");
    REQUIRE(option_real(run, "lr") >= 0 && option_real(run, "weight-decay") >= 0, "--lr and --weight-decay must not be negative");
    c.stage_blocks = stage_layers(run, c.mesh.pp);
    return c;
}

static double learning_rate(Run *run, size_t step) {
    double peak = option_real(run, "lr");
    size_t warmup = option_size(run, "warmup"), steps = option_size(run, "steps");
    if (step < warmup) return peak * (double)(step + 1) / (double)warmup;
    double progress = (double)(step - warmup) / (double)(steps > warmup ? steps - warmup : 1);
    return peak * (0.1 + 0.9 * 0.5 * (1 + cos(3.141592653589793 * progress)));
}

static Optimizer optimizer_of(Run *run) {
    Optimizer o = strcmp(option_text(run, "optimizer"), "sgd") ? adamw(0) : sgd(0);
    if (o.kind == ADAMW) o.weight_decay = option_real(run, "weight-decay");
    return o;
}

// ---------------------------------------------------------------- the unsplit model beside it (rank 0, --check)

typedef struct { Model *model; Optimizer optimizer; } Unsplit;

static Unsplit unsplit_new(Run *run, const TrainerConfig *c) {
    Unsplit u = { .optimizer = optimizer_of(run) };
    ledger_pause();
    u.model = model_describe(&c->model, model_layers(&c->model));
    model_allocate(u.model);
    optimizer_allocate(&u.optimizer, u.model);
    ledger_resume();
    return u;
}

// The whole global batch at once.
static StepResult unsplit_gradients(Unsplit *u, const TrainerConfig *c, const Data *d, uint64_t step) {
    size_t n = config_tensors(&c->model);
    double *squares = host_alloc(n * sizeof *squares);
    ledger_pause();
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, 0, c->batch, c->batch);
    model_zero_gradients(u->model);
    StepResult r = { .loss = model_forward_backward(u->model, &b) * b.token_weight };
    model_fold_tied(u->model);
    model_grad_squares(u->model, squares);
    r.grad_norm = norm_of_squares(squares, n);
    arena_free(&tokens);
    ledger_resume();
    free(squares);
    return r;
}

static void compare(Run *run, Trainer *t, Unsplit *u, void (*put)(const Model *, Snapshot *), const char *what, double limit) {
    Snapshot *got = snapshot_new(run), *want = snapshot_new(run);
    put(t->model, got);
    if (u->model) put(u->model, want);
    check_close(run, what, got, want, limit);
    snapshot_free(got);
    snapshot_free(want);
}

// ---------------------------------------------------------------- costs of one step

// Starts the ledgers anew; costs_end() compares what the step in between has cost with the formulas.
static void costs_begin(Trainer *t) {
    Comm *groups[] = { t->mesh.world, t->mesh.tp, t->mesh.pp, t->mesh.dp, t->mesh.model, t->mesh.tied };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i]) comm_ledger_reset(groups[i]);
    memory_reset_peaks();
}
static void costs_end(Run *run, Trainer *t) {
    const Mesh *m = &t->mesh;
    Prediction p = predict_step(&t->config, run->world->rank, t->optimizer.kind == ADAMW);
    cost(run, "tensor-parallel calls", "calls", (double)p.tp_calls, (double)m->tp->ledger[COMM_ALL_REDUCE].calls);
    cost(run, "tensor-parallel traffic", "bytes sent", (double)p.tp_bytes, (double)comm_bytes_sent(m->tp));
    cost(run, "pipeline traffic", "bytes sent", (double)p.pp_bytes, (double)comm_bytes_sent(m->pp));
    cost(run, "data-parallel traffic", "bytes sent", (double)p.dp_bytes, (double)comm_bytes_sent(m->dp));
    cost(run, "tied embedding", "bytes sent", (double)p.tied_bytes, m->tied ? (double)comm_bytes_sent(m->tied) : 0);
    cost(run, "loss and norm", "bytes sent", (double)p.scalar_bytes, (double)(comm_bytes_sent(m->world) + comm_bytes_sent(m->model)));
    cost(run, "parameters", "bytes", (double)p.parameters, (double)memory_now(MEM_PARAMETERS));
    cost(run, "gradients", "bytes", (double)p.gradients, (double)memory_now(MEM_GRADIENTS));
    cost(run, "optimizer state", "bytes", (double)p.optimizer, (double)memory_now(MEM_OPTIMIZER));
    cost(run, "activations, peak", "bytes", (double)p.activations, (double)memory_peak(MEM_ACTIVATIONS));
}

// ---------------------------------------------------------------- the log

static void log_line(FILE *log, const char *file, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void log_line(FILE *log, const char *file, const char *format, ...) {
    if (!log) return;
    va_list args;
    va_start(args, format);
    bool good = vfprintf(log, format, args) >= 0 && fflush(log) == 0;
    va_end(args);
    if (!good) fault("cannot write the log %s: %s", file, strerror(errno));
}

static FILE *log_open(Run *run) {
    if (!option_given(run, "log") || run->world->rank) return NULL;
    FILE *log = fopen(option_text(run, "log"), "w");
    REQUIRE(log, "cannot write the log %s: %s", option_text(run, "log"), strerror(errno));
    return log;
}

// ---------------------------------------------------------------- training

typedef struct { double *loss, *norm; } Curve;
static Curve curve_new(size_t steps) { return (Curve){ host_alloc(steps * sizeof(double)), host_alloc(steps * sizeof(double)) }; }
static void curve_free(Curve c) { free(c.loss); free(c.norm); }

static void loop(Run *run, Trainer *t, Unsplit *u, const Data *d, Curve got, Curve want) {
    size_t steps = option_size(run, "steps"), every = option_size(run, "eval-every"), windows = data_eval_windows(d);
    FILE *log = log_open(run);
    const char *file = option_given(run, "log") ? option_text(run, "log") : "";
    size_t show = steps > 20 ? steps / 20 : 1;
    for (size_t step = 0; step < steps; step++) {
        double start = now();
        if (step + 1 == steps) { costs_begin(t); picture_begin(run, MEM_ACTIVATIONS); }
        StepResult r = trainer_gradients(t, d, step);
        got.loss[step] = r.loss;
        got.norm[step] = r.grad_norm;
        if (u->model) {
            StepResult w = unsplit_gradients(u, &t->config, d, step);
            want.loss[step] = w.loss;
            want.norm[step] = w.grad_norm;
            u->optimizer.lr = learning_rate(run, step);
        }
        if (option_flag(run, "check") && step == 0)
            compare(run, t, u, model_snapshot_gradients, "3D = unsplit, first step's gradients", LIMIT_ROUNDING);
        t->optimizer.lr = learning_rate(run, step);
        trainer_update(t, r);
        if (step + 1 == steps) { picture_end(run); costs_end(run, t); }
        if (u->model) optimizer_step(&u->optimizer, u->model, clip_factor(want.norm[step], t->config.clip));

        double seconds = now() - start;
        size_t tokens = data_count(d, step, 0, t->config.batch);
        log_line(log, file, "{\"step\":%zu,\"loss\":%.9g,\"grad_norm\":%.9g,\"lr\":%.9g,\"tokens\":%zu,\"seconds\":%.6f,\"tokens_per_second\":%.1f}\n",
                 step, r.loss, r.grad_norm, t->optimizer.lr, tokens, seconds, (double)tokens / seconds);
        if (step % show == 0 || step + 1 == steps)
            say(run, "step %5zu   loss %7.4f   gradient norm %8.4f   lr %.5f   %8.0f tokens/s\n", step, r.loss, r.grad_norm, t->optimizer.lr, (double)tokens / seconds);
        if (every && (step + 1) % every == 0 && step + 1 < steps)
            say(run, "             held-out loss %.4f\n", trainer_evaluate(t, d, windows < 64 ? windows : 64));
    }
    Timing timing = picture_timing(run);
    picture_show(run, "the last step", PICTURE_MEMORY);
    picture_summary(run, &timing);
    double eval = trainer_evaluate(t, d, windows), entropy = data_byte_entropy(d);
    log_line(log, file, "{\"eval_loss\":%.9g}\n", eval);
    if (log && fclose(log)) fault("cannot write the log %s: %s", file, strerror(errno));
    sketch_curve(run, "loss, nats a byte", got.loss, steps);
    say(run, "held-out loss %.4f nats a byte: %.2f of %.4f, what knowing only how frequent each byte is would give\n", eval, eval / entropy, entropy);
    config_number(run, "eval_loss", eval);
    config_number(run, "byte_entropy", entropy);
}

static void checks(Run *run, Trainer *t, Unsplit *u, Curve got, Curve want) {
    size_t steps = option_size(run, "steps");
    bool exact = sizeof(real) == 8 || t->optimizer.kind == SGD;
    if (!option_flag(run, "check")) {              // every copy of a tensor, on whatever rank, holds the same bits; none is missing
        Snapshot *weights = snapshot_new(run);
        model_snapshot_weights(t->model, weights);
        check_equal(run, "replicas hold the same weights", weights, weights);
        snapshot_free(weights);
        return;
    }
    // fp32 under AdamW: rounding in a gradient that is nearly zero changes its update by a whole learning rate, so the weights
    // drift apart slowly, and with them the norms; a bug shows at once, in the first step's gradients.
    check_numbers(run, "3D = unsplit", "loss of every step", got.loss, want.loss, steps, exact ? LIMIT_ROUNDING : 1e-3);
    check_numbers(run, "3D = unsplit", "gradient norm of every step", got.norm, want.norm, steps, exact ? LIMIT_ROUNDING : 1e-2);
    if (exact) compare(run, t, u, model_snapshot_weights, "3D = unsplit, weights after the last step", LIMIT_ROUNDING);
}

static void train(Run *run) {
    TrainerConfig c = trainer_config(run);
    size_t steps = option_size(run, "steps");
    REQUIRE(steps > 0, "--steps must be at least 1");
    REQUIRE(steps <= 1000000000, "--steps %zu: expected at most 1000000000", steps);
    config_require(&c.model);
    Data data = data_text(option_given(run, "data") ? option_text(run, "data") : NULL, c.model.context, run->seed);
    if (option_given(run, "export")) safetensors_require(run, option_text(run, "export"));       // before the work, not after it
    data.ragged = option_flag(run, "check");       // unequal token counts: without them real bugs pass
    Trainer *t = trainer_new(run->world, &c, optimizer_of(run));
    Unsplit u = {0};
    if (option_flag(run, "check") && run->world->rank == 0) u = unsplit_new(run, &c);
    say(run, "dp %zu x tp %zu x pp %zu, schedule %s, ZeRO %zu, recompute %s, %zu parameters, batch %zu in %zu micro-batches a replica, %zu bytes of text\n",
        c.mesh.dp, c.mesh.tp, c.mesh.pp, option_text(run, "schedule"), c.zero, option_text(run, "recompute"), config_parameters(&c.model),
        c.batch, t->micro_batches, data.bytes);

    Curve got = curve_new(steps), want = curve_new(steps);
    loop(run, t, &u, &data, got, want);
    checks(run, t, &u, got, want);
    if (option_given(run, "export")) safetensors_export(run, t->model, option_text(run, "export"));
    curve_free(got);
    curve_free(want);
    if (u.model) model_free(u.model);
    trainer_free(t);
    data_free(&data);
    free((void *)c.stage_blocks);
}

int main(int argc, char **argv) { return lesson_main(argc, argv, train, options); }
