// ranks: 1
// level: core
// question: A batch does not fit on the device. How can the device compute it in pieces and still make the same training step?
// vary: IN 7..12, OUT 3..6, ROOM 30|40|45
//
// Holds:  one device has w [in, out] and b [out], the sum of the gradients, the gradient of one
//         piece, and `room` samples at a time. Each gradient is as large as w and b.
// Sends:  nothing. On several devices the sum would be one all-reduce (pieces_on_devices).
// Saves:  memory for samples: at most `room` of n samples are on the device at a time.
// Costs:  one addition of the gradient per piece. The whole batch makes ONE step.
// The layer is the linear layer of chapter 01, y = xW + b. A piece of the batch is also called a
// micro-batch. pieces_accumulated divides every squared error by the number of elements of the
// whole batch. So the sum of the pieces' gradients is right even if the last piece is smaller.
// Left out: activations (02_accumulate.c) and several devices (03_no_sync.c).
#include "02_grad_accumulation/by_hand.h"

// Returns the samples of micro-batch k. Each micro-batch has `room` samples, but the last may have
// fewer.
Range pieces_range(size_t samples, size_t room, size_t k) {
    return (Range){ k * room, (k + 1) * room < samples ? (k + 1) * room : samples };
}

// ---------------------------------------------------------------- one micro-batch

// Sets g to the gradient of the loss, and returns the loss. The loss is the sum of the squared
// errors of `samples`, divided by `elements`. The caller chooses `elements`. The right value is the
// number of elements of the whole batch. The trap takes the number of elements of `samples` alone.
double pieces_gradient(Linear *g, const Linear *l, Samples all, Range samples, size_t elements) {
    double loss = 0;
    *g = (Linear){ .in = l->in, .out = l->out };
    for (size_t s = samples.lo; s < samples.hi; s++)
        for (size_t j = 0; j < l->out; j++) {
            real y = l->b[j];
            for (size_t i = 0; i < l->in; i++) y += all.x[s * l->in + i] * l->w[i * l->out + j];
            real difference = y - all.target[s * l->out + j];
            real dy = 2 * difference / (real)elements;
            loss += (double)(difference * difference);
            // dW = x^T dy
            for (size_t i = 0; i < l->in; i++) g->w[i * l->out + j] += all.x[s * l->in + i] * dy;
            g->b[j] += dy;
        }
    return loss / (double)elements;
}

void pieces_add(Linear *to, const Linear *from, real scale) {
    for (size_t i = 0; i < to->in * to->out; i++) to->w[i] += scale * from->w[i];
    for (size_t j = 0; j < to->out; j++) to->b[j] += scale * from->b[j];
}

// ---------------------------------------------------------------- the batch, four ways

double pieces_at_once(Linear *sum, const Linear *l, Samples all, size_t room) {
    (void)room;
    return pieces_gradient(sum, l, all, (Range){ 0, all.n }, all.n * l->out);
}

// Accumulates gradients, which is the technique. `sum` is zeroed once per step. Every micro-batch
// adds its gradient to `sum`, and the step uses `sum` once.
double pieces_accumulated(Linear *sum, const Linear *l, Samples all, size_t room) {
    double loss = 0;
    *sum = (Linear){ .in = l->in, .out = l->out };
    // EXERCISE 02.01a (2 points): add the pieces. Leave the whole batch's gradient in `sum`, which
    // is zero now, and its mean squared error in `loss`. The device has room for one piece at a
    // time, pieces_range(all.n, room, k), with k from 0 to ceil_div(all.n, room) - 1.
    // pieces_gradient() writes the gradient of one piece into a buffer that you declare.
    // pieces_add() adds this buffer to `sum`. The last piece may be smaller than the other pieces.
    // By which number are its squared errors divided?
    for (size_t k = 0; k < ceil_div(all.n, room); k++) {
        Linear g;
        loss += pieces_gradient(&g, l, all, pieces_range(all.n, room, k), all.n * l->out);
        pieces_add(sum, &g, 1);
    }
    // END
    return loss;
}

// Averages the means of the micro-batches, which is the trap. Each micro-batch takes the mean over
// its own samples. In general the result is right only if all micro-batches are equally large.
double pieces_mean_of_means(Linear *sum, const Linear *l, Samples all, size_t room) {
    size_t m = ceil_div(all.n, room);
    double loss = 0;
    *sum = (Linear){ .in = l->in, .out = l->out };
    for (size_t k = 0; k < m; k++) {
        Linear g;
        Range r = pieces_range(all.n, room, k);
        loss += pieces_gradient(&g, l, all, r, range_size(r) * l->out) / (double)m;
        pieces_add(sum, &g, 1 / (real)m);
    }
    return loss;
}

// Imitates data parallelism (chapter 01) with the same pieces. The devices would compute their
// gradients at the same time, one piece per device. Then the gradients are added in the order of
// the devices. The terms of the sum and their order are those of pieces_accumulated.
double pieces_on_devices(Linear *sum, const Linear *l, Samples all, size_t room) {
    Linear g[MOST_PIECES];
    double loss = 0;
    for (size_t k = 0; k < ceil_div(all.n, room); k++)
        loss += pieces_gradient(&g[k], l, all, pieces_range(all.n, room, k), all.n * l->out);
    *sum = (Linear){ .in = l->in, .out = l->out };
    for (size_t k = 0; k < ceil_div(all.n, room); k++) pieces_add(sum, &g[k], 1);
    return loss;
}
