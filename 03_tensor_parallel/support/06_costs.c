// 06_costs.c: the whole tensor-parallel Transformer: calls, bytes, memory, and the time of a step.
#include <math.h>
#include "03_tensor_parallel/support/costs.h"
#include "common/model/costs.h"
#include "common/model/model.h"
#include "common/lesson/picture.h"

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
    say(run, "a block: %.0f %s; %s = %.2f", general, what, formula, closed);
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

void transformer_costs(Run *run, const ModelConfig *c, size_t sequences, const TransformerMeasured *r) {
    bytes(run, c, sequences, r);
    closed_forms(run, c, sequences);
    Timing timing = picture_timing(run);
    times(run, c, sequences, &timing);
    picture_show(run, "tensor parallelism, last step", PICTURE_CHART);
    picture_summary(run, &timing);
}
