// settings.c: see settings.h.
#include "08_3d/settings.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"

// Of --chunks, where the schedule has some. A stage alone has nothing to interleave.
static size_t chunks(Run *run, size_t stages) {
    bool interleaved = !strcmp(option_text(run, "schedule"), "interleaved");
    size_t v = option_size(run, "chunks");
    REQUIRE(v > 0, "--chunks 0: a stage has at least one chunk of the model");
    REQUIRE(interleaved || !option_given(run, "chunks"), "--chunks %zu: only interleaved stages have several: choose "
            "--schedule interleaved, or leave --chunks out", v);
    return interleaved && stages > 1 ? v : 1;
}

// "3,4,3" -> {3, 4, 3}; of each stage, or of each chunk, in model order.
static size_t *stage_layers(Run *run, size_t pp, size_t chunks) {
    if (!option_given(run, "stage-layers")) return NULL;
    const char *text = option_text(run, "stage-layers");
    size_t stages = pp * chunks, *blocks = host_alloc(stages * sizeof *blocks), n = 0;
    const char *each = chunks > 1 ? "chunk of each stage" : "stage";
    for (const char *s = text; ; s++) {
        char *end;
        REQUIRE(*s >= '0' && *s <= '9',
                "--stage-layers %s: expected whole numbers with commas between them, such as 3,4,3", text);
        unsigned long value = strtoul(s, &end, 10);
        REQUIRE(n < stages && value > 0 && value <= option_size(run, "layers"),
                "--stage-layers %s: expected %zu numbers, one for each %s of --pp %zu, each from 1 to --layers %zu",
                text, stages, each, pp, option_size(run, "layers"));
        blocks[n++] = value;
        s = end;
        if (*s != ',') break;
    }
    REQUIRE(n == stages && text[strspn(text, "0123456789,")] == 0,
            "--stage-layers %s: expected %zu numbers, one for each %s of --pp %zu", text, stages, each,
            pp);
    return blocks;
}

ScheduleRule settings_schedule(const char *name) {
    return !strcmp(name, "naive") ? schedule_naive : !strcmp(name, "gpipe") ? schedule_gpipe
         : !strcmp(name, "zero-bubble") ? schedule_zb_h1 : schedule_1f1b;
}
static Recompute recompute_named(const char *name) {
    return !strcmp(name, "full") ? RECOMPUTE_FULL : !strcmp(name, "selective") ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE;
}

static CompressionPlan compression(Run *run, const char *method) {
    enum { MIN_RATE = 2 };                         // of PowerSGD: matrices that become half as large, or smaller
    const bool top_k = !strcmp(method, "top-k"), power = !strcmp(method, "power-sgd");
    REQUIRE(top_k || !option_given(run, "keep-one-of"), "--keep-one-of says what --compress top-k keeps: give that, or "
            "leave it out");
    REQUIRE(power || !option_given(run, "power-rank"), "--power-rank is of --compress power-sgd: give that, or leave "
            "it out");
    if (top_k) return (CompressionPlan){ .method = TOP_K, .one_of = option_size(run, "keep-one-of") };
    return (CompressionPlan){ .method = POWER_SGD, .rank = option_size(run, "power-rank"), .min_rate = MIN_RATE };
}

TensorKind settings_tensor(const char *name) {
    return !strcmp(name, "2d") ? TENSOR_2D : !strcmp(name, "2.5d") ? TENSOR_25D
         : !strcmp(name, "3d") ? TENSOR_3D : TENSOR_1D;
}

TrainerConfig settings_config(Run *run) {
    if (option_flag(run, "check")) option_default(run, "dropout", "0.1");      // unless given
    TrainerConfig c = {
        .model = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                   .heads = option_size(run, "heads"), .context = option_size(run, "context"),
                   .vocab = option_text(run, "vocab") ? option_size(run, "vocab") : 256,
                   .dropout = option_real(run, "dropout"), .seed = run->seed },
        .mesh = mesh_degrees(run), .tensor = settings_tensor(option_text(run, "tensor")),
        .depth = option_size(run, "depth"),
        .batch = option_size(run, "batch"), .micro_batch = option_size(run, "micro-batch"),
        .schedule = settings_schedule(option_text(run, "schedule")), .zero = (size_t)atoi(option_text(run, "zero")),
        .prefetch = option_flag(run, "prefetch"), .overlap = option_flag(run, "overlap"),
        .sequence = option_flag(run, "sequence-parallel"), .rebalanced = option_size(run, "rebalance") > 0,
        .blockwise = !strcmp(option_text(run, "attention"), "blockwise"),
        .recompute = recompute_named(option_text(run, "recompute")),
        .activation_budget = option_given(run, "activation-budget") ? option_size(run, "activation-budget") : 0,
        .compressed = strcmp(option_text(run, "compress"), "none") != 0,
        .compression = compression(run, option_text(run, "compress")),
        .clip = option_real(run, "clip"),
    };
    REQUIRE(c.clip >= 0, "--clip must not be negative: 0 turns clipping off");
    c.chunks = chunks(run, c.mesh.pp);
    c.stage_blocks = stage_layers(run, c.mesh.pp, c.chunks);
    trainer_require(&c);
    return c;
}

Optimizer settings_optimizer(Run *run) {
    double decay = option_real(run, "weight-decay");
    Optimizer o = strcmp(option_text(run, "optimizer"), "sgd") ? adamw(0) : sgd(0);
    REQUIRE(option_real(run, "lr") >= 0 && decay >= 0, "--lr and --weight-decay must not be negative");
    REQUIRE(o.kind == ADAMW || !option_given(run, "weight-decay") || decay == 0,
            "--weight-decay %g: only AdamW decays weights here; leave it out, or choose --optimizer adamw", decay);
    double beta1 = option_real(run, "beta1"), beta2 = option_real(run, "beta2"), eps = option_real(run, "eps");
    REQUIRE(beta1 >= 0 && beta1 < 1, "--beta1 %g: expected at least 0 and less than 1, such as 0.9", beta1);
    REQUIRE(beta2 >= 0 && beta2 < 1, "--beta2 %g: expected at least 0 and less than 1, such as 0.95", beta2);
    REQUIRE(eps > 0, "--eps %g: expected more than 0, such as 1e-5", eps);
    if (o.kind == SGD) {
        static const char *const of_adamw[] = { "beta1", "beta2", "eps" };
        for (size_t i = 0; i < sizeof of_adamw / sizeof *of_adamw; i++)
            REQUIRE(!option_given(run, of_adamw[i]), "--%s is of AdamW: leave it out, or choose --optimizer adamw",
                    of_adamw[i]);
        return o;
    }
    o.weight_decay = decay;
    o.beta1 = beta1;
    o.beta2 = beta2;
    o.epsilon = eps;
    return o;
}

// The last rate as a part of the highest one. A tenth where --min-lr is not given.
static double lowest_part(Run *run, double peak) {
    if (!option_text(run, "min-lr")) return 0.1;
    double least = option_real(run, "min-lr");
    REQUIRE(least >= 0 && least <= peak, "--min-lr %g: expected a rate from 0 to --lr %g", least,
            peak);
    return peak > 0 ? least / peak : 0;
}

double settings_rate(Run *run, size_t step) {
    double peak = option_real(run, "lr"), lowest = lowest_part(run, peak);
    size_t warmup = option_size(run, "warmup");
    size_t steps = option_size(run, option_text(run, "decay-steps") ? "decay-steps" : "steps");
    if (step < warmup) return peak * (double)(step + 1) / (double)warmup;
    double progress = (double)(step - warmup) / (double)(steps > warmup ? steps - warmup : 1);
    if (progress > 1) progress = 1;                // after the decay the rate stays
    return peak * (lowest + (1 - lowest) * 0.5 * (1 + cos(3.141592653589793 * progress)));
}

size_t settings_steps(Run *run) {
    size_t steps = option_size(run, "steps");
    REQUIRE(steps > 0, "--steps must be at least 1");
    REQUIRE(steps <= 1000000000, "--steps %zu: expected at most 1000000000", steps);
    REQUIRE(!option_text(run, "decay-steps") || option_size(run, "decay-steps") > 0,
            "--decay-steps must be at least 1");
    settings_rate(run, 0);                         // refuses --min-lr above --lr
    size_t decay = option_text(run, "decay-steps") ? option_size(run, "decay-steps") : steps;
    REQUIRE(!option_given(run, "warmup") || option_size(run, "warmup") <= decay,
            "--warmup %zu: the learning rate falls after it, and %s ends at step %zu: choose --warmup %zu or less",
            option_size(run, "warmup"), option_text(run, "decay-steps") ? "--decay-steps" : "--steps", decay, decay);
    return steps;
}

void settings_record(Run *run, const TrainerConfig *c) {
    report_config_number(run, "dp", (double)c->mesh.dp);
    report_config_number(run, "tp", (double)c->mesh.tp);
    report_config_number(run, "pp", (double)c->mesh.pp);
    report_config_number(run, "cp", (double)mesh_cp(c->mesh));
    report_config_number(run, "zero", (double)c->zero);
    report_config_number(run, "dropout", c->model.dropout);
}
