// ranks: 1
// level: core
// question: Four devices each have a gradient, of a quarter of the batch: do they add the four, or average them?
// vary: IN 7..12, OUT 3..6, SAMPLES 60|120, SHARDS 3|4|5
//
// One device plays all four, on plain C arrays. A linear layer y = xW + b maps 10 numbers to 5; 100 samples lie in 4
// shards of 25. Every shard has the same weights. A loss is a sum of squared errors divided by a number of elements,
// and so is its gradient. Which number?
//     the elements of the shard           as PyTorch's MSELoss: each shard has a mean of its own, and the gradient of
//                                         the whole batch is the average of the shards' gradients
//     the elements of the whole batch     the gradient of the whole batch is the sum of the shards' gradients, which is
//                                         divided by nothing. All lessons that follow do this.
// Left out: ranks, messages, shards of different sizes (chapter 02 shows what they do to an average).
#include "judge/frame/lesson.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>

enum { IN = 10, OUT = 5, SAMPLES = 100, SHARDS = 4, SHARD = SAMPLES / SHARDS, EPOCHS = 100, PRINTED = EPOCHS / 10 };

// A layer, or the gradient of one: w is [in, out], row by row.
typedef struct { size_t in, out; real w[IN * OUT], b[OUT]; } Linear;

// ================================ the technique ================================

// Returns the sum of the squared errors of n samples, divided by `count`; g becomes its gradient, finished from zero.
// With count = n * out, the elements of these samples, it is their mean squared error.
static double loss_and_gradient(Linear *g, const Linear *l, const real *x, const real *target, size_t n, size_t count) {
    double loss = 0;
    *g = (Linear){ .in = l->in, .out = l->out };
    for (size_t s = 0; s < n; s++)
        for (size_t j = 0; j < l->out; j++) {
            real y = l->b[j];
            for (size_t i = 0; i < l->in; i++) y += x[s * l->in + i] * l->w[i * l->out + j];
            real difference = y - target[s * l->out + j], dy = 2 * difference / (real)count;
            loss += (double)(difference * difference);
            for (size_t i = 0; i < l->in; i++) g->w[i * l->out + j] += x[s * l->in + i] * dy;       // dW = x^T dy
            g->b[j] += dy;
        }
    return loss / (double)count;
}

static void add_scaled(Linear *to, const Linear *from, real scale) {
    for (size_t i = 0; i < to->in * to->out; i++) to->w[i] += scale * from->w[i];
    for (size_t j = 0; j < to->out; j++) to->b[j] += scale * from->b[j];
}

// What each shard's loss is divided by: its own elements, or those of the whole batch.
typedef enum { OWN_COUNT, WHOLE_COUNT } Count;

// Each shard finishes its own gradient with the same weights; then the gradients are added in the order of the shards.
// This sum is what an all-reduce leaves on every device.
static Linear sum_over_shards(const Linear *l, const real *x, const real *target, size_t samples, size_t shards,
                              Count what, double *shard_loss) {
    Linear sum = { .in = l->in, .out = l->out }, g;
    for (size_t k = 0; k < shards; k++) {
        Range r = shard_range(samples, shards, k);
        size_t n = range_size(r), count = (what == WHOLE_COUNT ? samples : n) * l->out;
        shard_loss[k] = loss_and_gradient(&g, l, x + r.lo * l->in, target + r.lo * l->out, n, count);
        add_scaled(&sum, &g, 1);
    }
    return sum;
}

// FULL_BATCH: one device, all samples at once. AVERAGE: the shards' means, averaged. WHOLE: each shard divides by the
// whole batch, and the sum is the gradient. SUM, a trap: the shards' means, summed.
typedef enum { FULL_BATCH, AVERAGE, WHOLE, SUM } Rule;
typedef struct { Linear layer; double loss[PRINTED], last_shard[PRINTED]; } Trained;

static Trained train(const Linear *start, const real *x, const real *target, Rule rule, double lr) {
    Trained t = { .layer = *start };
    for (size_t epoch = 0; epoch < EPOCHS; epoch++) {
        double shard_loss[SHARDS], loss = 0;
        Linear g;
        if (rule == FULL_BATCH) loss = loss_and_gradient(&g, &t.layer, x, target, SAMPLES, SAMPLES * start->out);
        else {
            Count count = rule == WHOLE ? WHOLE_COUNT : OWN_COUNT;
            g = sum_over_shards(&t.layer, x, target, SAMPLES, SHARDS, count, shard_loss);
            // the loss of ALL shards, not of the last one
            for (size_t k = 0; k < SHARDS; k++) loss += shard_loss[k] / (rule == WHOLE ? 1 : SHARDS);
        }
        if (epoch % 10 == 0) {
            t.loss[epoch / 10] = loss;
            t.last_shard[epoch / 10] = rule == FULL_BATCH ? loss : shard_loss[SHARDS - 1];
        }
        Linear mean = { .in = g.in, .out = g.out };
        real scale = 1;
        // EXERCISE 01.01a (2 points): average the shards. g is the gradient of the whole batch under FULL_BATCH. Under
        // AVERAGE and SUM it is the sum of SHARDS gradients, each divided by the elements of its own shard; under WHOLE
        // the sum of SHARDS gradients, each divided by the elements of the whole batch. The layer moves along
        // scale * g. Change `scale` under the one rule that needs it to move as under FULL_BATCH; SUM stays as it is,
        // to show the difference.
        if (rule == AVERAGE) scale = (real)1 / SHARDS;
        // END
        add_scaled(&mean, &g, scale);          // not the rate: under SGD that would be the same, under AdamW not
        add_scaled(&t.layer, &mean, -(real)lr);
    }
    return t;
}

// ================================ the experiment ================================

// ---------------------------------------------------------------- two samples, two shards, on paper

// dW of the 2x2 example, row by row.
static void say_gradient(Run *run, const char *what, const Linear *g, const char *remark) {
    double w[] = { (double)g->w[0], (double)g->w[1], (double)g->w[2], (double)g->w[3] };
    say(run, "  %-28s dW = [%4g %4g; %4g %4g]%s\n", what, w[0], w[1], w[2], w[3], remark);
}

static void on_paper(Run *run) {
    static const real x[] = { 1, 2, 3, 0 }, target[] = { 0, 2, 3, 4 };
    const Linear identity = { .in = 2, .out = 2, .w = { 1, 0, 0, 1 } };
    Linear g, full;
    say(run, "On paper: 2 samples, one a shard, W = identity, b = 0, so y = x\n");
    for (size_t k = 0; k < 2; k++) {
        double loss = loss_and_gradient(&g, &identity, x + 2 * k, target + 2 * k, 1, 2);
        char what[40];
        snprintf(what, sizeof what, "shard %zu: loss %.2f", k, loss);
        say_gradient(run, what, &g, "");
    }
    double shard_loss[2], got[2][4];
    Linear sum = sum_over_shards(&identity, x, target, 2, 2, OWN_COUNT, shard_loss);
    Linear whole = sum_over_shards(&identity, x, target, 2, 2, WHOLE_COUNT, shard_loss);
    loss_and_gradient(&full, &identity, x, target, 2, 4);
    say_gradient(run, "the sum of both", &sum, "");
    say_gradient(run, "both at once", &full, "   the sum divided by 2");
    say_gradient(run, "each / 4, then summed", &whole, "   4: the elements of both");
    static const double by_pencil[] = { 0.5, -6, 1, 0 };
    for (size_t i = 0; i < 4; i++) got[0][i] = (double)sum.w[i] / 2, got[1][i] = (double)whole.w[i];
    check_numbers(run, "on paper", "dW, averaged", got[0], by_pencil, 4, 0);
    check_numbers(run, "on paper", "dW, each divided by the whole batch", got[1], by_pencil, 4, 0);
}

static Snapshot *snapshot_of(Run *run, const Linear *l) {
    Snapshot *s = snapshot_new(run);
    Arena a = arena(MEM_WORKSPACE);
    Tensor w = tensor_new(&a, l->in, l->out), b = tensor_new(&a, 1, l->out);
    tensor_upload(w, l->w);
    tensor_upload(b, l->b);
    snapshot_put(s, "W", l->in, l->out, w, 0, 0);
    snapshot_put(s, "b", 1, l->out, b, 0, 0);
    arena_free(&a);
    return s;
}

typedef bool Judge(Run *run, const char *what, Snapshot *got, Snapshot *want, double limit);
static void compare(Run *run, Judge *judge, const char *what, const Linear *got, const Linear *want, double limit) {
    Snapshot *a = snapshot_of(run, got), *b = snapshot_of(run, want);
    judge(run, what, a, b, limit);
    snapshot_free(a);
    snapshot_free(b);
}

// Number i of list `list`: inputs, targets, weights and biases each have their own.
static uint64_t key(const Run *run, uint64_t list, size_t i) { return random_key(random_key(run->seed, list), i); }

// The loss of all samples under each rule.
static void table(Run *run, const Trained *whole, const Trained *averaged, const Trained *divided,
                  const Trained *summed, const Trained *quick) {
    const Trained *of[] = { whole, averaged, divided, summed, quick };
    char loss[5][3][16];
    Result rows[] = {
        { "full batch", "the mean over all elements", {0} },
        { "shards averaged", "sum of gk / shards, gk: mean over own elements", {0} },
        { "shards added", "sum of gk, each divided by the batch's elements", {0} },
        { "trap: means added", "sum of gk, gk: mean over own elements", {0} },
        { "full batch, rate x 4", "as long a step as the trap's", {0} }, {0} };
    for (size_t i = 0; i < 5; i++)
        for (size_t k = 0; k < 3; k++) {
            snprintf(loss[i][k], sizeof loss[i][k], "=%.4f", of[i]->loss[k * (PRINTED - 1) / 2]);
            rows[i].cell[k] = loss[i][k];
        }
    results(run, (const char *const[]){ "epoch 0", "epoch 40", "epoch 90", NULL }, rows);
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "01_by_hand plays its four devices itself: start it with one rank");
    on_paper(run);

    // Inputs and targets are noise, as torch.randn's: a linear layer can fit only a little of it, so the loss
    // ends near 1.
    real x[SAMPLES * IN], target[SAMPLES * OUT];
    Linear start = { .in = IN, .out = OUT };
    for (size_t i = 0; i < SAMPLES * IN; i++) x[i] = (real)random_normal(key(run, 0, i));
    for (size_t i = 0; i < SAMPLES * OUT; i++) target[i] = (real)random_normal(key(run, 1, i));
    double width = 2 / sqrt(IN);                       // nn.Linear starts uniform in +-1/sqrt(in)
    for (size_t i = 0; i < IN * OUT; i++) start.w[i] = (real)(width * (random_unit(key(run, 2, i)) - 0.5));
    for (size_t j = 0; j < OUT; j++) start.b[j] = (real)(width * (random_unit(key(run, 3, j)) - 0.5));

    // The first gradient: four times too long as a sum of means.
    Linear full, sum, four = { .in = IN, .out = OUT };
    double shard_loss[SHARDS], mean = 0;
    double loss = loss_and_gradient(&full, &start, x, target, SAMPLES, SAMPLES * OUT);
    sum = sum_over_shards(&start, x, target, SAMPLES, SHARDS, OWN_COUNT, shard_loss);
    add_scaled(&four, &full, SHARDS);
    for (size_t k = 0; k < SHARDS; k++) mean += shard_loss[k] / SHARDS;
    char losses[16 * SHARDS] = "";
    for (size_t k = 0, at = 0; k < SHARDS; k++)
        at += (size_t)snprintf(losses + at, sizeof losses - at, " %.4f", shard_loss[k]);
    say_detail(run, "%d samples in %d shards of %d, losses%s\n", SAMPLES, SHARDS, SHARD, losses);
    say_detail(run, "mean of the shards' losses %.4f, loss of all samples %.4f\n", mean, loss);
    check_numbers(run, "first epoch", "mean of the shards' losses = loss", &mean, &loss, 1, LIMIT_ROUNDING);
    compare(run, check_close, "sum of the shards = 4 x the gradient", &sum, &four, LIMIT_ROUNDING);

    Trained whole = train(&start, x, target, FULL_BATCH, 0.01), averaged = train(&start, x, target, AVERAGE, 0.01);
    Trained divided = train(&start, x, target, WHOLE, 0.01);
    Trained summed = train(&start, x, target, SUM, 0.01), quick = train(&start, x, target, FULL_BATCH, SHARDS * 0.01);
    say_detail(run, "\nepoch   full batch   shards averaged   sum / whole batch   shards summed   (last alone)\n");
    for (size_t i = 0; i < PRINTED; i++)
        say_detail(run, "%5zu   %.6f     %.6f          %.6f            %.6f        (%.6f)\n", 10 * i, whole.loss[i],
                   averaged.loss[i], divided.loss[i], summed.loss[i], averaged.last_shard[i]);
    say(run, "\n%d samples in %d shards of %d, learning rate 0.01. The loss (gk: gradient of shard k):\n", SAMPLES,
        SHARDS, SHARD);
    table(run, &whole, &averaged, &divided, &summed, &quick);
    say(run, "\nAverage them if each is divided by the elements of its own shard, and add them if each is divided by\n"
             "those of the whole batch. The sum of shard means trains with %d times the learning rate.\n", SHARDS);

    check_numbers(run, "averaged = full batch", "loss", averaged.loss, whole.loss, PRINTED, LIMIT_ROUNDING);
    compare(run, check_close, "averaged = full batch", &averaged.layer, &whole.layer, LIMIT_ROUNDING);
    check_numbers(run, "sum / whole batch = full batch", "loss", divided.loss, whole.loss, PRINTED, LIMIT_ROUNDING);
    compare(run, check_close, "sum / whole batch = full batch", &divided.layer, &whole.layer, LIMIT_ROUNDING);
    compare(run, check_differs, "trap: summed, not averaged", &summed.layer, &whole.layer, 0.05);
    compare(run, check_close, "summed, lr 0.01 = full, lr 0.04", &summed.layer, &quick.layer, LIMIT_ROUNDING);
    double apart = 0;
    for (size_t i = 0; i < PRINTED; i++) apart = fmax(apart, fabs(averaged.last_shard[i] - whole.loss[i]));
    check_true(run, "trap: the last shard's loss", "is not the loss", apart > 1e-3);
}

EXPERIMENT(by_hand, NULL);
