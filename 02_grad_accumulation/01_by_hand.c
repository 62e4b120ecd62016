// ranks: 1
// level: core
// question: A batch does not fit on the device: how do you take it in pieces, and still step as if it had come at once?
// vary: IN 7..12, OUT 3..6, ROOM 30|40|45
//
// The linear layer of chapter 01, y = xW + b, 10 inputs to 5 outputs, on plain C arrays. The device has room for 30 of
// the 100 samples, so the batch comes in micro-batches of 30, 30, 30 and 10. Their gradients are added; then there is
// ONE step. Every contribution is divided by the size of the whole batch, never by that of its own piece: the last one
// is smaller.
// Left out: what is saved (activations; the next lesson measures them), and other devices (the lesson after).
#include "judge/frame/lesson.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>

enum { IN = 10, OUT = 5, SAMPLES = 100, ROOM = 30, PIECES = (SAMPLES + ROOM - 1) / ROOM, EPOCHS = 100,
       PRINTED = EPOCHS / 10 };

// A layer, or the gradient of one: w is [in, out], row by row.
typedef struct { size_t in, out; real w[IN * OUT], b[OUT]; } Linear;

// Micro-batch k of a batch taken `room` samples at a time.
static Range piece(size_t samples, size_t room, size_t k) {
    return (Range){ k * room, (k + 1) * room < samples ? (k + 1) * room : samples };
}

// ---------------------------------------------------------------- one micro-batch

// g <- the gradient of (sum of the squared errors of these samples) / elements; returns that loss. `elements` is
// what this chapter is about: those of the whole batch, or those of this micro-batch?
static double loss_and_gradient(Linear *g, const Linear *l, const real *x, const real *target, Range samples,
                                size_t elements) {
    double loss = 0;
    *g = (Linear){ .in = l->in, .out = l->out };
    for (size_t s = samples.lo; s < samples.hi; s++)
        for (size_t j = 0; j < l->out; j++) {
            real y = l->b[j];
            for (size_t i = 0; i < l->in; i++) y += x[s * l->in + i] * l->w[i * l->out + j];
            real difference = y - target[s * l->out + j], dy = 2 * difference / (real)elements;
            loss += (double)(difference * difference);
            for (size_t i = 0; i < l->in; i++) g->w[i * l->out + j] += x[s * l->in + i] * dy;       // dW = x^T dy
            g->b[j] += dy;
        }
    return loss / (double)elements;
}

static void add_scaled(Linear *to, const Linear *from, real scale) {
    for (size_t i = 0; i < to->in * to->out; i++) to->w[i] += scale * from->w[i];
    for (size_t j = 0; j < to->out; j++) to->b[j] += scale * from->b[j];
}

// ---------------------------------------------------------------- the batch, four ways

typedef double Gradient(Linear *sum, const Linear *l, const real *x, const real *target, size_t samples, size_t room);

static double at_once(Linear *sum, const Linear *l, const real *x, const real *target, size_t samples, size_t room) {
    (void)room;
    return loss_and_gradient(sum, l, x, target, (Range){ 0, samples }, samples * l->out);
}

// The technique: one buffer that is zeroed once a step, added to after every micro-batch, and used once.
static double accumulate(Linear *sum, const Linear *l, const real *x, const real *target, size_t samples, size_t room) {
    double loss = 0;
    *sum = (Linear){ .in = l->in, .out = l->out };
    // EXERCISE 02.01a (2 points): add the pieces. Leave the whole batch's gradient in `sum`, which is zero now, and its
    // mean squared error in `loss`. Only piece(samples, room, k) fits at a time, for k from 0 to
    // ceil_div(samples, room) - 1. loss_and_gradient() finishes the gradient of one piece in a buffer of yours;
    // add_scaled() adds it to `sum`. The last piece may be smaller than the others: what is its error divided by?
    for (size_t k = 0; k < ceil_div(samples, room); k++) {
        Linear g;
        loss += loss_and_gradient(&g, l, x, target, piece(samples, room, k), samples * l->out);
        add_scaled(sum, &g, 1);
    }
    // END
    return loss;
}

// The trap: each micro-batch takes its own mean, and the means are averaged. Right only when all are equally large.
static double mean_of_means(Linear *sum, const Linear *l, const real *x, const real *target, size_t samples,
                            size_t room) {
    size_t m = ceil_div(samples, room);
    double loss = 0;
    *sum = (Linear){ .in = l->in, .out = l->out };
    for (size_t k = 0; k < m; k++) {
        Linear g;
        Range r = piece(samples, room, k);
        loss += loss_and_gradient(&g, l, x, target, r, range_size(r) * l->out) / (double)m;
        add_scaled(sum, &g, 1 / (real)m);
    }
    return loss;
}

// Data parallelism (chapter 01) with the same pieces: all at the same time, each on a device with a gradient of its
// own; then the gradients are added in the order of the devices. The same sums, over devices instead of over time.
static double on_devices(Linear *sum, const Linear *l, const real *x, const real *target, size_t samples, size_t room) {
    Linear g[PIECES];
    double loss = 0;
    for (size_t k = 0; k < ceil_div(samples, room); k++)
        loss += loss_and_gradient(&g[k], l, x, target, piece(samples, room, k), samples * l->out);
    *sum = (Linear){ .in = l->in, .out = l->out };
    for (size_t k = 0; k < ceil_div(samples, room); k++) add_scaled(sum, &g[k], 1);
    return loss;
}

// ---------------------------------------------------------------- three samples, two micro-batches, on paper

// dW of the 2x2 example, row by row.
static void say_gradient(Run *run, const char *what, const Linear *g, const char *remark) {
    double w[] = { (double)g->w[0], (double)g->w[1], (double)g->w[2], (double)g->w[3] };
    say(run, "  %-28s dW = [%4g %4g; %4g %4g]%s\n", what, w[0], w[1], w[2], w[3], remark);
}

static void on_paper(Run *run) {
    static const real x[] = { 1, 2, 3, 0, 0, 1 }, target[] = { -2, 2, 3, 6, -3, 1 };
    static const double by_pencil[] = { 1, -6, 3, 0 };
    const Linear identity = { .in = 2, .out = 2, .w = { 1, 0, 0, 1 } };
    Linear g;
    double got[4];
    say(run, "On paper: 3 samples in micro-batches of 2 and 1, W = identity, b = 0, so y = x; 6 elements in all\n");
    for (size_t k = 0; k < 2; k++) {
        loss_and_gradient(&g, &identity, x, target, piece(3, 2, k), 6);
        say_gradient(run, k == 0 ? "micro-batch 0, divided by 6" : "micro-batch 1, divided by 6", &g, "");
    }
    accumulate(&g, &identity, x, target, 3, 2);
    say_gradient(run, "their sum", &g, "   the gradient of the batch");
    for (size_t i = 0; i < 4; i++) got[i] = (double)g.w[i];
    mean_of_means(&g, &identity, x, target, 3, 2);
    say_gradient(run, "the mean of their own means", &g, "   something else");
    check_numbers(run, "on paper", "dW, accumulated", got, by_pencil, 4, 0);
}

// ---------------------------------------------------------------- training, and the comparison

typedef struct { Linear layer, first_gradient; double loss[PRINTED]; } Trained;

static Trained train(const Linear *start, const real *x, const real *target, Gradient *gradient) {
    Trained t = { .layer = *start };
    for (size_t epoch = 0; epoch < EPOCHS; epoch++) {
        Linear g;
        double loss = gradient(&g, &t.layer, x, target, SAMPLES, ROOM);
        if (epoch == 0) t.first_gradient = g;
        if (epoch % 10 == 0) t.loss[epoch / 10] = loss;
        add_scaled(&t.layer, &g, (real)-0.01);             // one step a batch, however many pieces it came in
    }
    return t;
}

static Snapshot *snapshot_of(Run *run, const Trained *t) {
    Snapshot *s = snapshot_new(run);
    Arena a = arena(MEM_WORKSPACE);
    Tensor w = tensor_new(&a, IN, OUT), b = tensor_new(&a, 1, OUT), dw = tensor_new(&a, IN, OUT);
    tensor_upload(w, t->layer.w);
    tensor_upload(b, t->layer.b);
    tensor_upload(dw, t->first_gradient.w);
    snapshot_put(s, "W", IN, OUT, w, 0, 0);
    snapshot_put(s, "b", 1, OUT, b, 0, 0);
    snapshot_put(s, "first dW", IN, OUT, dw, 0, 0);
    arena_free(&a);
    return s;
}

// The page's table: losses, and how far the first gradient is from that of the batch at once.
static void show_training(Run *run, const Trained *whole, const Trained *accumulated, const Trained *means) {
    static const char *const columns[] = { "at once", "accumulated", "mean of means", NULL };
    const Trained *way[] = { whole, accumulated, means };
    char loss[2][3][32], error[3][32], rooms[2][32];
    snprintf(rooms[0], sizeof rooms[0], "=%d", SAMPLES);
    snprintf(rooms[1], sizeof rooms[1], "=%d", ROOM);
    Result rows[] = { { .what = "samples on the device", .cell = { rooms[0], rooms[1], rooms[1] } },
                      { .what = "loss, step 0", .formula = "squares / elements of the batch" },
                      { .what = "loss, step 90", .formula = "all pieces: the same divisor" },
                      { .what = "first dW, largest error", .formula = "of its largest element" }, {0} };
    for (size_t k = 0; k < 3; k++) {
        double most = 0, off = 0;
        for (size_t i = 0; i < IN * OUT; i++) {
            double want = (double)whole->first_gradient.w[i];
            most = fmax(most, fabs(want));
            off = fmax(off, fabs((double)way[k]->first_gradient.w[i] - want));
        }
        for (size_t i = 0; i < 2; i++) {
            snprintf(loss[i][k], sizeof loss[i][k], "=%.6f", way[k]->loss[9 * i]);
            rows[i + 1].cell[k] = loss[i][k];
        }
        snprintf(error[k], sizeof error[k], "=%.1f %%", 100 * off / most);
        rows[3].cell[k] = error[k];
    }
    results(run, columns, rows);
}

// Number i of list `list`: inputs, targets, weights and biases each have their own.
static uint64_t key(const Run *run, uint64_t list, size_t i) { return random_key(random_key(run->seed, list), i); }

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "01_by_hand is about one device: start it with one rank");
    on_paper(run);

    real x[SAMPLES * IN], target[SAMPLES * OUT];           // noise, as in chapter 01
    Linear start = { .in = IN, .out = OUT };
    double width = 2 / sqrt(IN);
    for (size_t i = 0; i < SAMPLES * IN; i++) x[i] = (real)random_normal(key(run, 0, i));
    for (size_t i = 0; i < SAMPLES * OUT; i++) target[i] = (real)random_normal(key(run, 1, i));
    for (size_t i = 0; i < IN * OUT; i++) start.w[i] = (real)(width * (random_unit(key(run, 2, i)) - 0.5));
    for (size_t j = 0; j < OUT; j++) start.b[j] = (real)(width * (random_unit(key(run, 3, j)) - 0.5));

    Trained whole = train(&start, x, target, at_once), accumulated = train(&start, x, target, accumulate);
    Trained means = train(&start, x, target, mean_of_means), devices = train(&start, x, target, on_devices);
    say(run, "\n%d samples, room for %d: %d micro-batches, the last of %d; %d steps of SGD\n", SAMPLES, ROOM, PIECES,
        SAMPLES - (PIECES - 1) * ROOM, EPOCHS);
    show_training(run, &whole, &accumulated, &means);

    Snapshot *want = snapshot_of(run, &whole), *got = snapshot_of(run, &accumulated);
    Snapshot *trap = snapshot_of(run, &means), *parallel = snapshot_of(run, &devices);
    check_close(run, "accumulated = the batch at once", got, want, LIMIT_ROUNDING);
    check_numbers(run, "accumulated = the batch at once", "loss", accumulated.loss, whole.loss, PRINTED,
                  LIMIT_ROUNDING);
    check_differs(run, "trap: the mean of means", trap, want, 0.05);
    check_equal(run, "accumulated = data parallel", got, parallel);
    check_numbers(run, "accumulated = data parallel", "loss", accumulated.loss, devices.loss, PRINTED, 0);
    snapshot_free(want);
    snapshot_free(got);
    snapshot_free(trap);
    snapshot_free(parallel);
}

EXPERIMENT(by_hand, NULL);
