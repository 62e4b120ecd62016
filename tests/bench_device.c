// ranks: 1
// level: core
// question: How fast is a training step on this device, and how far is each op of the step from the device's limit?
//
// The same run measures two limits: how fast the device copies memory, and the rate of one large
// matrix product, the device's peak. An op's floor is the larger of bytes / bandwidth and FLOPs /
// peak. An op whose data fits a cache may be faster than its floor. "share" is the part of the
// step's time that the op's calls take. With one rank the program times a step of the unsplit
// model, and then each op. With more ranks the program times a step of the trainer
// (08_3d/trainer.h), and virtual ranks share the device. `make bench` runs this program. make test
// does not, because the times are not reproducible.
#include <math.h>
#include <stdlib.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/trainer.h"
#include "common/device/device.h"
#include "common/tensor/ops.h"
#include "judge/frame/lesson.h"

static const Option options[] = {
    { "layers", "N", "4", "blocks" },
    { "width", "N", "256", "features of a token" },
    { "heads", "N", "4", "attention heads" },
    { "context", "N", "128", "tokens of a sequence" },
    { "vocab", "N", "4096", "words" },
    { "batch", "N", "4", "sequences of a step" },
    { "micro-batch", "N", "1", "sequences per replica and micro-batch, with more than one rank" },
    { "dp", "N", "1", "data-parallel replicas, with more than one rank" },
    { "tp", "N", "1", "tensor-parallel ranks of a stage, with more than one rank" },
    { "pp", "N", "1", "with ranks: pipeline stages" },
    { "steps", "N", "5", "steps that are timed, after two that are not" },
    { "square", "N", "1024", "rows of the matrices whose product is the peak" },
    { "copy", "N", "64", "MB that are copied to measure the memory" },
    { 0 },
};

// ---- the device's limits ----

// Measures three rounds, each with about as many calls as fit into 30 ms. Returns the seconds per
// call in the fastest round.
static double seconds_of(void (*run)(void *), void *with) {
    double best = INFINITY;
    run(with);
    device_synchronize();
    double start = now();
    run(with);
    device_synchronize();
    size_t calls = (size_t)(0.03 / (now() - start + 1e-6)) + 1;
    for (int round = 0; round < 3; round++) {
        start = now();
        for (size_t i = 0; i < calls; i++) run(with);
        device_synchronize();
        best = fmin(best, (now() - start) / (double)calls);
    }
    return best;
}

typedef struct {
    Tensor a, b, c;
} Three;
static void run_product(void *v) {
    const Three *t = v;
    op_matmul(t->c, t->a, t->b);
}
static void run_copy(void *v) {
    const Three *t = v;
    tensor_copy(t->a, t->b);
}

typedef struct {
    double flops, bytes;
} Peak; // FLOP/s and bytes/s
static Peak measure_peak(size_t square, size_t megabytes) {
    Arena a = arena(MEM_WORKSPACE);
    Three t = { tensor_new(&a, square, square), tensor_new(&a, square, square),
                tensor_new(&a, square, square) };
    tensor_randomize(t.a, 1, 1);
    tensor_randomize(t.b, 2, 1);
    Peak p = { .flops = 2 * pow((double)square, 3) / seconds_of(run_product, &t) };
    const size_t n = megabytes * 1000000 / sizeof(real);
    t = (Three){ tensor_new(&a, 1, n), tensor_new(&a, 1, n), { 0 } };
    tensor_fill(t.b, 1);
    p.bytes = 2 * (double)n * sizeof(real) / seconds_of(run_copy, &t);
    arena_free(&a);
    return p;
}

// ---- the ops, in the shapes of the model ----

typedef struct {
    size_t B, T, H, M, C, V;
    Tensor c[3], f[3], p[3], row[4], stats, gain[3], bias, sum, w, wte[2], wpe[2], x, flat[4];
    int *words, *position;
} Place;
static HeadsPlace at(const Place *s) {
    return (HeadsPlace){ s->B, s->H, s->position, s->position };
}

#define RUN(name, ...) \
    static void run_##name(void *v) { \
        Place *s = v; \
        __VA_ARGS__; \
    }
RUN(matmul, op_matmul(s->f[0], s->c[0], s->w))
RUN(matmul_nt, op_matmul_nt(s->c[1], s->f[1], s->w))
RUN(matmul_tn, op_matmul_tn(s->w, s->c[2], s->f[1]))
RUN(logits, op_matmul_nt(s->x, s->c[0], s->wte[0]))
RUN(logits_dx, op_matmul(s->c[1], s->x, s->wte[0]))
RUN(logits_dw, op_matmul_tn(s->wte[1], s->x, s->c[0]))
RUN(scores, op_heads_scores(s->p[0], s->c[0], s->c[1], s->B, s->H))
RUN(mix, op_heads_mix(s->c[2], s->p[1], s->c[1], s->B, s->H))
RUN(mix_t, op_heads_mix_t(s->c[2], s->p[1], s->c[1], s->B, s->H))
RUN(softmax, op_causal_softmax(s->p[0], s->p[1], (real)0.125, at(s)))
RUN(softmax_backward, op_causal_softmax_backward(s->p[2], s->p[0], s->p[1], (real)0.125, at(s)))
RUN(norm, op_layer_norm(s->c[1], s->stats, s->c[0], s->gain[0], s->gain[1]))
RUN(norm_backward, op_layer_norm_backward(s->c[2], s->c[0], s->stats, s->gain[0], s->c[1]))
RUN(norm_grads, op_layer_norm_grads(s->gain[1], s->gain[2], s->c[0], s->stats, s->c[1]))
RUN(add_bias, op_add_bias(s->f[0], s->f[1], s->bias))
RUN(sum_rows, op_sum_rows(s->sum, s->f[1]))
RUN(gelu, op_gelu(s->f[0], s->f[1]))
RUN(gelu_backward, op_gelu_backward(s->f[0], s->f[1], s->f[2]))
RUN(add, op_add(s->c[2], s->c[0], s->c[1]))
RUN(dropout, op_dropout(s->c[2], s->c[0], (Dropout){ .key = 1, .p = 0.1 }))
RUN(embed, op_embed_tokens(s->c[2], s->wte[0], s->words, 0))
RUN(embed_grad, op_embed_tokens_grad(s->wte[1], s->words, s->c[0], 0))
RUN(positions, op_add_positions(s->c[2], s->c[0], s->wpe[0], s->position))
RUN(positions_grad, op_add_positions_grad(s->wpe[1], s->position, s->c[0]))
RUN(row_max, op_row_max(s->row[0], s->x))
RUN(exp_sum, op_exp_sum(s->row[1], s->x, s->row[0]))
RUN(entropy_backward, op_cross_entropy_backward(s->x, s->row[1], s->words, s->row[2], 0))
RUN(squares, tensor_sum_of_squares(s->flat[0]))
RUN(sgd, op_sgd(s->flat[0], s->flat[1], 1, (real)1e-9, 0))
RUN(adamw, op_adamw(s->flat[0], s->flat[1], s->flat[2], s->flat[3], 1,
                    (AdamW){ (real)1e-9, (real)0.9, (real)0.95, (real)1e-5, 0, 1, 1 }))

static Tensor filled(Arena *a, size_t rows, size_t cols) {
    Tensor t = tensor_new(a, rows, cols);
    tensor_randomize(t, rows + cols, 0.5);
    return t;
}
static Place place(Arena *a, const ModelConfig *c, size_t B) {
    const size_t M = B * c->context, C = c->width, rows = B * c->heads * c->context;
    Place s = { .B = B, .T = c->context, .H = c->heads, .M = M, .C = C, .V = c->vocab };
    for (int i = 0; i < 3; i++) {
        s.c[i] = filled(a, M, C);
        s.f[i] = filled(a, M, 4 * C);
        s.p[i] = filled(a, rows, c->context);
        s.gain[i] = filled(a, 1, C);
    }
    for (int i = 0; i < 4; i++) {
        s.row[i] = filled(a, M, 1);
        s.flat[i] = filled(a, 1, config_parameters(c));
    }
    for (int i = 0; i < 2; i++) {
        s.wte[i] = filled(a, c->vocab, C);
        s.wpe[i] = filled(a, c->context, C);
    }
    s.stats = filled(a, M, 2);
    s.bias = filled(a, 1, 4 * C);
    s.sum = filled(a, 1, 4 * C);
    s.w = filled(a, C, 4 * C);
    s.x = filled(a, M, c->vocab);
    op_multiply(s.flat[3], s.flat[3], s.flat[3]); // a second moment is not negative
    s.words = ints_new(a, M);
    int *host = host_alloc(M * sizeof *host);
    for (size_t i = 0; i < M; i++) host[i] = (int)(i * 7919 % c->vocab);
    ints_upload(s.words, host, M);
    s.position = ints_new(a, M);
    for (size_t i = 0; i < M; i++) host[i] = (int)(i % c->context);
    ints_upload(s.position, host, M);
    free(host);
    return s;
}

static void row(Run *run, const char *op, void (*f)(void *), Place *s, double calls, double numbers,
                double flops, Peak peak, double step) {
    const double bytes = numbers * sizeof(real), seconds = seconds_of(f, s);
    const double by_memory = bytes / peak.bytes, by_flops = flops / peak.flops;
    say(run, "  %-34s %9.4f %9.4f %-6s %7.1fx %7.4g %6.1f%%", op, 1e3 * seconds,
        1e3 * fmax(by_memory, by_flops), by_memory > by_flops ? "memory" : "FLOPs",
        seconds / fmax(by_memory, by_flops), calls, 100 * calls * seconds / step);
}

// Prints a line for each op. The argument `numbers` of row() counts the elements that the op reads
// and writes. Each element counts once, as with perfect caches. Small operands, such as a bias, are
// not counted.
static void each_op(Run *run, const ModelConfig *c, size_t B, Peak peak, double step) {
    Arena a = arena(MEM_WORKSPACE);
    Place s = place(&a, c, B);
    const double M = (double)s.M, C = (double)s.C, V = (double)s.V, L = (double)c->layers,
                 T = (double)s.T;
    const double MC = M * C, P = (double)config_parameters(c), S = M * T * (double)s.H;
    say(run, "\n  op                                   time ms  floor ms        time/floor   calls "
             " share");
    row(run, "matmul [M,C] [C,4C]", run_matmul, &s, 3 * L, 5 * MC + 4 * C * C, 8 * MC * C, peak,
        step);
    row(run, "matmul_nt [M,4C] [C,4C]^T", run_matmul_nt, &s, 3 * L, 5 * MC + 4 * C * C, 8 * MC * C,
        peak, step);
    row(run, "matmul_tn [M,C]^T [M,4C]", run_matmul_tn, &s, 3 * L, 5 * MC + 4 * C * C, 8 * MC * C,
        peak, step);
    row(run, "matmul_nt [M,C] [V,C]^T, logits", run_logits, &s, 1, MC + V * C + M * V, 2 * MC * V,
        peak, step);
    row(run, "matmul [M,V] [V,C]", run_logits_dx, &s, 1, MC + V * C + M * V, 2 * MC * V, peak,
        step);
    row(run, "matmul_tn [M,V]^T [M,C]", run_logits_dw, &s, 1, MC + V * C + M * V, 2 * MC * V, peak,
        step);
    row(run, "heads_scores", run_scores, &s, 2 * L, 2 * MC + S, 2 * MC * T, peak, step);
    row(run, "heads_mix", run_mix, &s, 2 * L, 2 * MC + S, 2 * MC * T, peak, step);
    row(run, "heads_mix_t", run_mix_t, &s, 2 * L, 2 * MC + S, 2 * MC * T, peak, step);
    row(run, "causal_softmax", run_softmax, &s, L, 1.5 * S, 0, peak, step);
    row(run, "causal_softmax_backward", run_softmax_backward, &s, L, 2 * S, 0, peak, step);
    row(run, "layer_norm", run_norm, &s, 2 * L + 1, 2 * MC, 0, peak, step);
    row(run, "layer_norm_backward", run_norm_backward, &s, 2 * L + 1, 3 * MC, 0, peak, step);
    row(run, "layer_norm_grads", run_norm_grads, &s, 2 * L + 1, 2 * MC, 0, peak, step);
    row(run, "add_bias [M,4C]", run_add_bias, &s, 2.25 * L, 8 * MC, 0, peak, step);
    row(run, "sum_rows [M,4C]", run_sum_rows, &s, 2.25 * L, 4 * MC, 0, peak, step);
    row(run, "gelu [M,4C]", run_gelu, &s, L, 8 * MC, 0, peak, step);
    row(run, "gelu_backward [M,4C]", run_gelu_backward, &s, L, 12 * MC, 0, peak, step);
    row(run, "add [M,C]", run_add, &s, 4 * L, 3 * MC, 0, peak, step);
    row(run, "dropout [M,C]", run_dropout, &s, 0, 2 * MC, 0, peak, step);
    row(run, "embed_tokens", run_embed, &s, 1, 2 * MC, 0, peak, step);
    row(run, "embed_tokens_grad", run_embed_grad, &s, 1, V * C + 3 * MC, 0, peak, step);
    row(run, "add_positions", run_positions, &s, 1, 2 * MC + T * C, 0, peak, step);
    row(run, "add_positions_grad", run_positions_grad, &s, 1, MC + T * C, 0, peak, step);
    row(run, "row_max [M,V]", run_row_max, &s, 1, M * V, 0, peak, step);
    row(run, "exp_sum [M,V]", run_exp_sum, &s, 1, 2 * M * V, 0, peak, step);
    row(run, "cross_entropy_backward [M,V]", run_entropy_backward, &s, 1, 2 * M * V, 0, peak, step);
    row(run, "sum_of_squares, every parameter", run_squares, &s, 1, P, 0, peak, step);
    row(run, "sgd, every parameter", run_sgd, &s, 0, 3 * P, 0, peak, step);
    row(run, "adamw, every parameter", run_adamw, &s, 1, 7 * P, 0, peak, step);
    arena_free(&a);
}

// ---- a step ----

static double unsplit_step(const ModelConfig *c, const Data *d, size_t batch, size_t steps) {
    Model *m = model_describe(c, model_layers(c));
    Optimizer o = adamw(1e-4);
    double start = 0;
    model_allocate(m);
    optimizer_allocate(&o, m);
    for (size_t step = 0; step < steps + 2; step++) {
        Arena tokens = arena(MEM_WORKSPACE);
        device_synchronize();
        if (step == 2) start = now(); // steps 0 and 1 allocate memory and load libraries
        Batch b = data_batch(d, &tokens, step, 0, batch, batch);
        model_zero_gradients(m);
        model_forward_backward(m, &b);
        model_fold_tied(m);
        optimizer_step(&o, m, clip_factor(model_grad_norm(m, NULL), 1));
        arena_free(&tokens);
    }
    device_synchronize();
    double seconds = (now() - start) / (double)steps;
    model_free(m);
    return seconds;
}

static double trainer_step(Run *run, const TrainerConfig *c, const Data *d, size_t steps) {
    Trainer *t = trainer_new(run->world, c, adamw(1e-4));
    double start = 0;
    for (size_t step = 0; step < steps + 2; step++) {
        if (step == 2) {
            device_synchronize();
            comm_barrier(run->world);
            start = now();
        }
        trainer_update(t, trainer_gradients(t, d, step));
    }
    device_synchronize();
    comm_barrier(run->world);
    double seconds = (now() - start) / (double)steps;
    trainer_free(t);
    return seconds;
}

// Returns the FLOPs of the matrix products of a step on this many tokens. Forward takes 2 (12 L C^2
// + V C) + 4 L T C FLOPs per token, because the attention's products cover masked keys, too.
// Backward takes twice as many.
static double flops_of(const ModelConfig *c, double tokens) {
    const double L = (double)c->layers, C = (double)c->width;
    return 3 * tokens *
           (2 * (12 * L * C * C + (double)c->vocab * C) + 4 * L * (double)c->context * C);
}

static void bench(Run *run) {
    size_t batch = option_size(run, "batch"), steps = option_size(run, "steps");
    TrainerConfig c = { .model = { .layers = option_size(run, "layers"),
                                   .width = option_size(run, "width"),
                                   .heads = option_size(run, "heads"),
                                   .context = option_size(run, "context"),
                                   .vocab = option_size(run, "vocab"),
                                   .seed = run->seed },
                        .mesh = { option_size(run, "dp"), option_size(run, "tp"),
                                  option_size(run, "pp"), 1 },
                        .batch = batch,
                        .micro_batch = option_size(run, "micro-batch"),
                        .schedule = schedule_1f1b,
                        .clip = 1 };
    config_require(&c.model);
    REQUIRE(batch > 0 && steps > 0 && option_size(run, "square") > 0 &&
                option_size(run, "copy") > 0,
            "--batch, --steps, --square and --copy must be at least 1");
    Data d = data_synthetic(c.model.vocab, c.model.context, run->seed);
    memory_set_poison(false); // as in 08_3d/train.c, because filling new memory with NaN takes time
    Peak peak = { 0 };
    if (run->world->rank == 0)
        peak = measure_peak(option_size(run, "square"), option_size(run, "copy"));
    side_broadcast(&peak, sizeof peak);
    say(run, "GPT of %zu parameters: %zu blocks, width %zu, %zu heads, context %zu, %zu words",
        config_parameters(&c.model), c.model.layers, c.model.width, c.model.heads, c.model.context,
        c.model.vocab);
    say(run, "the peak, a product of %zu x %zu matrices: %.3f TFLOP/s", option_size(run, "square"),
        option_size(run, "square"), 1e-12 * peak.flops);
    say(run, "the memory, a copy of %zu MB: %.1f GB/s, read and written", option_size(run, "copy"),
        1e-9 * peak.bytes);
    bool unsplit = run->world->size == 1;
    double tokens = (double)(batch * c.model.context), flops = flops_of(&c.model, tokens);
    double seconds =
        unsplit ? unsplit_step(&c.model, &d, batch, steps) : trainer_step(run, &c, &d, steps);
    if (unsplit) say(run, "unsplit step, %zu sequences, AdamW:", batch);
    else
        say(run,
            "3D step, %zu sequences, AdamW, %zu x %zu x %zu ranks (data, tensor, pipeline), "
            "micro-batch %zu:",
            batch, c.mesh.dp, c.mesh.tp, c.mesh.pp, c.micro_batch);
    say(run, "  %.2f ms, %.0f tokens/s, %.3f TFLOP/s, %.1f %% of the peak", 1e3 * seconds,
        tokens / seconds, 1e-12 * flops / seconds, 100 * flops / seconds / peak.flops);
    if (unsplit) each_op(run, &c.model, batch, peak, seconds);
    // If a step seems much faster than its products at the peak, the clock did not wait for the
    // step's end, or the FLOPs are counted wrongly.
    check_true(run, "a step is no faster than its products", "at the peak",
               flops <= 1.5 * seconds * peak.flops);
    data_free(&d);
}

EXPERIMENT(bench, options);
