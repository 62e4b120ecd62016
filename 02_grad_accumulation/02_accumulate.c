// ranks: 1
// level: core
// question: How much memory does a batch need when it comes in m micro-batches, and does the Transformer notice?
//
// One device. 7 sequences come in m micro-batches (--micro-batches, default 3: of 3, 2 and 2 sequences). Forward and
// backward run for one micro-batch at a time, so only its activations are alive; the gradients of all are added in the
// one gradient buffer there is.
// Left out: other devices (the next lesson), and overlapping micro-batches, which is a pipeline (chapter 04).
#include "common/data.h"
#include "common/model.h"
#include "common/optimizer.h"
#include <stdio.h>
#include <stdlib.h>

// ---------------------------------------------------------------- data and sizes

enum { SEQUENCES = 7, STEPS = 3 };
static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

typedef struct {
    Snapshot *gradients[STEPS], *weights[STEPS];
    double loss[STEPS], norm[STEPS];
    size_t activations, parameters, gradient_bytes, optimizer;     // peak of the training; bytes between steps
} Record;

static Record record_new(Run *run) {
    Record r = {0};
    for (size_t s = 0; s < STEPS; s++) { r.gradients[s] = snapshot_new(run); r.weights[s] = snapshot_new(run); }
    return r;
}
static void record_free(Record *r) {
    for (size_t s = 0; s < STEPS; s++) { snapshot_free(r->gradients[s]); snapshot_free(r->weights[s]); }
}

static Model *new_model(Run *run) {
    ModelConfig c = tiny;
    c.seed = run->seed;
    Model *m = model_describe(&c, model_layers(&c));
    model_allocate(m);
    return m;
}

// ---------------------------------------------------------------- the gradient of one batch, three ways

typedef double Gradients(Model *model, const Data *d, uint64_t step, size_t m);

// The technique. Zero once, add m times, fold the tied table once; who calls then steps once. Every token weighs 1 /
// (counted tokens of the whole batch), which data_batch knows from the order of the data: no micro-batch needs to know
// how long the others are.
static double accumulate(Model *model, const Data *d, uint64_t step, size_t m) {
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Range r = shard_range(SEQUENCES, m, k);
        Batch b = data_batch(d, &tokens, step, r.lo, range_size(r), SEQUENCES);
        loss += model_forward_backward(model, &b) * b.token_weight;        // activations come and go in here
        arena_free(&tokens);
    }
    model_fold_tied(model);
    return loss;
}

// The unsplit twin: all sequences together. It is measured as well, because its peak is what the technique is for.
static double at_once(Model *model, const Data *d, uint64_t step, size_t m) {
    (void)m;
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(d, &tokens, step, 0, SEQUENCES, SEQUENCES);
    model_zero_gradients(model);
    double loss = model_forward_backward(model, &b) * b.token_weight;
    model_fold_tied(model);
    arena_free(&tokens);
    return loss;
}

// The trap: every micro-batch takes the mean over its own tokens, and the m means are averaged.
static double mean_of_means(Model *model, const Data *d, uint64_t step, size_t m) {
    double loss = 0;
    model_zero_gradients(model);
    for (size_t k = 0; k < m; k++) {
        Arena tokens = arena(MEM_WORKSPACE);
        Range r = shard_range(SEQUENCES, m, k);
        Batch b = data_batch(d, &tokens, step, r.lo, range_size(r), SEQUENCES);
        b.token_weight = 1 / (double)(m * data_count(d, step, r.lo, range_size(r)));
        loss += model_forward_backward(model, &b) * b.token_weight;
        arena_free(&tokens);
    }
    model_fold_tied(model);
    return loss;
}

// ---------------------------------------------------------------- training

static Record train(Run *run, const Data *d, Optimizer o, Gradients *gradients, size_t m) {
    Record r = record_new(run);
    Model *model = new_model(run);
    optimizer_allocate(&o, model);
    double *squares = host_alloc(config_tensors(&tiny) * sizeof *squares);
    memory_reset_peaks();
    for (size_t step = 0; step < STEPS; step++) {
        r.loss[step] = gradients(model, d, step, m);
        model_grad_squares(model, squares);
        r.norm[step] = norm_of_squares(squares, config_tensors(&tiny));
        model_snapshot_gradients(model, r.gradients[step]);
        optimizer_step(&o, model, 1);
        model_snapshot_weights(model, r.weights[step]);
    }
    r.activations = memory_peak(MEM_ACTIVATIONS);
    r.parameters = memory_now(MEM_PARAMETERS);
    r.gradient_bytes = memory_now(MEM_GRADIENTS);
    r.optimizer = memory_now(MEM_OPTIMIZER);
    free(squares);
    model_free(model);
    return r;
}

// ---------------------------------------------------------------- the comparison

static void compare(Run *run, const char *optimizer, bool weights_too, Record *got, Record *want) {
    char what[80];
    for (size_t s = 0; s < STEPS && weights_too; s++) {
        snprintf(what, sizeof what, "%s step %zu: accumulated = at once", optimizer, s);
        check_close(run, what, got->gradients[s], want->gradients[s], LIMIT_ROUNDING);
    }
    snprintf(what, sizeof what, "%s, %d steps: weights", optimizer, STEPS);
    if (weights_too) check_close(run, what, got->weights[STEPS - 1], want->weights[STEPS - 1], LIMIT_ROUNDING);
    snprintf(what, sizeof what, "%s, %d steps", optimizer, STEPS);
    check_numbers(run, what, "loss", got->loss, want->loss, STEPS, LIMIT_ROUNDING);
    check_numbers(run, what, "gradient norm", got->norm, want->norm, STEPS, LIMIT_ROUNDING);
}

// With equally many tokens in every micro-batch the trap cannot be seen, which is why it lives so long: so a step is
// taken whose micro-batches are unequal.
static void show_trap(Run *run, const Data *d, size_t m) {
    uint64_t step = 0;
    for (bool equal = true; equal; step += equal)
        for (size_t k = 1; k < m; k++) {
            Range a = shard_range(SEQUENCES, m, k - 1), b = shard_range(SEQUENCES, m, k);
            equal = equal && data_count(d, step, a.lo, range_size(a)) == data_count(d, step, b.lo, range_size(b));
        }
    Model *model = new_model(run);
    Snapshot *wrong = snapshot_new(run), *right = snapshot_new(run);
    double loss_wrong = mean_of_means(model, d, step, m);
    model_snapshot_gradients(model, wrong);
    double loss = at_once(model, d, step, m);
    model_snapshot_gradients(model, right);
    say(run, "step %zu: mean loss %.4f; the mean of the micro-batches' means %.4f\n", (size_t)step, loss, loss_wrong);
    check_differs(run, "trap: the mean of means", wrong, right, 1e-3);     // a hundred times what rounding may do
    snapshot_free(wrong);
    snapshot_free(right);
    model_free(model);
}

// ---------------------------------------------------------------- the predictions

// What forward keeps until backward, for B sequences: elements a row (a token), item by item. Only B changes with m.
static size_t activation_bytes(size_t B) {
    size_t L = tiny.layers, C = tiny.width, H = tiny.heads, T = tiny.context, V = tiny.vocab;
    size_t outputs = C + L * C;                        // of the embedding and of every block; the head's is the loss
    size_t block = C + 2 + 3 * C                       // first norm, its mean and deviation; q, k, v
                 + 2 * H * T + C                       // probabilities before and after dropout; heads side by side
                 + C + C + 2 + 4 * C + 4 * C;          // middle; second norm, its two; wide layer before and after GELU
    size_t head = C + 2 + V + 1;                       // last norm, its two; logits; sum of exponentials
    return B * T * (outputs + L * block + head) * sizeof(real);
}

static void predict(Run *run, const Record *got, const Record *whole, size_t m) {
    size_t V = tiny.vocab, T = tiny.context, C = tiny.width, L = tiny.layers, e = sizeof(real);
    size_t Psi = V * C + T * C + L * (12 * C * C + 13 * C) + 2 * C;
    cost(run, "activations, at once", "bytes", (double)activation_bytes(SEQUENCES), (double)whole->activations);
    cost(run, "activations, m micro-batches", "bytes", (double)activation_bytes(ceil_div(SEQUENCES, m)),
         (double)got->activations);
    cost(run, "parameters", "bytes", (double)(Psi * e), (double)got->parameters);
    cost(run, "gradients (wte twice): no m", "bytes", (double)((Psi + V * C) * e), (double)got->gradient_bytes);
    cost(run, "AdamW's m and v", "bytes", (double)(2 * Psi * e), (double)got->optimizer);
}

static void accumulation(Run *run) {
    REQUIRE(run->world->size == 1,
            "02_accumulate is about one device: start it with one rank (03_no_sync has several)");
    size_t m = option_size(run, "micro-batches");
    REQUIRE(m >= 2 && m <= SEQUENCES,
            "--micro-batches must be from 2 to %d, so that the batch is cut and no piece is empty", SEQUENCES);
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    say(run, "%d sequences in %zu micro-batches; counted tokens in step 0:", SEQUENCES, m);
    for (size_t k = 0; k < m; k++) {
        Range r = shard_range(SEQUENCES, m, k);
        say(run, "    micro-batch %zu: %zu sequences, %zu tokens\n", k, range_size(r),
            data_count(&data, 0, r.lo, range_size(r)));
    }
    const struct { const char *name; Optimizer o; } with[] = { { "SGD", sgd(0.1) }, { "AdamW", adamw(0.01) } };
    for (size_t i = 0; i < 2; i++) {
        Record got = train(run, &data, with[i].o, accumulate, m), whole = train(run, &data, with[i].o, at_once, 1);
        // AdamW divides by the root of the squared gradient: in fp32 the rounding of a gradient near zero becomes a
        // step of some size.
        compare(run, with[i].name, with[i].o.kind == SGD || sizeof(real) == 8, &got, &whole);
        if (with[i].o.kind == ADAMW) predict(run, &got, &whole, m);
        record_free(&got);
        record_free(&whole);
    }
    show_trap(run, &data, m);
    data_free(&data);
}

static const Option options[] = { { "micro-batches", "N", "3", "pieces in which the batch comes, 2 to 7" }, {0} };
int main(int argc, char **argv) { return lesson_main(argc, argv, accumulation, options); }
