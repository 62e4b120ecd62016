// 06_costs.c: the whole tensor-parallel Transformer: calls, bytes, memory, and the time of a step.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "03_tensor_parallel/experiments/costs.h"
#include "common/model/costs.h"
#include "common/model/model.h"
#include "judge/draw/picture.h"

// ---------------------------------------------------------------- calls and bytes

static CutSizes slice_of(Run *run, const ModelConfig *c, size_t rank) { return cut_sizes(c, run->world->size, rank); }

// What backward reads, per token: cut are q|k|v and mix (4 A), the two of the MLP (2 F) and the scores; whole are two
// norms' outputs with two statistics each, the middle (all in kept_block), and the block's output.
static size_t block_kept(const CutSizes *z) { return kept_block(z) + z->C; }

static void bytes(Run *run, const ModelConfig *c, size_t sequences, const TransformerMeasured *r) {
    const CutSizes z = slice_of(run, c, run->world->rank);
    const size_t n = run->world->size, e = sizeof(real);

    // Four of [M, C] per block, one for the embedding, one for the head's dx, three elements per token for the loss.
    Traffic layers = traffic_tensor_parallel(&z, n, sequences, false);
    double squares = ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double));
    cost(run, "all-reduces in the layers, a step", "calls", layers.calls, (double)r->calls);
    cost(run, "sent in the layers, a step", "bytes", layers.bytes, (double)r->bytes);
    cost(run, "sent for the norm, a step", "bytes", squares, (double)r->norm_bytes);

    size_t parameters = elements_stage(&z);
    cost(run, "parameters of a block", "bytes", (double)(elements_block(&z) * e), (double)r->block);
    cost(run, "parameters", "bytes", (double)(parameters * e), (double)r->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)(elements_gradients(&z) * e), (double)r->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * parameters * e), (double)r->optimizer);

    // Around the blocks: the embedding's output; what the head keeps of its norm, logits and sums.
    size_t peak = sequences * z.T * (z.C + z.blocks * block_kept(&z) + kept_head(&z));
    cost(run, "activations, peak", "bytes", (double)(peak * e), (double)r->activations);
}

// The papers write b s h for our M C, and let everything divide by t. Where it does, what was asserted above is their
// form, to the last element.
static void closed_form(Run *run, const ModelConfig *c, const char *what, const char *formula, double general,
                        double closed) {
    say_detail(run, "a block: %.0f %s; %s = %.2f", general, what, formula, closed);
    if (c->heads % run->world->size) return;
    check_true(run, "the closed form of a block", what, fabs(general - closed) < 1e-6);
}
static void closed_forms(Run *run, const ModelConfig *c, size_t sequences) {
    const CutSizes z = slice_of(run, c, run->world->rank);
    const double t = (double)run->world->size, h = (double)c->width, s = (double)c->context, a = (double)c->heads;
    const double bs = (double)sequences * s, bsh = bs * h, probabilities = c->dropout > 0 ? 8 : 4;
    closed_form(run, c, "numbers sent a step", "8 b s h (t-1)/t",
                4 * ring_bytes(ALL_REDUCE_PASSES, run->world->size, (size_t)bsh, 1), 8 * bsh * (t - 1) / t);
    closed_form(run, c, "parameters", "12 h^2/t + 7 h/t + 6 h", (double)elements_block(&z),
                12 * h * h / t + 7 * h / t + 6 * h);
    closed_form(run, c, "numbers kept for backward", c->dropout > 0 ? "b s h (16 + 48/t + 8 a s/(h t) + 16/h)/4"
                : "b s h (16 + 48/t + 4 a s/(h t) + 16/h)/4", bs * (double)block_kept(&z),
                bsh * (16 + 48 / t + probabilities * a * s / (h * t) + 16 / h) / 4);
}

// ---------------------------------------------------------------- time

// All wait in every all-reduce, so the rank that holds most sets the pace: rank 0. Nothing is computed meanwhile.
static void times(Run *run, const ModelConfig *c, size_t sequences, const Timing *t) {
    const size_t n = run->world->size;
    CutSizes z = slice_of(run, c, 0);
    double communication = traffic_tensor_parallel(&z, n, sequences, false).time
                         + ring_time(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)), flops = 0, slowest = 0;
    for (size_t rank = n; rank-- > 0;) {
        z = slice_of(run, c, rank);
        Work forward = work_stage(&z, sequences);
        flops += 3 * forward.flops;                        // backward: two products for each of forward
        slowest = 3 * forward.time;
    }
    cost(run, "matrix products of all ranks, a step", "FLOPs", flops, t->flops);
    if (!clock_config()->simulated) return;
    cost(run, "step", "ps", slowest + communication, (double)t->step);
    cost(run, "exposed communication of all ranks", "ps", (double)n * communication, (double)t->exposed);
    cost(run, "hidden communication", "ps", 0, (double)t->hidden);
}

// ---------------------------------------------------------------- the page

// Two all-reduces of [M, C] over n ranks on this link, in ps.
static double two_rings(const char *name, size_t n, size_t elements) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return 2e12 * (2 * (double)(n - 1) * l->alpha + ring_bytes(ALL_REDUCE_PASSES, n, elements, sizeof(real)) / l->beta);
}
// The same to the products, without latency, scores and unequal parts: (t-1) e F/(6 h beta).
static double plain_ratio(const char *name, size_t n, size_t h) {
    const ClockLink *l = clock_links;
    while (l->name && strcmp(l->name, name)) l++;
    return (double)((n - 1) * sizeof(real)) * clock_config()->device.flops / (6 * (double)h * l->beta);
}
// For people: kB, from elements.
static void kilobytes(char text[40], double elements) {
    snprintf(text, 40, "=%.1f kB", elements * sizeof(real) / 1000);
}

static void table(Run *run, const ModelConfig *c, size_t sequences) {
    const size_t n = run->world->size, M = sequences * c->context;
    const CutSizes first = slice_of(run, c, 0), whole = cut_sizes(c, 1, 0);
    const double products = work_block(&first, sequences).time;
    char ranks[40], block[40], parameters[40], kept[40], sent[40], step[40], ratio[40], calls[80];
    const double fast = two_rings("fast", n, M * c->width) / products;
    const double slow = two_rings("slow", n, M * c->width) / products;
    snprintf(ranks, sizeof ranks, "each of %zu", n);
    kilobytes(block, (double)elements_block(&whole));
    kilobytes(parameters, (double)elements_stage(&whole));
    kilobytes(kept, (double)(M * (whole.C + whole.blocks * block_kept(&whole) + kept_head(&whole))));
    kilobytes(sent, 4 * ring_bytes(ALL_REDUCE_PASSES, n, M * c->width, 1));
    snprintf(step, sizeof step, "=%.2f ms", work_model(c, sequences).time / 1e9);
    snprintf(ratio, sizeof ratio, "=1 : %.2f : %.1f", fast, slow);
    snprintf(calls, sizeof calls, "4 L + 5; and the gradient norm's, of %.0f B",
             ring_bytes(ALL_REDUCE_PASSES, n, config_tensors(c), sizeof(double)));
    const char *const columns[] = { "one device", ranks, NULL };
    const Result rows[] = {
        { "parameters of a block", "12 h²/t + 7 h/t + 6 h", { block, "parameters of a block" } },
        { "parameters", "L blocks, V h/t, s h, 2 h", { parameters, "parameters" } },
        { "activations, peak", c->dropout > 0 ? "L b s h (4 + 12/t + 2as/(ht) + 4/h), ends"
                                              : "L b s h (4 + 12/t + as/(ht) + 4/h), ends",
          { kept, "activations, peak" } },
        { "all-reduces per step", calls, { "=0", "all-reduces in the layers, a step" } },
        { "sent per step", "L blocks, 2 of b s h, 3 of b s", { "=0 kB", "sent in the layers, a step" } },
        { "sent per block and step", "8 b s h (t-1)/t", { "=0 kB", sent } },
        { clock_config()->simulated ? "time of a step" : NULL, "72 L b s h²/t FLOPs, scores, head, messages",
          { step, "step" } },
        { clock_config()->simulated ? "products : fast : slow" : NULL, "one block forward; GPT-3's 1 : 0.19 : 2.3",
          { NULL, ratio } }, {0} };
    results(run, columns, rows);
    say(run, "  b = %zu sequences of s = %zu; width h = %zu, a = %zu heads, L = %zu blocks, V = %zu; t = %zu; "
        "%zu-byte elements", sequences, c->context, c->width, c->heads, c->layers, c->vocab, n, sizeof(real));
    if (clock_config()->simulated)
        say(run, "  The last row: products take 1, two all-reduces %.2f on the fast link and %.1f on the slow one.",
            fast, slow);
    if (clock_config()->simulated && n > 1)
        say(run, "  (t-1)eF/(6h beta) gives %.2f and %.1f: it leaves out scores, latency and unequal parts.",
            plain_ratio("fast", n, c->width), plain_ratio("slow", n, c->width));
    if (c->heads % n)
        say(run, "  t does not divide the heads: rank 0 has %zu of %zu. Where it does, the formulas are exact.",
            first.heads, c->heads);
    say(run, "  ends: the embedding's output, and what head and loss keep; a..b: smallest to largest rank");
}

void transformer_costs(Run *run, const ModelConfig *c, size_t sequences, const TransformerMeasured *r) {
    bytes(run, c, sequences, r);
    closed_forms(run, c, sequences);
    Timing timing = picture_timing(run);
    times(run, c, sequences, &timing);
    picture_show(run, "tensor parallelism, last step", PICTURE_CHART);
    picture_summary(run, &timing);
    table(run, c, sequences);
}
