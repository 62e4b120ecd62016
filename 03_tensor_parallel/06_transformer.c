// ranks: 4
// level: core
// question: Does a GPT whose every matrix is cut over the ranks train exactly like the whole one?
//
// tensor_parallel() puts lessons 02 to 05 together: embedding and head by words, attention by heads, the MLP by
// hidden columns; norms, row-cut biases and positions whole on every rank. Every rank runs every layer on every
// token, with its part of each matrix. Read tensor_parallel.c first, beside common/layer.c. Here it trains, with
// dropout, unequal token counts and clipping, three steps under SGD and three under AdamW. 9 heads over 4 ranks are
// 3, 2, 2, 2; 61 words 16, 15, 15, 15.
#include "03_tensor_parallel/tensor_parallel.h"
#include "common/data.h"
#include "common/optimizer.h"
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 3, BATCH = 3 };
static const double max_norm = 0.5;                        // small enough that every step is clipped

typedef struct {
    double loss[STEPS], norm[STEPS];
    Snapshot *gradients[STEPS], *weights;
    size_t calls, bytes, norm_bytes;                       // of the last step
    size_t parameters, gradient_memory, optimizer, activations;        // bytes on this rank; activations: the peak
} Result;

static ModelConfig sizes(Run *run) {
    return (ModelConfig){ .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                          .heads = option_size(run, "heads"), .context = 7, .vocab = 61, .dropout = 0.1,
                          .seed = run->seed };
}

// ---------------------------------------------------------------- one step

// Each rank has squares of its parts of the cut tensors; whole tensors have the same gradient on every rank and are
// counted on rank 0 only (Param.counted). One sum over the ranks gives the norm that the unsplit model finds.
static double gradient_norm(Comm *tp, const Model *m) {
    size_t n = config_tensors(&m->config);
    double *squares = host_alloc(n * sizeof *squares);
    model_grad_squares(m, squares);
    if (tp) comm_all_reduce_doubles(tp, squares, n);
    double norm = norm_of_squares(squares, n);
    free(squares);
    return norm;
}

static void step(Comm *tp, Model *m, Optimizer *o, const Data *data, size_t s, Result *r) {
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(data, &tokens, s, 0, BATCH, BATCH);       // every rank reads every token
    model_zero_gradients(m);
    if (tp) comm_ledger_reset(tp);
    r->loss[s] = model_forward_backward(m, &b) * b.token_weight;   // all communication is inside the layers
    if (tp) { r->calls = tp->ledger[COMM_ALL_REDUCE].calls; r->bytes = comm_bytes_sent(tp); }
    model_fold_tied(m);                                            // my words' rows, both uses: nothing to say
    r->norm[s] = gradient_norm(tp, m);
    if (tp) r->norm_bytes = comm_bytes_sent(tp) - r->bytes;
    model_snapshot_gradients(m, r->gradients[s]);
    optimizer_step(o, m, clip_factor(r->norm[s], max_norm));       // each rank updates what it holds
    arena_free(&tokens);
}

// tp NULL: the unsplit twin. It differs in one line.
static void train(Run *run, Comm *tp, Optimizer o, Result *r) {
    ModelConfig c = sizes(run);
    Data data = data_synthetic(c.vocab, c.context, run->seed);
    Model *m = model_describe(&c, model_layers(&c));
    if (tp) tensor_parallel(m, tp);                                // cuts the parameters, replaces the layers
    model_allocate(m);                                             // initial values: by the place in the WHOLE tensor
    optimizer_allocate(&o, m);
    memory_reset_peaks();
    for (size_t s = 0; s < STEPS; s++) step(tp, m, &o, &data, s, r);
    r->parameters = memory_now(MEM_PARAMETERS);
    r->gradient_memory = memory_now(MEM_GRADIENTS);
    r->optimizer = memory_now(MEM_OPTIMIZER);
    r->activations = memory_peak(MEM_ACTIVATIONS);
    model_snapshot_weights(m, r->weights);
    model_free(m);
    data_free(&data);
}

// ---------------------------------------------------------------- comparison

static Result result_new(Run *run) {
    Result r = { .weights = snapshot_new(run) };
    for (size_t s = 0; s < STEPS; s++) r.gradients[s] = snapshot_new(run);
    return r;
}
static void result_free(Result *r) {
    for (size_t s = 0; s < STEPS; s++) snapshot_free(r->gradients[s]);
    snapshot_free(r->weights);
}

static Result compare(Run *run, const char *name, Optimizer o) {
    Result got = result_new(run), want = result_new(run);
    train(run, run->world, o, &got);
    ledger_pause();
    if (run->world->rank == 0) train(run, NULL, o, &want);
    ledger_resume();

    char what[48], label[48];
    snprintf(what, sizeof what, "%s, tensor-parallel = unsplit", name);
    check_numbers(run, what, "loss, 3 steps", got.loss, want.loss, STEPS, LIMIT_ROUNDING);
    check_numbers(run, what, "gradient norm, 3 steps", got.norm, want.norm, STEPS, LIMIT_ROUNDING);
    bool clipped = got.norm[0] > max_norm && got.norm[1] > max_norm && got.norm[2] > max_norm;
    check_true(run, what, "every step is clipped", clipped);
    for (size_t s = 0; s < STEPS; s++) {
        // AdamW divides by the root of a running mean of squares: where that is near zero, rounding becomes a step of
        // its own. So its weights, and the gradients at those weights, are compared where there is little rounding.
        if (o.kind == ADAMW && sizeof(real) == 4 && s > 0) continue;
        snprintf(label, sizeof label, "%s, gradients of step %zu = unsplit", name, s + 1);
        check_close(run, label, got.gradients[s], want.gradients[s], LIMIT_ROUNDING);
    }
    snprintf(label, sizeof label, "%s, weights after 3 steps = unsplit", name);
    if (o.kind == SGD || sizeof(real) == 8) check_close(run, label, got.weights, want.weights, LIMIT_ROUNDING);
    result_free(&got); result_free(&want);
    return got;                                            // the numbers are still good, the snapshots are not
}

// ---------------------------------------------------------------- predictions

static size_t ring(size_t n, size_t count) { return 2 * (n - 1) * ceil_div(count, n); }    // elements of an all-reduce

static void predict(Run *run, const Result *r) {
    const ModelConfig c = sizes(run);
    const size_t n = run->world->size, me = run->world->rank, e = sizeof(real);
    const size_t L = c.layers, C = c.width, T = c.context, M = BATCH * T;
    const size_t heads = range_size(shard_range(c.heads, n, me)), A = heads * (C / c.heads);   // my heads, columns
    const size_t F = range_size(shard_range(4 * C, n, me)), V = range_size(shard_range(c.vocab, n, me));

    // Four of [M, C] a block, one for the embedding, one for the head's dx, and three numbers a token for the loss.
    cost(run, "all-reduces in the layers, a step", "calls", (double)(4 * L + 2 + 3), (double)r->calls);
    size_t sent = (4 * L + 2) * ring(n, M * C) + 3 * ring(n, M), squares = ring(n, config_tensors(&c));
    cost(run, "sent in the layers, a step", "bytes", (double)(sent * e), (double)r->bytes);
    cost(run, "sent for the norm, a step", "bytes", (double)(squares * sizeof(double)), (double)r->norm_bytes);
    say(run, "a block sends %zu reals a step; 8 b s h (t-1)/t = %.2f", 4 * ring(n, M * C),
        (double)(8 * M * C * (n - 1)) / (double)n);

    // Cut: W_qkv and b_qkv, W_O, A and a, B. Whole: b_O, b, two norms. Where it divides: 12 C^2/t + 7 C/t + 6 C.
    size_t block = (C + 1) * 3 * A + A * C + (C + 1) * F + F * C + 6 * C;
    size_t parameters = V * C + T * C + L * block + 2 * C;
    cost(run, "parameters", "bytes", (double)(parameters * e), (double)r->parameters);
    cost(run, "gradients (wte twice)", "bytes", (double)((parameters + V * C) * e), (double)r->gradient_memory);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * parameters * e), (double)r->optimizer);

    // What backward reads. Cut: q|k|v, two score matrices, mix, two of the MLP. Whole: two norms and their two
    // numbers a row, the middle, and the block's output. Around the blocks: the embedding's output; the last norm, my
    // logits, one sum a token.
    size_t kept = M * (4 * A + 2 * F) + 2 * BATCH * heads * T * T + M * (4 * C + 4);
    size_t peak = M * C + L * kept + M * (C + 2) + M * V + M;
    cost(run, "activations, peak", "bytes", (double)(peak * e), (double)r->activations);
}

static void transformer(Run *run) {
    ModelConfig c = sizes(run);
    config_require(&c);
    say(run, "%zu parameters in %zu tensors", config_parameters(&c), config_tensors(&c));
    compare(run, "SGD", sgd(0.5));
    Result r = compare(run, "AdamW", adamw(0.01));
    predict(run, &r);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, transformer, options); }
