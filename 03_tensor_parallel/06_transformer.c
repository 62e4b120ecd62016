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
#include "common/course.h"

enum { STEPS = 3, BATCH = 3 };
static const double max_norm = 0.5;                        // small enough that every step is clipped

typedef struct {
    Comm *tp;
    size_t calls, bytes, norm_bytes;                       // of the last step: in the layers, for the norm
    size_t parameters, gradients, optimizer, activations;  // bytes on this rank; activations: the peak
} Measured;

static ModelConfig sizes(Run *run) {
    return (ModelConfig){ .layers = option_size(run, "layers"), .width = option_size(run, "width"),
                          .heads = option_size(run, "heads"), .context = 7, .vocab = 61, .dropout = 0.1,
                          .seed = run->seed };
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
static Measured train(Run *run, const Training *t, Course *c) {
    Measured r = { .tp = run->world };
    Model *m = model_describe(&t->model, model_layers(&t->model));
    tensor_parallel(m, r.tp);                                      // cuts the parameters, replaces the layers
    model_allocate(m);                                             // initial values: by the place in the WHOLE tensor
    course_train(c, m, t, 1, 0, step, &r);                         // every rank reads every token
    r.parameters = memory_now(MEM_PARAMETERS);
    r.gradients = memory_now(MEM_GRADIENTS);
    r.optimizer = memory_now(MEM_OPTIMIZER);
    r.activations = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    return r;
}

// ---------------------------------------------------------------- predictions

static size_t ring(size_t n, size_t count) { return 2 * (n - 1) * ceil_div(count, n); }    // elements of an all-reduce

static void predict(Run *run, const Measured *r) {
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
    cost(run, "gradients (wte twice)", "bytes", (double)((parameters + V * C) * e), (double)r->gradients);
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
    Training t = { .model = c, .data = data_synthetic(c.vocab, c.context, run->seed), .steps = STEPS,
                   .sequences = BATCH, .micro_batches = 1, .clip = max_norm };
    Measured r;
    for (size_t i = 0; i < 2; i++) {
        t.optimizer = i ? adamw(0.01) : sgd(0.5);
        Course got = course_new(run, &t), want = course_unsplit(run, &t, 1);
        r = train(run, &t, &got);
        course_compare(run, "tensor-parallel = unsplit", &got, &want, LIMIT_ROUNDING);
        bool clipped = got.norm[0] > max_norm && got.norm[1] > max_norm && got.norm[2] > max_norm;
        check_true(run, i ? "AdamW" : "SGD", "every step is clipped", clipped);
        course_free(&got);
        course_free(&want);
    }
    predict(run, &r);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "2", "blocks" },
    { "width", "N", "27", "columns; a multiple of --heads" },
    { "heads", "N", "9", "attention heads; at least one a rank" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, transformer, options); }
