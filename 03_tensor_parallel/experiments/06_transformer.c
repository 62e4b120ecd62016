// 06_transformer.c: trains a GPT with all matrices cut, and compares it with the unsplit GPT:
// three steps of SGD and three of AdamW, with dropout, unequal token counts and clipping. Formulas
// predict all calls, bytes, memory and the time of a step; the papers' closed forms are among them.
// 4 ranks hold 3, 2, 2 and 2 of 9 heads, and 16, 15, 15 and 15 of 61 vocabulary entries.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "03_tensor_parallel/experiments/experiments.h"
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

enum { STEPS = 3, BATCH = 3 };
static const double max_norm = 0.5; // small enough that every step is clipped

// Measured on one rank. Calls and bytes are those of the last step.
typedef struct {
    Comm *tp;
    size_t calls, bytes;                     // all-reduces of the layers, bytes sent
    size_t norm_bytes;                       // sent for the gradient norm
    size_t block;                            // bytes of one block's parameters
    size_t parameters, gradients, optimizer; // bytes
    size_t activations;                      // bytes, their peak
} Measured;

// ---------------------------------------------------------------- the split training

static StepResult step(void *measured, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measured *r = measured;
    model_zero_gradients(m);
    comm_ledger_reset(r->tp);
    double loss = model_forward_backward(m, b) * b->token_weight;
    r->calls = r->tp->ledger[COMM_ALL_REDUCE].calls;
    r->bytes = comm_bytes_sent(r->tp);
    model_fold_tied(m); // adds the gradients of both uses of wte; sends nothing
    double norm = model_grad_norm(m, r->tp);
    r->norm_bytes = comm_bytes_sent(r->tp) - r->bytes;
    optimizer_step(o, m, clip_factor(norm, t->clip)); // each rank updates its parts
    return (StepResult){ loss, norm };
}

// SGD has no state, but 16-bit weights have masters.
static size_t sgd_state(const ModelConfig *c, const Comm *tp) {
    const CutSizes z = cut_sizes(c, tp->size, tp->rank);
    return elements_stage(&z) * master_bytes(c);
}

// The unsplit training has the same lines, except tensor_parallel(m, tp).
static void train(void *measured, const Training *t, Trajectory *c) {
    Measured *r = measured;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, r->tp);
    model_allocate(m);                    // an element's value depends on its place in the whole
    training_run(c, m, t, 1, 0, step, r); // every rank reads every token
    r->block = tensor_bytes(model_unit(m, "h.0.ln_1.weight")->w);
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
    if (t->optimizer.kind == SGD)
        check_cost(c->run, "sgd", t->model.storage == REALS ? "SGD's state" : "SGD: masters",
                   "bytes", formula((double)sgd_state(&t->model, r->tp)), NOT_PREDICTED,
                   (double)r->optimizer);
    model_free(m);
}

// ---------------------------------------------------------------- calls, bytes and memory

static CutSizes sizes_of(Run *run, const ModelConfig *c, size_t rank) {
    return cut_sizes(c, run->world->size, rank);
}

// Elements that a block keeps for backward, per token. kept_block counts two kinds. Cut: q | k | v,
// the heads' output, input and output of GELU, the scores. Whole: the outputs of two norms with two
// statistics each, and the middle. z->C is the block's output.
static size_t block_kept(const CutSizes *z) { return kept_block(z) + z->C; }

static void bytes(Run *run, const ModelConfig *c, const Measured *r) {
    const CutSizes z = sizes_of(run, c, run->world->rank);
    const size_t n = run->world->size, e = weight_bytes(c);
    const size_t parameters = elements_stage(&z);
    // Around the blocks: the embedding's output; the head's norm, logits and sums.
    const size_t peak = activations_bytes(&z, BATCH);
    // All-reduces of [M, C]: four per block, one in the embedding, one of the head's dx. Of [M, 1]:
    // three in the loss.
    const Traffic layers = traffic_tensor_parallel(&z, n, BATCH, false);
    check_costs(
        run, "%s", "%s",
        (CostRow[]){
            { "layers.calls", "all-reduces in the layers, a step", "calls",
              BY_FORMULA(layers.calls), r->calls },
            { "layers.sent", "sent in the layers, a step", "bytes", BY_FORMULA(layers.bytes),
              r->bytes },
            { "norm.sent", "sent for the norm, a step", "bytes",
              BY_FORMULA(ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double))),
              r->norm_bytes },
            { "block", "parameters of a block", "bytes", BY_FORMULA(elements_block(&z) * e),
              r->block },
            { "parameters", "parameters", "bytes", BY_FORMULA(parameters * e), r->parameters },
            { "gradients", "gradients (wte twice)", "bytes",
              BY_FORMULA(elements_gradients(&z) * gradient_bytes(c)), r->gradients },
            { "adamw", c->storage == REALS ? "AdamW's m and v" : "m, v and masters", "bytes",
              BY_FORMULA(parameters * adamw_bytes(c)), r->optimizer },
            { "activations", "activations, peak", "bytes", BY_FORMULA(peak), r->activations },
            { 0 } });
}

// The papers assume that t divides everything. Where t divides the heads, the general form must
// equal the papers' closed form in every element.
static void closed_form(Run *run, const ModelConfig *c, const char *what, const char *form,
                        double general, double closed) {
    say_detail(run, "a block: %.0f %s; %s = %.2f", general, what, form, closed);
    if (c->heads % run->world->size) return;
    check_true(run, "the closed form of a block", what, fabs(general - closed) < 1e-6);
}
static void closed_forms(Run *run, const ModelConfig *c) {
    const CutSizes z = sizes_of(run, c, run->world->rank);
    const size_t n = run->world->size;
    const double t = (double)n, C = (double)c->width, T = (double)c->context;
    const double H = (double)c->heads, M = BATCH * T;
    const double probabilities = c->dropout > 0 ? 2 : 1; // tensors: before and after dropout
    closed_form(run, c, "elements sent a step", "8 M C (t-1)/t",
                4 * ring_bytes(ALL_REDUCE_PASSES, n, (size_t)(M * C), 1), 8 * M * C * (t - 1) / t);
    closed_form(run, c, "parameters", "12 C^2/t + 7 C/t + 6 C", (double)elements_block(&z),
                12 * C * C / t + 7 * C / t + 6 * C);
    closed_form(run, c, "elements kept for backward",
                c->dropout > 0 ? "M C (4 + 12/t + 2 H T/(C t) + 4/C)"
                               : "M C (4 + 12/t + H T/(C t) + 4/C)",
                M * (double)block_kept(&z),
                M * C * (4 + 12 / t + probabilities * H * T / (C * t) + 4 / C));
}

// ---------------------------------------------------------------- time

// In every all-reduce all ranks wait for the slowest, and nothing is computed meanwhile. Rank 0
// holds the largest part of everything, so it is always the slowest.
static void times(Run *run, const ModelConfig *c, const Timing *t) {
    const size_t n = run->world->size;
    const CutSizes first = sizes_of(run, c, 0);
    const double communication = traffic_tensor_parallel(&first, n, BATCH, false).time +
                                 ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    double flops = 0; // backward has two products for each of forward
    for (size_t rank = 0; rank < n; rank++) {
        CutSizes z = sizes_of(run, c, rank);
        flops += 3 * work_stage(&z, BATCH).flops;
    }
    check_cost(run, "flops", "matrix products of all ranks, a step", "FLOPs", formula(flops),
               NOT_PREDICTED, t->flops);
    if (!clock_config()->simulated) return;
    check_cost(run, "step", "step", "ps",
               formula(3 * work_stage(&first, BATCH).time + communication), NOT_PREDICTED,
               (double)t->step);
    check_cost(run, "exposed", "exposed communication of all ranks", "ps",
               formula((double)n * communication), NOT_PREDICTED, (double)t->exposed);
    check_cost(run, "hidden", "hidden communication", "ps", formula(0), NOT_PREDICTED,
               (double)t->hidden);
}

// ---------------------------------------------------------------- the table

static const ClockLink *link_named(const char *name) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return l;
}
// Two all-reduces of `elements` over n ranks on this link, in ps.
static double two_rings(const char *link, size_t n, size_t elements, size_t e) {
    const ClockLink *l = link_named(link);
    const double sent = ring_bytes(ALL_REDUCE_PASSES, n, elements, e);
    return 2e12 * (2 * (double)(n - 1) * l->alpha + sent / l->beta);
}
static void table(Run *run, const ModelConfig *c) {
    const size_t n = run->world->size, M = BATCH * c->context;
    const bool simulated = clock_config()->simulated;
    const CutSizes first = sizes_of(run, c, 0), whole = cut_sizes(c, 1, 0);
    const size_t e = weight_bytes(c);
    const double products = work_block(&first, BATCH).time;
    char ranks[40], block[24], parameters[24], kept[24], sent[24], step[24], fast[24], slow[24];
    snprintf(ranks, sizeof ranks, n == 1 ? "%zu rank" : "each of %zu", n);
    page_cell(block, (double)(elements_block(&whole) * e), "bytes");
    page_cell(parameters, (double)(elements_stage(&whole) * e), "bytes");
    page_cell(kept, (double)activations_bytes(&whole, BATCH), "bytes");
    page_cell(sent, 4 * ring_bytes(ALL_REDUCE_PASSES, n, M * c->width, e), "bytes");
    page_cell(step, work_model(c, BATCH).time, "ps");
    snprintf(fast, sizeof fast, "=%.2f", two_rings("fast", n, M * c->width, e) / products);
    snprintf(slow, sizeof slow, "=%.2f", two_rings("slow", n, M * c->width, e) / products);
    const char *const columns[] = { "one device", ranks, NULL };
    const Result rows[] = {
        { "parameters", "L blocks + V C/t + T C + 2 C", { parameters, "parameters" } },
        { "  one block", "12 C²/t + 7 C/t + 6 C", { block, "block" } },
        { "activations, peak", "L blocks, embedding, head", { kept, "activations" } },
        { "all-reduces per step", "4 L; embedding, head: 2; loss: 3", { "=0", "layers.calls" } },
        { "sent per step", "L blocks + (4 C + 6) M (t-1)/t", { "=0 B", "layers.sent" } },
        { "  one block", "8 M C (t-1)/t", { "=0 B", sent } },
        { simulated ? "time of a step" : NULL, "slowest rank + all-reduces", { step, "step" } },
        { "forward: time sending / computing", "fast: about (t-1) e P/(6 C beta)", { "=0", fast } },
        { "forward: time sending / computing", "slow: the same, another beta", { "=0", slow } },
        { 0 }
    };
    results(run, columns, rows);
    say(run, "  a block keeps M C (4 + 12/t + %s/(C t) + 4/C) elements for backward",
        c->dropout > 0 ? "2 H T" : "H T");
    say(run,
        "  about: without attention's own products and latency; P = %.3g GFLOP/s, beta = %.3g "
        "and %.3g MB/s",
        clock_config()->device.flops / 1e9, link_named("fast")->beta / 1e6,
        link_named("slow")->beta / 1e6);
    say(run,
        "  B = %d sequences of T = %zu, M = B T; C = %zu, H = %zu heads, L = %zu blocks, "
        "V = %zu; t = %zu; e = %zu bytes",
        BATCH, c->context, c->width, c->heads, c->layers, c->vocab, n, e);
    if (c->heads % n)
        say(run,
            "  t does not divide the heads: rank 0 has %zu of %zu. Where it does, the "
            "formulas with t are exact.",
            first.heads, c->heads);
}

static void ending(Run *run, const ModelConfig *c) {
    const size_t n = run->world->size;
    const CutSizes whole = cut_sizes(c, 1, 0);
    char parameters[24];
    page_value(parameters, sizeof parameters, (double)(elements_stage(&whole) * weight_bytes(c)),
               "bytes");
    if (n == 1)
        say_answer(run,
                   "Yes, but one rank cuts nothing: it holds all %s of parameters and sends "
                   "nothing.",
                   parameters);
    else
        say_answer(run,
                   "Yes, its training is the same up to rounding. Each rank holds %s of %s of "
                   "parameters, and sends %s per step.",
                   cost_text(run, "parameters"), parameters, cost_text(run, "layers.sent"));
    trial_say_cost(run, "layers.calls");
    say_use_when(run, "a model does not fit in one device, and a fast link joins several: usually "
                      "the 8 devices of a node.");
}

// ---------------------------------------------------------------- the lesson

static void transformer(Run *run) {
    ModelConfig c = { .layers = option_size(run, "layers"),
                      .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"),
                      .context = 7,
                      .vocab = 61,
                      .dropout = option_real(run, "dropout"),
                      .seed = run->seed };
    config_require(&c);
    say_detail(run, "%zu parameters in %zu tensors", config_parameters(&c), config_tensors(&c));
    Training t = { .model = c,
                   .data = data_synthetic(c.vocab, c.context, run->seed),
                   .steps = STEPS,
                   .sequences = BATCH,
                   .micro_batches = 1,
                   .clip = max_norm,
                   .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    Measured r = { .tp = run->world };
    training_store(run, &t);
    say(run, "Each rank holds 1/t of each matrix: whole heads, hidden columns, vocabulary "
             "entries.");
    if (run->world->size > 1)
        say(run, "F0, B0: the work between two sums (#): attention or MLP of one block, or the "
                 "head.");
    training_both(run, "tensor-parallel = unsplit", &t, train, &r); // SGD, then AdamW
    bytes(run, &t.model, &r);
    closed_forms(run, &c);
    Timing timing = picture_timing(run);
    times(run, &t.model, &timing);
    picture_show(run, "Tensor parallelism, last step", PICTURE_CHART);
    picture_summary(run, &timing);
    table(run, &t.model);
    ending(run, &t.model);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(transformer, options);
