// linear.c: prints a gradient, draws random samples and weights, and makes snapshots (linear.h).
#include "01_data_parallel/experiments/linear.h"
#include "common/tensor/random.h"
#include <math.h>

void linear_say_gradient(Run *run, const char *what, const Linear *g, const char *remark) {
    const real *w = g->w;
    say(run, "  %-29s dW = [%4g %4g; %4g %4g]%s\n", what, (double)w[0], (double)w[1], (double)w[2],
        (double)w[3], remark);
}

// Returns key i of a list. Inputs, targets, weights and biases have separate lists of keys.
static uint64_t key(const Run *run, uint64_t list, size_t i) {
    return random_key(random_key(run->seed, list), i);
}
static real uniform(const Run *run, uint64_t list, size_t i, size_t in) {
    return (real)(2 / sqrt((double)in) * (random_unit(key(run, list, i)) - 0.5));
}

void linear_random(const Run *run, Linear *start, real *x, real *target, size_t samples) {
    const size_t in = start->in, out = start->out;
    for (size_t i = 0; i < samples * in; i++) x[i] = (real)random_normal(key(run, 0, i));
    for (size_t i = 0; i < samples * out; i++) target[i] = (real)random_normal(key(run, 1, i));
    for (size_t i = 0; i < in * out; i++) start->w[i] = uniform(run, 2, i, in);
    for (size_t j = 0; j < out; j++) start->b[j] = uniform(run, 3, j, in);
}

void linear_put(Snapshot *s, const Linear *l, const char *w, const char *b) {
    Arena a = arena(MEM_WORKSPACE);
    Tensor weights = tensor_new(&a, l->in, l->out), biases = tensor_new(&a, 1, l->out);
    tensor_upload(weights, l->w);
    tensor_upload(biases, l->b);
    snapshot_put(s, w, l->in, l->out, weights, 0, 0);
    if (b) snapshot_put(s, b, 1, l->out, biases, 0, 0);
    arena_free(&a);
}
