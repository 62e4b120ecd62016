// ranks: 1
// level: core
// question: Each of four devices has the gradient of a quarter of the batch. Do they add or average the four?
// vary: IN 7..12, OUT 3..6, SAMPLES 60|120, SHARDS 3|4|5
//
// Holds:  every shard has all weights w [in, out] and b [out], a gradient of the same size, and its
//         part of the samples. One device plays all shards.
// Sends:  nothing. On ranks the sum over shards is one all-reduce of in * out + out elements per
//         step.
// Saves:  each shard computes only the products of samples / shards samples.
// Costs:  every device has all weights and a whole gradient.
// An element is one output of one sample. A loss is the sum of the squared errors, divided by a
// number of elements. The gradient of the loss is divided by the same number. PyTorch's MSELoss
// divides by the elements of the shard. Then the gradient of the whole batch is the average of the
// shards' gradients (rule AVERAGE). If every shard divides by the elements of the whole batch, the
// gradient of the whole batch is the sum of the shards' gradients (rule WHOLE). 02_all_reduce and
// later chapters use WHOLE. Both rules must give the losses and weights of the whole batch within
// rounding. The bits differ, because the shards' sums are added in another order. Left out: ranks,
// messages, and shards of different sizes, for which an average is wrong (chapter 02).
#include "01_data_parallel/by_hand.h"

// Returns the sum of the squared errors of the samples, divided by `count`, and sets g to the
// gradient of that loss. With count = n * out, the elements of these samples, the loss is their
// mean squared error.
double linear_loss(Linear *g, const Linear *l, Samples samples, size_t count) {
    double loss = 0;
    *g = (Linear){ .in = l->in, .out = l->out };
    for (size_t s = 0; s < samples.n; s++) {
        const real *x = samples.x + s * l->in;
        for (size_t j = 0; j < l->out; j++) {
            real y = l->b[j];
            for (size_t i = 0; i < l->in; i++) y += x[i] * l->w[i * l->out + j];
            real difference = y - samples.target[s * l->out + j];
            real dy = 2 * difference / (real)count;
            loss += (double)(difference * difference);
            for (size_t i = 0; i < l->in; i++) g->w[i * l->out + j] += x[i] * dy; // dW = x^T dy
            g->b[j] += dy;
        }
    }
    return loss / (double)count;
}

// Adds scale * from to `to`, in weights and biases.
void linear_add_scaled(Linear *to, const Linear *from, real scale) {
    for (size_t i = 0; i < to->in * to->out; i++) to->w[i] += scale * from->w[i];
    for (size_t j = 0; j < to->out; j++) to->b[j] += scale * from->b[j];
}

// Returns the sum of the shards' gradients, and sets shard_loss[k] to the loss of shard k. `what`
// says by which number of elements a shard divides. Every shard computes its gradient with the same
// weights. The gradients are added in the order of the shards. On several devices an all-reduce
// would leave this sum on every device.
Linear sum_over_shards(const Linear *l, Samples all, size_t shards, Count what,
                       double *shard_loss) {
    Linear sum = { .in = l->in, .out = l->out };
    for (size_t k = 0; k < shards; k++) {
        Range r = shard_range(all.n, shards, k);
        Samples shard = { range_size(r), all.x + r.lo * l->in, all.target + r.lo * l->out };
        size_t count = (what == WHOLE_COUNT ? all.n : shard.n) * l->out;
        Linear g;
        shard_loss[k] = linear_loss(&g, l, shard, count);
        linear_add_scaled(&sum, &g, 1);
    }
    return sum;
}

// Makes one step of SGD on all samples under one of the four rules. Returns the loss of all samples
// before the step.
double train_epoch(Linear *l, Samples all, size_t shards, Rule rule, double lr,
                   double *shard_loss) {
    double loss = 0;
    Linear g;
    if (rule == FULL_BATCH) loss = linear_loss(&g, l, all, all.n * l->out);
    else {
        g = sum_over_shards(l, all, shards, rule == WHOLE ? WHOLE_COUNT : OWN_COUNT, shard_loss);
        // The loss of ALL samples. Losses that are divided by a shard's own elements are averaged.
        for (size_t k = 0; k < shards; k++)
            loss += shard_loss[k] / (double)(rule == WHOLE ? 1 : shards);
    }
    Linear mean = { .in = g.in, .out = g.out };
    real scale = 1;
    // EXERCISE 01.01a (2 points): average the shards. Under FULL_BATCH g is the gradient of the
    // whole batch. Under AVERAGE and SUM g is the sum of `shards` gradients, each divided by the
    // elements of its own shard. Under WHOLE g is the sum of `shards` gradients, each divided by
    // the elements of the whole batch. The layer moves along scale * g. Change `scale` under the
    // one rule that needs it to move as under FULL_BATCH. SUM stays unchanged, to show the error.
    if (rule == AVERAGE) scale = (real)1 / (real)shards;
    // END
    // Scales the gradient, not the learning rate. With SGD both give the same step. With AdamW a
    // scaled learning rate would give another step, because the size of the gradient hardly changes
    // AdamW's step.
    linear_add_scaled(&mean, &g, scale);
    linear_add_scaled(l, &mean, -(real)lr);
    return loss;
}
