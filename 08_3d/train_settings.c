// train_settings.c reads the trainer's options, and calls usage_error() for options that no
// training can have.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/train_options.h"
#include "08_3d/train_program.h"
#include "common/model/block.h"

// ---------------------------------------------------------------- the trainer's configuration

// Returns --chunks if several stages are interleaved, else 1.
static size_t chunks(Run *run, size_t stages) {
    bool interleaved = settings_interleaved(option_text(run, "schedule"));
    size_t v = option_size(run, "chunks");
    REQUIRE(v > 0, "--chunks 0: a stage has at least one chunk of the model");
    REQUIRE(interleaved || !option_given(run, "chunks"),
            "--chunks %zu: only interleaved stages have several: choose --schedule interleaved, or "
            "leave --chunks out",
            v);
    return interleaved && stages > 1 ? v : 1;
}

static CompressionPlan compression(Run *run, const char *method) {
    // PowerSGD compresses only matrices that become at most half as large.
    enum { MIN_RATE = 2 };
    const bool top_k = !strcmp(method, "top-k"), power = !strcmp(method, "power-sgd");
    REQUIRE(top_k || !option_given(run, "keep-one-of"),
            "--keep-one-of is of --compress top-k: choose --compress top-k, or leave --keep-one-of "
            "out");
    REQUIRE(power || !option_given(run, "power-rank"),
            "--power-rank is of --compress power-sgd: choose it, or leave --power-rank out");
    if (top_k)
        return (CompressionPlan){ .method = TOP_K, .one_of = option_size(run, "keep-one-of") };
    return (CompressionPlan){ .method = POWER_SGD,
                              .rank = option_size(run, "power-rank"),
                              .min_rate = MIN_RATE };
}

static Reduction reduction(Run *run) {
    return trainer_reduction((size_t)atoi(option_text(run, "zero")), option_flag(run, "prefetch"),
                             option_flag(run, "overlap"),
                             strcmp(option_text(run, "compress"), "none") != 0);
}

static void take_family(Run *run, ModelConfig *c) {
    config_family(c, strcmp(option_text(run, "family"), "llama") ? FAMILY_GPT2 : FAMILY_LLAMA);
    const bool grouped = option_text(run, "kv-heads") != NULL;
    const bool ffn = option_text(run, "ffn") != NULL;
    if (grouped) c->kv_heads = option_size(run, "kv-heads");
    if (ffn) c->ffn = option_size(run, "ffn");
    REQUIRE(!grouped || c->kv_heads > 0,
            "--kv-heads 0: the heads share at least one head of key and value");
    REQUIRE(!ffn || c->ffn > 0, "--ffn 0: the MLP has at least one feature");
    c->untied = option_flag(run, "untied");
    if (option_flag(run, "attention-bias")) c->biases = BIASES_QKV;
    if (option_text(run, "rope-theta")) c->rope_theta = option_real(run, "rope-theta");
    if (option_text(run, "norm-eps")) c->norm_eps = option_real(run, "norm-eps");
    static const char *const of_llama[] = { "attention-bias", "rope-theta", "norm-eps" };
    for (size_t i = 0; i < sizeof of_llama / sizeof *of_llama; i++)
        REQUIRE(c->positions == POSITIONS_ROTARY || !option_given(run, of_llama[i]),
                "--%s is of --family llama: choose --family llama, or leave --%s out", of_llama[i],
                of_llama[i]);
    static const char *const above_0[] = { "rope-theta", "norm-eps" };
    for (size_t i = 0; i < sizeof above_0 / sizeof *above_0; i++)
        REQUIRE(!option_text(run, above_0[i]) || option_real(run, above_0[i]) > 0,
                "--%s %s: expected more than 0", above_0[i], option_text(run, above_0[i]));
}

// ---------------------------------------------------------------- the model of --init

// Sets an option that the model of --init decides.
// same: whether the given value, if any, is this value.
static void take_text(Run *run, const char *name, const char *value, bool same) {
    REQUIRE(!option_given(run, name) || same,
            "--%s %s: the model of --init %s has --%s %s: leave --%s out", name,
            option_text(run, name), option_text(run, "init"), name, value, name);
    option_default(run, name, value);
}
static void take_size(Run *run, const char *name, size_t value) {
    char text[24];
    snprintf(text, sizeof text, "%zu", value);
    take_text(run, name, text, !option_given(run, name) || option_size(run, name) == value);
}
static void take_real(Run *run, const char *name, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    take_text(run, name, text, !option_given(run, name) || option_real(run, name) == value);
}
static void take_flag(Run *run, const char *name, bool value) {
    REQUIRE(value || !option_given(run, name),
            "--%s: the model of --init %s is without it: leave --%s out", name,
            option_text(run, "init"), name);
    if (value) option_default(run, name, "yes");
}

void train_take_model(Run *run, ModelConfig *c) {
    const bool llama = c->positions == POSITIONS_ROTARY;
    take_text(run, "family", llama ? "llama" : "gpt2",
              !strcmp(option_text(run, "family"), llama ? "llama" : "gpt2"));
    take_size(run, "layers", c->layers);
    take_size(run, "width", c->width);
    take_size(run, "heads", c->heads);
    take_size(run, "vocab", c->vocab);
    if (llama || option_given(run, "kv-heads")) take_size(run, "kv-heads", config_kv_heads(c));
    if (llama || c->ffn || option_given(run, "ffn")) take_size(run, "ffn", block_hidden(c));
    take_flag(run, "untied", c->untied);
    if (llama) {
        take_flag(run, "attention-bias", c->biases == BIASES_QKV);
        take_real(run, "rope-theta", c->rope_theta > 0 ? c->rope_theta : 10000);
        take_real(run, "norm-eps", c->norm_eps > 0 ? c->norm_eps : 1e-5);
    }
    // No tensor has a row for each rotary position, so shorter sequences need nothing else.
    size_t shorter = option_given(run, "context") ? option_size(run, "context") : c->context;
    REQUIRE(!llama || shorter <= c->context,
            "--context %zu: the model of --init %s has at most %zu positions: choose --context %zu "
            "or less",
            shorter, option_text(run, "init"), c->context, c->context);
    if (llama) c->context = shorter;
    take_size(run, "context", c->context);
}

TrainerConfig train_config(Run *run) {
    if (option_flag(run, "check")) option_default(run, "dropout", "0.1"); // unless given
    TrainerConfig c = {
        .model = { .layers = option_size(run, "layers"),
                   .width = option_size(run, "width"),
                   .heads = option_size(run, "heads"),
                   .context = option_size(run, "context"),
                   .vocab = option_text(run, "vocab") ? option_size(run, "vocab") : 256,
                   .dropout = option_real(run, "dropout"),
                   .seed = run->seed },
        .mesh = mesh_options(run),
        .tensor = settings_tensor(option_text(run, "tensor")),
        .depth = option_size(run, "depth"),
        .batch = option_size(run, "batch"),
        .micro_batch = option_size(run, "micro-batch"),
        .schedule = settings_schedule(option_text(run, "schedule")),
        .reduction = reduction(run),
        .sequence = option_flag(run, "sequence-parallel"),
        .rebalanced = option_size(run, "rebalance") > 0,
        .blockwise = !strcmp(option_text(run, "attention"), "blockwise"),
        .recompute = settings_recompute(option_text(run, "recompute")),
        .activation_budget =
            option_given(run, "activation-budget") ? option_size(run, "activation-budget") : 0,
        .compression = compression(run, option_text(run, "compress")),
        .clip = option_real(run, "clip"),
    };
    take_family(run, &c.model);
    train_take_storage(run, &c);
    REQUIRE(c.clip >= 0, "--clip must not be negative: 0 turns clipping off");
    c.chunks = chunks(run, c.mesh.pp);
    const char *stages =
        option_given(run, "stage-layers") ? option_text(run, "stage-layers") : NULL;
    c.stage_blocks = settings_stage_blocks(stages, c.mesh.pp, c.chunks, c.model.layers);
    trainer_require(&c);
    return c;
}

const char *train_reduction_words(const TrainerConfig *c) {
    switch (c->reduction) {
    case REDUCE_PREFETCH: return " with prefetch";
    case REDUCE_IN_BUCKETS: return ", overlapped";
    case REDUCE_COMPRESSED:
        return c->compression.method == TOP_K ? ", compressed by top-k"
                                              : ", compressed by PowerSGD";
    default: return "";
    }
}

// ---------------------------------------------------------------- optimizer, rate, steps

Optimizer train_optimizer(Run *run) {
    double decay = option_real(run, "weight-decay");
    Optimizer o = strcmp(option_text(run, "optimizer"), "sgd") ? adamw(0) : sgd(0);
    REQUIRE(option_real(run, "lr") >= 0 && decay >= 0,
            "--lr and --weight-decay must not be negative");
    REQUIRE(o.kind == ADAMW || !option_given(run, "weight-decay") || decay == 0,
            "--weight-decay %g: only AdamW decays weights here; leave it out, or choose "
            "--optimizer adamw",
            decay);
    double beta1 = option_real(run, "beta1"), beta2 = option_real(run, "beta2"),
           eps = option_real(run, "eps");
    REQUIRE(beta1 >= 0 && beta1 < 1, "--beta1 %g: expected at least 0 and less than 1, such as 0.9",
            beta1);
    REQUIRE(beta2 >= 0 && beta2 < 1,
            "--beta2 %g: expected at least 0 and less than 1, such as 0.95", beta2);
    REQUIRE(eps > 0, "--eps %g: expected more than 0, such as 1e-5", eps);
    if (o.kind == SGD) {
        static const char *const of_adamw[] = { "beta1", "beta2", "eps" };
        for (size_t i = 0; i < sizeof of_adamw / sizeof *of_adamw; i++)
            REQUIRE(!option_given(run, of_adamw[i]),
                    "--%s is of AdamW: leave --%s out, or choose --optimizer adamw", of_adamw[i],
                    of_adamw[i]);
        return o;
    }
    o.weight_decay = decay;
    o.beta1 = beta1;
    o.beta2 = beta2;
    o.epsilon = eps;
    return o;
}

// Returns the lowest rate as a share of `peak`, the highest rate. Without --min-lr the result is a
// tenth.
static double lowest_part(Run *run, double peak) {
    if (!option_text(run, "min-lr")) return 0.1;
    double least = option_real(run, "min-lr");
    REQUIRE(least >= 0 && least <= peak, "--min-lr %g: expected a rate from 0 to --lr %g", least,
            peak);
    return peak > 0 ? least / peak : 0;
}

RateRule train_rate(Run *run) {
    RateRule rule = { .highest = option_real(run, "lr"), .warmup = option_size(run, "warmup") };
    rule.lowest = lowest_part(run, rule.highest);
    rule.decay = option_size(run, option_text(run, "decay-steps") ? "decay-steps" : "steps");
    return rule;
}

size_t train_steps(Run *run) {
    size_t steps = option_size(run, "steps");
    REQUIRE(steps > 0, "--steps must be at least 1");
    REQUIRE(steps <= 1000000000, "--steps %zu: expected at most 1000000000", steps);
    REQUIRE(!option_text(run, "decay-steps") || option_size(run, "decay-steps") > 0,
            "--decay-steps must be at least 1");
    train_rate(run); // rejects --min-lr above --lr
    size_t decay = option_text(run, "decay-steps") ? option_size(run, "decay-steps") : steps;
    REQUIRE(!option_given(run, "warmup") || option_size(run, "warmup") <= decay,
            "--warmup %zu: the learning rate falls after it, and %s ends at step %zu: choose "
            "--warmup %zu or less",
            option_size(run, "warmup"),
            option_text(run, "decay-steps") ? "--decay-steps" : "--steps", decay, decay);
    return steps;
}

void train_stop_require(Run *run) {
    if (!option_given(run, "exit-after")) return;
    REQUIRE(option_given(run, "save"),
            "--exit-after says when the run saves and ends: give --save DIR, too");
    REQUIRE(option_real(run, "exit-after") > 0, "--exit-after %s: expected minutes, more than 0",
            option_text(run, "exit-after"));
}
double train_seconds_left(Run *run) {
    return option_given(run, "exit-after") ? 60 * option_real(run, "exit-after") - run_seconds(run)
                                           : INFINITY;
}

void train_say_defaults(Run *run, const TrainerConfig *c, size_t steps) {
    RateRule rate = train_rate(run);
    if (rate.warmup > steps)
        say(run,
            "the learning rate only rises, to %g, because --warmup %zu is longer than the training "
            "of %zu steps\n",
            settings_rate(&rate, steps - 1), rate.warmup, steps);
    enum { BYTES = 256 };
    if (!option_text(run, "data") && c->model.vocab > BYTES)
        say(run,
            "this tree's text has %d different bytes: the other %zu entries of --vocab do not "
            "occur; --data 'train_*.bin' learns tokens\n",
            BYTES, c->model.vocab - BYTES);
}

void train_record(Run *run, const TrainerConfig *c) {
    report_config_number(run, "dp", (double)c->mesh.dp);
    report_config_number(run, "tp", (double)c->mesh.tp);
    report_config_number(run, "pp", (double)c->mesh.pp);
    report_config_number(run, "cp", (double)mesh_cp(c->mesh));
    report_config_number(run, "zero", (double)trainer_zero(c));
    report_config_number(run, "dropout", c->model.dropout);
}

// ---------------------------------------------------------------- all options as texts

RunOptions train_run_options(Run *run, const Degrees *n) {
    enum { COUNT = sizeof train_options / sizeof *train_options };
    static const char *const names[] = { "dp", "tp", "pp", "cp", "ranks" };
    RunOptions o = { .option = host_alloc((COUNT + 2) * sizeof *o.option) };
    for (const Option *option = train_options; option->name; option++) {
        if (!*option->name) continue; // a heading, or an example
        RunOption *next = &o.option[o.n++];
        *next = (RunOption){ .name = option->name, .given = option_given(run, option->name) };
        if (option->value) next->value = option_text(run, option->name);
        else next->value = option_flag(run, option->name) ? "yes" : NULL;
    }
    o.option[o.n++] = (RunOption){ .name = "seed",
                                   .value = option_text(run, "seed"),
                                   .given = option_given(run, "seed") };
    o.option[o.n++] = (RunOption){ .name = "ranks" };
    if (!n) return o;
    const size_t number[] = { n->dp, n->tp, n->pp, mesh_cp(*n), run->world->size };
    for (size_t i = 0; i < o.n; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            RunOption *option = &o.option[i];
            if (strcmp(option->name, names[k]) != 0) continue;
            snprintf(option->number, sizeof option->number, "%zu", number[k]);
            option->value = option->number;
        }
    return o;
}
void train_take_options(Run *run, const RunOptions *o) {
    for (size_t i = 0; i < o->n; i++)
        if (o->option[i].taken) option_default(run, o->option[i].name, o->option[i].value);
    run->seed = (uint64_t)option_size(run, "seed");
}
