// 06_transformer.c: a GPT whose every matrix is cut trains three steps of SGD and three of AdamW,
// with dropout, unequal token counts and clipping, and is compared with the unsplit GPT. All calls,
// bytes, memory and the time of a step are held against formulas, the papers' closed forms among
// them. 9 heads over 4 ranks are 3, 2, 2, 2; 61 vocabulary entries are 16, 15, 15, 15.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/model/costs.h"
#include "judge/draw/picture.h"
#include "judge/frame/training.h"

enum { STEPS = 3, BATCH = 3 };
static const double max_norm = 0.5;        // small enough that every step is clipped

// On one rank; calls and bytes are those of the last step.
typedef struct {
    Comm *tp;
    size_t calls, bytes;                                   // all-reduces of the layers, bytes sent
    size_t norm_bytes;                                     // sent for the gradient norm
    size_t block, parameters, gradients, optimizer;        // bytes; block: one block's parameters
    size_t activations;                                    // bytes, their peak
} Measured;

// ---------------------------------------------------------------- the split training

static StepResult step(void *measured, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measured *r = measured;
    model_zero_gradients(m);
    comm_ledger_reset(r->tp);
    double loss = model_forward_backward(m, b) * b->token_weight;
    r->calls = r->tp->ledger[COMM_ALL_REDUCE].calls;
    r->bytes = comm_bytes_sent(r->tp);
    model_fold_tied(m);                    // adds the gradients of both uses of wte: sends nothing
    double norm = model_grad_norm(m, r->tp);
    r->norm_bytes = comm_bytes_sent(r->tp) - r->bytes;
    optimizer_step(o, m, clip_factor(norm, t->clip));      // each rank updates its parts
    return (StepResult){ loss, norm };
}

// tensor_parallel(m, tp) is the only line that the unsplit training lacks.
static void train(void *measured, const Training *t, Trajectory *c) {
    Measured *r = measured;
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, r->tp);
    model_allocate(m);                     // initial values: by the place in the whole tensor
    training_run(c, m, t, 1, 0, step, r);  // every rank reads every token
    r->block = model_unit(m, "h.0.ln_1.weight")->size * sizeof(real);
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradients = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
    if (t->optimizer.kind == SGD)
        check_cost(c->run, "sgd", "SGD's state", "bytes", formula(0), NOT_PREDICTED,
                   (double)r->optimizer);
    model_free(m);
}

// ---------------------------------------------------------------- calls, bytes and memory

static CutSizes sizes_of(Run *run, const ModelConfig *c, size_t rank) {
    return cut_sizes(c, run->world->size, rank);
}

// Elements that a block keeps for backward, per token. Cut are q | k | v and the heads' output (4
// A), input and output of GELU (2 F) and the scores. Whole are two norms' outputs with two
// statistics each and the middle (all of these in kept_block), and the block's output.
static size_t block_kept(const CutSizes *z) { return kept_block(z) + z->C; }

static void bytes(Run *run, const ModelConfig *c, const Measured *r) {
    const CutSizes z = sizes_of(run, c, run->world->rank);
    const size_t n = run->world->size, e = sizeof(real);
    const size_t parameters = elements_stage(&z);
    // Around the blocks: the embedding's output; what the head keeps of its norm, logits and sums.
    const size_t peak = BATCH * z.T * (z.C + z.blocks * block_kept(&z) + kept_head(&z));
    // Of [M, C] four per block, one of the embedding, one of the head's dx; of [M, 1] the loss's 3.
    const Traffic layers = traffic_tensor_parallel(&z, n, BATCH, false);
    const struct { const char *id, *name, *unit; double predicted, measured; } all[] = {
        { "layers.calls", "all-reduces in the layers, a step", "calls", layers.calls,
          (double)r->calls },
        { "layers.sent", "sent in the layers, a step", "bytes", layers.bytes, (double)r->bytes },
        { "norm.sent", "sent for the norm, a step", "bytes",
          ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)),
          (double)r->norm_bytes },
        { "block", "parameters of a block", "bytes", (double)(elements_block(&z) * e),
          (double)r->block },
        { "parameters", "parameters", "bytes", (double)(parameters * e), (double)r->parameters },
        { "gradients", "gradients (wte twice)", "bytes", (double)(elements_gradients(&z) * e),
          (double)r->gradients },
        { "adamw", "AdamW's m and v", "bytes", (double)(2 * parameters * e), (double)r->optimizer },
        { "activations", "activations, peak", "bytes", (double)(peak * e), (double)r->activations },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_cost(run, all[i].id, all[i].name, all[i].unit, formula(all[i].predicted),
                   NOT_PREDICTED, all[i].measured);
}

// The papers write b s h for our M C, and let t divide everything. Where it does, the general forms
// above are theirs, to the last element.
static void closed_form(Run *run, const ModelConfig *c, const char *what, const char *form,
                        double general, double closed) {
    say_detail(run, "a block: %.0f %s; %s = %.2f", general, what, form, closed);
    if (c->heads % run->world->size) return;
    check_true(run, "the closed form of a block", what, fabs(general - closed) < 1e-6);
}
static void closed_forms(Run *run, const ModelConfig *c) {
    const CutSizes z = sizes_of(run, c, run->world->rank);
    const size_t n = run->world->size;
    const double t = (double)n, h = (double)c->width, s = (double)c->context, a = (double)c->heads;
    const double bs = BATCH * s, bsh = bs * h;
    const double probabilities = c->dropout > 0 ? 8 : 4;   // before and after dropout, 4 bytes each
    closed_form(run, c, "numbers sent a step", "8 b s h (t-1)/t",
                4 * ring_bytes(ALL_REDUCE_PASSES, n, (size_t)bsh, 1), 8 * bsh * (t - 1) / t);
    closed_form(run, c, "parameters", "12 h^2/t + 7 h/t + 6 h", (double)elements_block(&z),
                12 * h * h / t + 7 * h / t + 6 * h);
    closed_form(run, c, "numbers kept for backward",
                c->dropout > 0 ? "b s h (16 + 48/t + 8 a s/(h t) + 16/h)/4"
                               : "b s h (16 + 48/t + 4 a s/(h t) + 16/h)/4",
                bs * (double)block_kept(&z),
                bsh * (16 + 48 / t + probabilities * a * s / (h * t) + 16 / h) / 4);
}

// ---------------------------------------------------------------- time

// In every all-reduce all ranks wait for the slowest, and nothing is computed meanwhile. Rank 0
// holds most of everything, so it is always the slowest.
static void times(Run *run, const ModelConfig *c, const Timing *t) {
    const size_t n = run->world->size;
    const CutSizes first = sizes_of(run, c, 0);
    const double communication = traffic_tensor_parallel(&first, n, BATCH, false).time
                               + ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    double flops = 0;                      // backward has two products for each of forward
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
static double two_rings(const char *link, size_t n, size_t elements) {
    const ClockLink *l = link_named(link);
    const double sent = ring_bytes(ALL_REDUCE_PASSES, n, elements, sizeof(real));
    return 2e12 * (2 * (double)(n - 1) * l->alpha + sent / l->beta);
}
// Their time over the products', without latency, scores and unequal parts: (t-1) e F/(6 h beta).
static double plain_ratio(const char *link, size_t n, size_t h) {
    return (double)((n - 1) * sizeof(real)) * clock_config()->device.flops
           / (6 * (double)h * link_named(link)->beta);
}
static void kilobytes(char cell[40], double elements) {
    snprintf(cell, 40, "=%.1f kB", elements * sizeof(real) / 1000);
}

static void table(Run *run, const ModelConfig *c) {
    const size_t n = run->world->size, M = BATCH * c->context;
    const bool simulated = clock_config()->simulated;
    const CutSizes first = sizes_of(run, c, 0), whole = cut_sizes(c, 1, 0);
    const double products = work_block(&first, BATCH).time;
    const double fast = two_rings("fast", n, M * c->width) / products;
    const double slow = two_rings("slow", n, M * c->width) / products;
    char ranks[40], block[40], parameters[40], kept[40], sent[40], step[40], ratio[40], calls[80];
    snprintf(ranks, sizeof ranks, "each of %zu", n);
    kilobytes(block, (double)elements_block(&whole));
    kilobytes(parameters, (double)elements_stage(&whole));
    kilobytes(kept, (double)(M * (whole.C + c->layers * block_kept(&whole) + kept_head(&whole))));
    kilobytes(sent, 4 * ring_bytes(ALL_REDUCE_PASSES, n, M * c->width, 1));
    snprintf(step, sizeof step, "=%.2f ms", work_model(c, BATCH).time / 1e9);
    snprintf(ratio, sizeof ratio, "=1 : %.2f : %.1f", fast, slow);
    snprintf(calls, sizeof calls, "4 L + 5; and the gradient norm's, of %.0f B",
             ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)));
    const char *const columns[] = { "one device", ranks, NULL };
    const Result rows[] = {
        { "parameters of a block", "12 h²/t + 7 h/t + 6 h", { block, "block" } },
        { "parameters", "L blocks, V h/t, s h, 2 h", { parameters, "parameters" } },
        { "activations, peak", c->dropout > 0 ? "L b s h (4 + 12/t + 2as/(ht) + 4/h), ends"
                                              : "L b s h (4 + 12/t + as/(ht) + 4/h), ends",
          { kept, "activations" } },
        { "all-reduces per step", calls, { "=0", "layers.calls" } },
        { "sent per step", "L blocks, 2 of b s h, 3 of b s", { "=0 kB", "layers.sent" } },
        { "sent per block and step", "8 b s h (t-1)/t", { "=0 kB", sent } },
        { simulated ? "time of a step" : NULL, "72 L b s h²/t FLOPs, scores, head, messages",
          { step, "step" } },
        { simulated ? "products : fast : slow" : NULL, "one block forward; GPT-3's 1 : 0.19 : 2.3",
          { NULL, ratio } }, {0} };
    results(run, columns, rows);
    say(run, "  b = %d sequences of s = %zu; width h = %zu, a = %zu heads, L = %zu blocks, V = %zu"
        "; t = %zu; %zu-byte elements", BATCH, c->context, c->width, c->heads, c->layers, c->vocab,
        n, sizeof(real));
    if (simulated)
        say(run, "  The last row: products take 1, two all-reduces %.2f on the fast link and %.1f "
            "on the slow one.", fast, slow);
    if (simulated && n > 1)
        say(run, "  (t-1)eF/(6h beta) gives %.2f and %.1f: it leaves out scores, latency and "
            "unequal parts.", plain_ratio("fast", n, c->width), plain_ratio("slow", n, c->width));
    if (c->heads % n)
        say(run, "  t does not divide the heads: rank 0 has %zu of %zu. Where it does, the "
            "formulas are exact.", first.heads, c->heads);
    say(run, "  ends: the embedding's output, and what head and loss keep; a..b: smallest to "
        "largest rank");
}

// ---------------------------------------------------------------- the lesson

static void transformer(Run *run) {
    ModelConfig c = { .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                      .heads = option_size(run, "heads"), .context = 7, .vocab = 61,
                      .dropout = option_real(run, "dropout"), .seed = run->seed };
    config_require(&c);
    say_detail(run, "%zu parameters in %zu tensors", config_parameters(&c), config_tensors(&c));
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed),
                   .steps = STEPS, .sequences = BATCH, .micro_batches = 1, .clip = max_norm,
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    Measured r = { .tp = run->world };
    training_both(run, "tensor-parallel = unsplit", &t, train, &r);    // SGD, then AdamW
    bytes(run, &c, &r);
    closed_forms(run, &c);
    Timing timing = picture_timing(run);
    times(run, &c, &timing);
    picture_show(run, "tensor parallelism, last step", PICTURE_CHART);
    picture_summary(run, &timing);
    table(run, &c);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
EXPERIMENT(transformer, options);
