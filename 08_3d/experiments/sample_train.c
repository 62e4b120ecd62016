// sample_train.c runs the short training with which 08_3d/sample starts if --from names no model. A
// model without training would write random bytes.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include "common/base/input.h"
#include "common/model/optimizer.h"
#include "common/tensor/random.h"

// The model learns a text of this tree that does not change, so that the model always writes the
// same text.
static const char text_file[] = "LICENSE";
// --train-steps counts steps, because a number of seconds would give each machine another model.
enum { SEQUENCES = 8, WARMUP = 30, MOST_TEXT = 1 << 20, KEY_WINDOW = 6 };
static const double highest_rate = 0.007;

// Returns sequences that begin anywhere in the text, because the sampler's windows begin anywhere,
// too.
static Batch batch_of(Arena *a, const ModelConfig *c, const char *text, size_t bytes, size_t step) {
    const size_t T = c->context, count = SEQUENCES * T;
    int *host[3], *device[3]; // tokens, targets, positions
    for (size_t i = 0; i < 3; i++) {
        host[i] = host_alloc(count * sizeof *host[i]);
        device[i] = ints_new(a, count);
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t key = random_key(random_key(c->seed, KEY_WINDOW), step * SEQUENCES + i / T);
        size_t place = key % (bytes - T) + i % T;
        host[0][i] = (unsigned char)text[place];
        host[1][i] = (unsigned char)text[place + 1];
        host[2][i] = (int)(i % T);
    }
    for (size_t i = 0; i < 3; i++) {
        ints_upload(device[i], host[i], count);
        free(host[i]);
    }
    return (Batch){ .B = SEQUENCES,
                    .T = T,
                    .tokens = device[0],
                    .targets = device[1],
                    .position = device[2],
                    .step = step,
                    .token_weight = 1 / (double)count,
                    .training = true };
}

// Returns the learning rate, which rises to the highest rate and then falls towards zero, both
// linearly. With at most WARMUP steps the rate only rises.
static double rate(size_t step, size_t steps) {
    if (step < WARMUP || steps <= WARMUP) return highest_rate * (double)(step + 1) / WARMUP;
    return highest_rate * (double)(steps - step) / (double)(steps - WARMUP);
}

typedef struct {
    double first, last, seconds;
} Losses;

// values gets the elements of each parameter, by the parameter's number.
static Losses train(Run *run, const ModelConfig *c, const char *text, size_t bytes, real **values) {
    Losses losses = { 0 };
    const size_t steps = option_size(run, "train-steps");
    double begun = now();
    Model *m = model_describe(c, model_layers(c));
    Optimizer o = adamw(highest_rate);
    // Averages the squared gradients over about 200 steps, because a step has few sequences, so its
    // gradient is noisy.
    o.beta2 = 0.995;
    o.epsilon = 1e-8; // far smaller than the gradients of this model
    model_allocate(m);
    optimizer_allocate(&o, m);
    for (size_t step = 0; step < steps; step++) {
        progress(run, "training, step", step, steps);
        Arena tokens = arena(MEM_WORKSPACE);
        Batch b = batch_of(&tokens, c, text, bytes, step);
        model_zero_gradients(m);
        losses.last = model_forward_backward(m, &b) * b.token_weight;
        if (step == 0) losses.first = losses.last;
        model_fold_tied(m);
        o.lr = rate(step, steps);
        optimizer_step(&o, m, clip_factor(model_grad_norm(m, NULL), 1));
        arena_free(&tokens);
    }
    progress(run, "training, step", steps, steps);
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params && !m->units[i].tied_to; k++)
            tensor_download(values[m->units[i].params[k].number], m->units[i].params[k].w);
    model_free(m);
    losses.seconds = now() - begun;
    return losses;
}

// Returns room for the elements of each parameter, by the parameter's number, in one block of *all
// elements.
static real **values_new(const ModelConfig *c, size_t *all) {
    Model *m = model_describe(c, model_layers(c));
    real **values = host_alloc(config_tensors(c) * sizeof *values);
    real *room = host_alloc(config_parameters(c) * sizeof *room);
    *all = 0;
    for (size_t i = 0; i < m->n_units; i++)
        for (size_t k = 0; k < m->units[i].n_params && !m->units[i].tied_to; k++) {
            const Param *p = &m->units[i].params[k];
            values[p->number] = room + *all;
            *all += p->rows * p->cols;
        }
    model_free(m);
    return values;
}

void sample_train(Run *run, Weights *w) {
    size_t bytes = 0, all;
    char why[INPUT_WHY] = "", *text = NULL;
    Losses losses = { 0 };
    REQUIRE(option_size(run, "train-steps") > 0, "--train-steps must be at least 1");
    if (run->is_root) text = input_text(text_file, MOST_TEXT, &bytes, why);
    bool enough = text && bytes > w->model.context + 1;
    side_broadcast(&enough, sizeof enough);
    if (!enough) {
        say(run,
            "not trained, because %s is not here: start in the root of this tree, or give --from",
            text_file);
        free(text);
        return;
    }
    w->values = values_new(&w->model, &all);
    ledger_pause();
    if (run->is_root) losses = train(run, &w->model, text, bytes, w->values);
    ledger_resume();
    side_broadcast(w->values[0], all * sizeof(real));
    say(run,
        "Trained for %zu steps on %s (a token is a byte) in %.1f s: loss %.2f to %.2f nats per "
        "byte.\nWith --from the program reads a model and does not train.",
        option_size(run, "train-steps"), text_file, losses.seconds, losses.first, losses.last);
    free(text);
}
