// ranks: 4
// level: core
// question: Does a GPT whose every matrix is cut over the ranks train exactly like the whole one?
//
// tensor_parallel() puts lessons 02 to 05 together: embedding and head by words, attention by heads, the MLP by
// hidden columns; norms, row-cut biases and positions whole on every rank. Every rank runs every layer on every
// token, with its part of each matrix. Read tensor_parallel.c first, beside common/model/layer.c. Here it trains, with
// dropout, unequal token counts and clipping, three steps under SGD and three under AdamW. 9 heads over 4 ranks are
// 3, 2, 2, 2; 61 words 16, 15, 15, 15.
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/lesson/training.h"
#include "common/model/formulas.h"
#include "common/lesson/picture.h"
#include <math.h>

enum { STEPS = 3, BATCH = 3 };
static const double max_norm = 0.5;                        // small enough that every step is clipped

typedef struct {
    Comm *tp;
    size_t calls, bytes, norm_bytes;                       // of the last step: in the layers, for the norm
    size_t block, parameters, gradients, optimizer;        // bytes on this rank; block: of one block's parameters
    size_t activations;                                    // their peak
} Measured;

static ModelConfig sizes(Run *run) {
    return (ModelConfig){ .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                          .heads = option_size(run, "heads"), .context = 7, .vocab = 61,
                          .dropout = option_real(run, "dropout"), .seed = run->seed };
}

// ---------------------------------------------------------------- one step

static StepResult step(void *measured, Model *m, Optimizer *o, const Training *t, const Batch *b) {
    Measured *r = measured;
    model_zero_gradients(m);
    comm_ledger_reset(r->tp);
    double loss = model_forward_backward(m, b) * b->token_weight;  // all communication is inside the layers
    r->calls = r->tp->ledger[COMM_ALL_REDUCE].calls;
    r->bytes = comm_bytes_sent(r->tp);
    model_fold_tied(m);                                            // my words' rows, both uses: nothing to say
    // Each rank has squares of its parts of the cut tensors; whole tensors have the same gradient on every rank and are
    // counted on rank 0 only (Param.counted). One sum over the ranks gives the norm that the unsplit model finds.
    double norm = model_grad_norm(m, r->tp);
    r->norm_bytes = comm_bytes_sent(r->tp) - r->bytes;
    optimizer_step(o, m, clip_factor(norm, t->clip));              // each rank updates what it holds
    return (StepResult){ loss, norm };
}

// What differs from the unsplit training is one line.
static Measured train(Run *run, const Training *t, Trajectory *c) {
    Measured r = { .tp = run->world };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, r.tp);                                      // cuts the parameters, replaces the layers
    model_allocate(m);                                             // initial values: by the place in the WHOLE tensor
    training_run(c, m, t, 1, 0, step, &r);                         // every rank reads every token
    r.block = model_unit(m, "h.0.ln_1.weight")->size * sizeof(real);
    r.parameters = memory_now(MEM_PARAMETERS);
    r.gradients = memory_now(MEM_GRADIENTS);
    r.optimizer = memory_now(MEM_OPTIMIZER);
    r.activations = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r;
}

// ---------------------------------------------------------------- predictions: calls and bytes

typedef struct { size_t heads, A, F, V; } Part;            // of a rank: heads, their columns, hidden columns, words
static Part part_of(Run *run, size_t rank) {
    const ModelConfig c = sizes(run);
    const size_t n = run->world->size, heads = range_size(shard_range(c.heads, n, rank));
    return (Part){ .heads = heads, .A = heads * (c.width / c.heads), .F = range_size(shard_range(4 * c.width, n, rank)),
                   .V = range_size(shard_range(c.vocab, n, rank)) };
}
static double all_reduce_bytes(Run *run, size_t count) {
    return ring_bytes(ALL_REDUCE_PASSES, run->world->size, count, sizeof(real));
}

// Cut: W_qkv and b_qkv, W_O, A and a, B. Whole: b_O, b, two norms.
static size_t block_parameters(size_t C, Part p) {
    return (C + 1) * 3 * p.A + p.A * C + (C + 1) * p.F + p.F * C + 6 * C;
}
// What backward reads, a token: cut are q|k|v and mix (4 A), the two of the MLP (2 F) and the scores; whole are two
// norms' outputs with two statistics each, the middle (all in kept_block), and the block's output.
static size_t block_kept(const ModelConfig *c, Part p) { return kept_block(c, p.heads, p.F) + c->width; }

static void predict(Run *run, const Measured *r) {
    const ModelConfig c = sizes(run);
    const Part p = part_of(run, run->world->rank);
    const size_t L = c.layers, C = c.width, M = BATCH * c.context, e = sizeof(real);

    // Four of [M, C] a block, one for the embedding, one for the head's dx, and three numbers a token for the loss.
    double sent = (double)(4 * L + 2) * all_reduce_bytes(run, M * C) + 3 * all_reduce_bytes(run, M);
    double squares = ring_bytes(ALL_REDUCE_PASSES, run->world->size, config_tensors(&c), sizeof(double));
    cost(run, "all-reduces in the layers, a step", "calls", (double)(4 * L + 2 + 3), (double)r->calls);
    cost(run, "sent in the layers, a step", "bytes", sent, (double)r->bytes);
    cost(run, "sent for the norm, a step", "bytes", squares, (double)r->norm_bytes);

    size_t block = block_parameters(C, p), parameters = p.V * C + c.context * C + L * block + 2 * C;
    cost(run, "parameters of a block", "bytes", (double)(block * e), (double)r->block);
    cost(run, "parameters", "bytes", (double)(parameters * e), (double)r->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)((parameters + p.V * C) * e), (double)r->gradients);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * parameters * e), (double)r->optimizer);

    // Around the blocks: the embedding's output; what the head keeps of its norm, logits and sums.
    size_t peak = M * (C + L * block_kept(&c, p) + kept_head(&c, p.V));
    cost(run, "activations, peak", "bytes", (double)(peak * e), (double)r->activations);
}

// The papers write b s h for our M C, and let everything divide by t. Where it does, what was asserted above is their
// form, to the last number.
static void closed_form(Run *run, const char *what, const char *formula, double general, double closed) {
    say(run, "a block: %.0f %s; %s = %.2f", general, what, formula, closed);
    if (sizes(run).heads % run->world->size) return;
    check_true(run, "the closed form of a block", what, fabs(general - closed) < 1e-6);
}
static void closed_forms(Run *run) {
    const ModelConfig c = sizes(run);
    const Part p = part_of(run, run->world->rank);
    const double t = (double)run->world->size, h = (double)c.width, s = (double)c.context, a = (double)c.heads;
    const double bsh = BATCH * s * h, probabilities = c.dropout > 0 ? 8 : 4;
    closed_form(run, "numbers sent a step", "8 b s h (t-1)/t", 4 * all_reduce_bytes(run, (size_t)bsh) / sizeof(real),
                8 * bsh * (t - 1) / t);
    closed_form(run, "parameters", "12 h^2/t + 7 h/t + 6 h", (double)block_parameters(c.width, p),
                12 * h * h / t + 7 * h / t + 6 * h);
    closed_form(run, "numbers kept for backward", c.dropout > 0 ? "b s h (16 + 48/t + 8 a s/(h t) + 16/h)/4"
                : "b s h (16 + 48/t + 4 a s/(h t) + 16/h)/4", BATCH * s * (double)block_kept(&c, p),
                bsh * (16 + 48 / t + probabilities * a * s / (h * t) + 16 / h) / 4);
}

// ---------------------------------------------------------------- predictions: time

static double all_reduce_time(Run *run, size_t count, size_t size) {
    return ring_time(ALL_REDUCE_PASSES, run->world->size, count, size);
}

// All wait in every all-reduce, so the rank that holds most sets the pace: rank 0. Nothing is computed meanwhile.
static void predict_time(Run *run, const Timing *t) {
    const ModelConfig c = sizes(run);
    const size_t M = BATCH * c.context, n = run->world->size;
    double wide = all_reduce_time(run, M * c.width, sizeof(real)), narrow = all_reduce_time(run, M, sizeof(real));
    double talk = (double)(4 * c.layers + 2) * wide + 3 * narrow
                + all_reduce_time(run, config_tensors(&c), sizeof(double)), flops = 0, slowest = 0;
    for (size_t rank = n; rank-- > 0;) {
        Part p = part_of(run, rank);
        Work forward = work_sum(work_times((double)c.layers, work_block(&c, BATCH, p.heads, p.F)),
                                work_head(&c, BATCH, p.V));
        flops += 3 * forward.flops;                        // backward: two products for each of forward
        slowest = 3 * forward.time;
    }
    cost(run, "matrix products of all ranks, a step", "FLOPs", flops, t->flops);
    if (!clock_config()->simulated) return;
    cost(run, "step", "ps", slowest + talk, (double)t->step);
    cost(run, "exposed communication of all ranks", "ps", (double)n * talk, (double)t->exposed);
    cost(run, "hidden communication", "ps", 0, (double)t->hidden);
}

// ---------------------------------------------------------------- SGD, then AdamW

static void transformer(Run *run) {
    ModelConfig c = sizes(run);
    config_require(&c);
    say(run, "%zu parameters in %zu tensors", config_parameters(&c), config_tensors(&c));
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = STEPS,
                   .sequences = BATCH, .micro_batches = 1, .clip = max_norm, .watched = MEM_ACTIVATIONS };
    Measured r;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.5);
        t.recorded = i;
        Trajectory got = trajectory_new(run, &t), want = training_unsplit(run, &t, 1);
        r = train(run, &t, &got);
        if (i == 0) cost(run, "SGD's state", "bytes", 0, (double)r.optimizer);
        training_compare(run, "tensor-parallel = unsplit", &got, &want, LIMIT_ROUNDING);
        bool clipped = got.norm[0] > max_norm && got.norm[1] > max_norm && got.norm[2] > max_norm;
        check_true(run, i ? "AdamW" : "SGD", "every step is clipped", clipped);
        trajectory_free(&got);
        trajectory_free(&want);
    }
    predict(run, &r);
    closed_forms(run);
    Timing timing = picture_timing(run);
    predict_time(run, &timing);
    picture_show(run, "tensor parallelism, last step", PICTURE_CHART);
    picture_summary(run, &timing);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    { "dropout", "X", "0.1", "the probability that dropout drops an element" },
    {0},
};
LESSON(transformer, options);
