// ranks: 1
// level: core
// question: Does the unsplit model learn, and is its backward the derivative of its forward?
// grade: --family llama
//
// Week 0. Every chapter compares a split computation with the unsplit model of this program. So
// this program first compares the model's gradients with central finite differences: (loss(w + h v)
// - loss(w - h v)) / 2h along directions v. The comparison covers every tensor, with dropout.
#include "common/model/data.h"
#include "judge/frame/lesson.h"
#include "common/model/costs.h"
#include "common/model/model.h"
#include "common/model/optimizer.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};
// Under --family llama the four query heads share two heads of key and value, and the output head
// has its own table.
static ModelConfig model_of(Run *run) {
    ModelConfig c = tiny;
    c.seed = run->seed;
    if (strcmp(option_text(run, "family"), "llama") != 0) return c;
    config_family(&c, FAMILY_LLAMA);
    c.heads = 4;
    c.kv_heads = 2;
    c.ffn = 34;
    c.untied = true;
    return c;
}

// ---------------------------------------------------------------- gradient check

enum { MIXTURES = 4 };

// Returns the mean loss after w is moved from `original` by h along v. Restores w.
static double loss_along(Model *m, const Batch *b, Tensor w, Tensor original, Tensor v, double h) {
    op_scale(w, v, (real)h);
    op_add(w, w, original);
    double loss = model_loss(m, b) * b->token_weight;
    tensor_copy(w, original);
    return loss;
}

static double dot(Tensor a, Tensor b, Arena *scratch) {
    Tensor product = tensor_new(scratch, a.rows, a.cols);
    op_multiply(product, a, b);
    return tensor_sum(product);
}

// Fills v with the k-th direction in which a tensor is moved. For a gain or bias the direction is
// element k alone. For a matrix the direction is a random mixture of all elements, because one
// element at a time would take too long.
static void direction(Tensor v, const Param *p, size_t k) {
    if (p->rows > 1) {
        tensor_randomize(v, random_key(k, p->number), 1 / sqrt((double)tensor_count(v)));
        return;
    }
    tensor_fill(v, 0);
    tensor_fill(tensor_flat_range(v, k, k + 1), 1);
}

// Returns the larger of two numbers, or NaN if one of them is NaN, because fmax() would drop the
// NaN.
static double larger(double a, double b) { return isnan(a) || b <= a ? a : b; }

// The largest difference between backward and finite differences of one tensor, and the tensor's
// largest derivative.
typedef struct {
    double difference, largest;
} Derivatives;

static Derivatives differentiate(Model *m, const Batch *b, Param *p) {
    Derivatives f = { 0 };
    double h = sizeof(real) == 8 ? 1e-4 : 2e-2;
    for (size_t k = 0, n = p->rows > 1 ? MIXTURES : p->cols; k < n; k++) {
        Arena scratch = arena(MEM_WORKSPACE);
        Tensor v = tensor_new(&scratch, p->w.rows, p->w.cols);
        Tensor original = tensor_new(&scratch, p->w.rows, p->w.cols);
        direction(v, p, k);
        tensor_copy(original, p->w);
        double analytic = dot(p->g, v, &scratch);
        double above = loss_along(m, b, p->w, original, v, h);
        double below = loss_along(m, b, p->w, original, v, -h);
        double numeric = (above - below) / (2 * h);
        f.difference = larger(f.difference, fabs(analytic - numeric));
        f.largest = larger(f.largest, fabs(numeric));
        arena_free(&scratch);
    }
    return f;
}

// Returns the worst error of all tensors. An error is divided by the tensor's largest derivative,
// but at least by 1e-3 of the model's largest derivative. Without this bound a tensor with
// derivatives near zero, where only rounding remains, would have a large error.
static double gradient_check(Run *run, const Data *data) {
    ModelConfig c = model_of(run);
    Arena tokens = arena(MEM_WORKSPACE);
    Model *m = model_describe(&c, model_layers(&c));
    model_allocate(m);
    Batch b = data_batch(data, &tokens, 0, 0, 3, 3);
    model_forward_backward(m, &b);
    model_fold_tied(m);
    Derivatives *found = host_alloc(config_tensors(&c) * sizeof *found);
    const char **name = host_alloc(config_tensors(&c) * sizeof *name);
    double largest = 0, worst = 0, zero = 0;
    size_t where = 0;
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params && !m->units[i].tied_to; k++) {
            Param *p = &m->units[i].params[k];
            found[p->number] = differentiate(m, &b, p);
            name[p->number] = p->name;
            largest = larger(largest, found[p->number].largest);
        }
    for (size_t i = 0; i < config_tensors(&c); i++) {
        double error = found[i].difference / fmax(found[i].largest, 1e-3 * largest);
        if (!isnan(worst) && !(error <= worst)) {
            worst = error;
            where = i;
        }
    }
    say(run,
        "Finite differences: a tensor w moves to w + h v and w - h v; derivative = change of the "
        "loss / 2h.\nv is a direction in w. In a gain or bias each v moves one element, and every "
        "element is tested.\nIn a matrix v moves all elements by random amounts; %d such v are "
        "tested.",
        MIXTURES);
    say(run,
        "%zu tensors, worst %s: its error is %.1e of its largest derivative\nTensors have the "
        "names of GPT-2's files.\n\n",
        config_tensors(&c), name[where], worst);
    // In fp32 the difference of two losses loses half its digits, so the fp32 limit finds gross
    // errors only. fp64 also finds small errors.
    double limit = sizeof(real) == 8 ? 1e-6 : 1e-2;
    check_numbers(run, "backward = finite differences", "every tensor", &worst, &zero, 1, limit);
    free(found);
    free(name);
    model_free(m);
    arena_free(&tokens);
    return worst;
}

// ---------------------------------------------------------------- training

// error: the worst error of gradient_check(), for the answer.
static void training(Run *run, const Data *data, double error) {
    ModelConfig c = model_of(run);
    const CutSizes whole = cut_sizes(&c, 1, 0);
    const bool llama = !config_is_gpt2(&c);
    Model *m = model_describe(&c, model_layers(&c));
    model_allocate(m);
    Optimizer o = adamw(option_real(run, "lr"));
    optimizer_allocate(&o, m);
    size_t steps = option_size(run, "steps"), n = config_tensors(&c);
    double *squares = host_alloc(n * sizeof *squares), first = 0, loss = 0;
    say(run,
        "%zu parameters (V = %zu entries, T = %zu positions, C = %zu columns, L = %zu blocks), "
        "AdamW,\n"
        "trained on one batch of 4 sequences until it is memorised\n",
        config_parameters(&c), c.vocab, c.context, c.width, c.layers);
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(data, &tokens, 0, 0, 4, 4);
    b.training = false; // no dropout, so that the loss can approach zero
    for (size_t step = 0; step < steps; step++) {
        model_zero_gradients(m);
        loss = model_forward_backward(m, &b) * b.token_weight;
        model_fold_tied(m);
        model_grad_squares(m, squares);
        double norm = norm_of_squares(squares, n);
        optimizer_step(&o, m, clip_factor(norm, 1.0));
        if (step == 0) first = loss;
        if (step % 20 == 0 || step + 1 == steps)
            say(run, "step %3zu   loss %.4f   gradient norm %.3f\n", step, loss, norm);
    }
    check_true(run, "training", "the loss falls below a tenth of where it started",
               loss < 0.1 * first);
    check_cost(run, "parameters", "parameters", "bytes",
               formula((double)(config_parameters(&c) * sizeof(real))), NOT_PREDICTED,
               (double)memory_now(MEM_PARAMETERS));
    check_cost(run, "gradients", llama ? "gradients" : "gradients (wte twice)", "bytes",
               formula((double)(elements_gradients(&whole) * sizeof(real))), NOT_PREDICTED,
               (double)memory_now(MEM_GRADIENTS));
    check_cost(run, "optimizer", "AdamW's m and v", "bytes",
               formula((double)(2 * config_parameters(&c) * sizeof(real))), NOT_PREDICTED,
               (double)memory_now(MEM_OPTIMIZER));
    results(run, (const char *const[]){ "", NULL },
            (const Result[]){
                { "loss before training",
                  page_text(run, "ln V = %.2f: all %zu vocabulary entries equally likely",
                            log((double)c.vocab), c.vocab),
                  { page_text(run, "=%.4f", first) } },
                { "loss at the last step",
                  "near 0 when the batch is memorised",
                  { page_text(run, "=%.4f", loss) } },
                { "parameters",
                  llama ? "Psi = 2VC + L(2C^2 + 2CK + 3CF + 2C) + C elements"
                        : "Psi = VC + TC + L(12C^2 + 13C) + 2C elements",
                  { "parameters" } },
                { "gradients",
                  llama ? "Psi: each table has one use"
                        : "Psi + VC: the token table wte is used twice",
                  { "gradients" } },
                { "AdamW's m and v", "2 Psi", { "optimizer" } },
                { 0 },
            });
    say_answer(run,
               "Yes to both. The loss fell from %.4f to %.4f in %zu steps; backward differs from "
               "finite differences by at most %.1e of a tensor's largest derivative.",
               first, loss, steps, error);
    say_cost(run,
             "one device holds everything: %s of parameters, %s of gradients, %s of optimizer "
             "state.",
             cost_text(run, "parameters"), cost_text(run, "gradients"),
             cost_text(run, "optimizer"));
    say_use_when(run, "model, optimizer and activations fit one device, and one device is fast "
                      "enough. Every chapter compares its split model with this one.");
    free(squares);
    arena_free(&tokens);
    model_free(m);
}

static void unsplit(Run *run) {
    REQUIRE(run->world->size == 1, "week 0 uses one device: start it with one rank");
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    double error = gradient_check(run, &data);
    training(run, &data, error);
    data_free(&data);
}

static const Option options[] = {
    { "family", "gpt2|llama", "gpt2", "llama: a Llama with grouped heads and an untied head" },
    { "steps", "N", "100", "training steps" },
    { "lr", "X", "0.01", "learning rate" },
    REALS_ONLY("finite differences need reals"),
    { 0 },
};
EXPERIMENT(unsplit, options);
