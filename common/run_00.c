// ranks: 1
// level: core
// question: Does the unsplit model learn, and is its backward pass the derivative of its forward pass?
//
// Week 0. Everything later is compared with the model trained here, so it is held against mathematics first: central finite
// differences, (loss(w + h v) - loss(w - h v)) / 2h, along random directions v, tensor by tensor, dropout included.
#include "common/data.h"
#include "common/model.h"
#include "common/optimizer.h"
#include "common/random.h"
#include <math.h>
#include <stdlib.h>

static const ModelConfig tiny = { .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1 };

// ---------------------------------------------------------------- gradient check

// Mean loss with the weights of one tensor moved by h along a direction.
static double loss_along(Model *m, const Batch *b, Tensor w, Tensor original, Tensor direction, double h) {
    op_scale(w, direction, (real)h);
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

// The worst disagreement over three directions, relative to the largest derivative seen in the tensor, or to 1e-3 of the largest
// of the model (the key bias has a derivative of exactly zero, which only rounding disturbs).
static double derivative_error(Model *m, const Batch *b, Param *p, double largest, double *seen) {
    double worst = 0, scale = 0, h = sizeof(real) == 8 ? 1e-5 : 1e-2;
    for (uint64_t k = 0; k < 3; k++) {
        Arena scratch = arena(MEM_WORKSPACE);
        Tensor v = tensor_new(&scratch, p->w.rows, p->w.cols), w = tensor_new(&scratch, p->w.rows, p->w.cols);
        tensor_randomize(v, random_key(k, p->number), 1 / sqrt((double)tensor_count(v)));
        tensor_copy(w, p->w);
        double analytic = dot(p->g, v, &scratch);
        double numeric = (loss_along(m, b, p->w, w, v, h) - loss_along(m, b, p->w, w, v, -h)) / (2 * h);
        worst = fmax(worst, fabs(analytic - numeric));
        scale = fmax(scale, fabs(analytic));
        arena_free(&scratch);
    }
    *seen = fmax(*seen, scale);
    return worst / fmax(scale, 1e-3 * largest);
}

static void gradient_check(Run *run, const Data *data) {
    ModelConfig c = tiny;
    c.seed = run->seed;
    Arena tokens = arena(MEM_WORKSPACE);
    Model *m = model_describe(&c, model_layers(&c));
    model_allocate(m);
    Batch b = data_batch(data, &tokens, 0, 0, 3, 3);
    model_forward_backward(m, &b);
    model_fold_tied(m);
    double largest = 0, worst = 0, zero = 0, none = 0;
    const char *where = "";
    for (size_t pass = 0; pass < 2; pass++)                // first for the largest derivative, then for the errors
        for (size_t i = 0; i < m->n_units; i++)
            for (size_t k = 0; k < m->units[i].n_params; k++) {
                if (m->units[i].tied_to) continue;
                Param *p = &m->units[i].params[k];
                double error = derivative_error(m, &b, p, largest, pass ? &none : &largest);
                if (pass && error > worst) { worst = error; where = p->name; }
            }
    say(run, "gradient check: %zu tensors, the worst is %s\n", config_tensors(&c), where);
    // fp32 loses half its digits in the difference of two losses: it only shows that nothing is grossly wrong there.
    check_numbers(run, "backward = finite differences", "every tensor, 3 directions", &worst, &zero, 1, sizeof(real) == 8 ? 1e-6 : 3e-2);
    model_free(m);
    arena_free(&tokens);
}

// ---------------------------------------------------------------- training

static void training(Run *run, const Data *data) {
    ModelConfig c = tiny;
    c.seed = run->seed;
    Model *m = model_describe(&c, model_layers(&c));
    model_allocate(m);
    Optimizer o = adamw(option_real(run, "lr"));
    optimizer_allocate(&o, m);
    size_t steps = option_size(run, "steps"), n = config_tensors(&c);
    double *squares = host_alloc(n * sizeof *squares), first = 0, loss = 0;
    say(run, "%zu parameters, AdamW, one batch of 4 sequences learned by heart\n", config_parameters(&c));
    Arena tokens = arena(MEM_WORKSPACE);
    Batch b = data_batch(data, &tokens, 0, 0, 4, 4);
    b.training = false;                                    // dropout off: the loss may go to zero
    for (size_t step = 0; step < steps; step++) {
        model_zero_gradients(m);
        loss = model_forward_backward(m, &b) * b.token_weight;
        model_fold_tied(m);
        model_grad_squares(m, squares);
        double norm = norm_of_squares(squares, n);
        optimizer_step(&o, m, clip_factor(norm, 1.0));
        if (step == 0) first = loss;
        if (step % 10 == 0 || step + 1 == steps) say(run, "step %3zu   loss %.4f   gradient norm %.3f\n", step, loss, norm);
    }
    check_true(run, "training", "the loss falls below a tenth of where it started", loss < 0.1 * first);
    cost(run, "parameters", "bytes", (double)(config_parameters(&c) * sizeof(real)), (double)memory_now(MEM_PARAMETERS));
    cost(run, "gradients (wte twice)", "bytes", (double)((config_parameters(&c) + c.vocab * c.width) * sizeof(real)), (double)memory_now(MEM_GRADIENTS));
    cost(run, "AdamW's m and v", "bytes", (double)(2 * config_parameters(&c) * sizeof(real)), (double)memory_now(MEM_OPTIMIZER));
    free(squares);
    arena_free(&tokens);
    model_free(m);
}

static void unsplit(Run *run) {
    REQUIRE(run->world->size == 1, "week 0 is about one device: start it with one rank");
    Data data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    gradient_check(run, &data);
    training(run, &data);
    data_free(&data);
}

static const Option options[] = {
    { "steps", "N", "100", "training steps" },
    { "lr", "X", "0.01", "learning rate" },
    {0},
};
int main(int argc, char **argv) { return lesson_main(argc, argv, unsplit, options); }
