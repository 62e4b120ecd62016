// 01_by_hand.c (experiment): checks an example of three samples, then runs four trainings on 100
// samples. The trainings compute their gradients from all samples at once, from pieces, by the trap
// (the mean of means), and on several imitated devices.
#include "01_data_parallel/experiments/linear.h"
#include "02_grad_accumulation/by_hand.h"
#include <math.h>

enum {
    IN = 10,
    OUT = 5,
    SAMPLES = 100,
    ROOM = 30,
    PIECES = (SAMPLES + ROOM - 1) / ROOM,
    EPOCHS = 100,
    PRINTED = EPOCHS / 10
};

// ------------------------------------------------ three samples, two micro-batches, on paper

static void on_paper(Run *run) {
    static const real x[] = { 1, 2, 3, 0, 0, 1 }, target[] = { -2, 2, 3, 6, -3, 1 };
    static const double by_pencil[] = { 1, -6, 3, 0 };
    const Linear identity = { .in = 2, .out = 2, .w = { 1, 0, 0, 1 } };
    const Samples all = { 3, x, target };
    Linear g;
    double got[4];
    say(run, "On paper: 3 samples in micro-batches of 2 and 1; 6 elements in all. y = xW + b, W = "
             "identity, b = 0\nx: [1 2], [3 0], [0 1]; targets: [-2 2], [3 6], [-3 1]\n");
    for (size_t k = 0; k < 2; k++) {
        pieces_gradient(&g, &identity, all, pieces_range(3, 2, k), 6);
        linear_say_gradient(run,
                            k == 0 ? "micro-batch 0, divided by 6" : "micro-batch 1, divided by 6",
                            &g, "");
    }
    pieces_accumulated(&g, &identity, all, 2);
    linear_say_gradient(run, "their sum", &g, "   the gradient of the batch");
    for (size_t i = 0; i < 4; i++) got[i] = (double)g.w[i];
    pieces_mean_of_means(&g, &identity, all, 2);
    linear_say_gradient(run, "trap: the mean of their means", &g, "   another gradient");
    check_numbers(run, "on paper", "dW, accumulated", got, by_pencil, 4, 0);
}

// ---------------------------------------------------------------- training, and the comparison

enum { AT_ONCE, ACCUMULATED, MEANS, DEVICES, WAYS };
static PiecesGradient *const gradient_of[WAYS] = { pieces_at_once, pieces_accumulated,
                                                   pieces_mean_of_means, pieces_on_devices };

typedef struct {
    Linear layer, first_gradient;
    double loss[PRINTED];
} Trained;

static Trained train(const Linear *start, Samples all, PiecesGradient *gradient) {
    Trained t = { .layer = *start };
    for (size_t epoch = 0; epoch < EPOCHS; epoch++) {
        Linear g;
        double loss = gradient(&g, &t.layer, all, ROOM);
        if (epoch == 0) t.first_gradient = g;
        if (epoch % 10 == 0) t.loss[epoch / 10] = loss;
        pieces_add(&t.layer, &g, (real)-0.01); // one step per batch
    }
    return t;
}

static Snapshot *snapshot_of(Run *run, const Trained *t) {
    Snapshot *s = snapshot_new(run);
    linear_put(s, &t->layer, "W", "b");
    linear_put(s, &t->first_gradient, "first dW", NULL);
    return s;
}

// Returns the largest error of the first dW, relative to the largest element of the batch's dW.
static double gradient_error(const Trained *t, const Trained *whole) {
    double largest = 0, error = 0;
    for (size_t i = 0; i < IN * OUT; i++) {
        double want = (double)whole->first_gradient.w[i];
        largest = fmax(largest, fabs(want));
        error = fmax(error, fabs((double)t->first_gradient.w[i] - want));
    }
    return error / largest;
}

static void show_training(Run *run, const Trained way[WAYS]) {
    const char *first[3], *last[3], *error[3], *room = page_text(run, "=%d", ROOM);
    for (size_t k = 0; k < 3; k++) {
        first[k] = page_text(run, "=%.6f", way[k].loss[0]);
        last[k] = page_text(run, "=%.6f", way[k].loss[PRINTED - 1]);
        error[k] = page_text(run, "=%.1f %%", 100 * gradient_error(&way[k], &way[AT_ONCE]));
    }
    results(
        run, (const char *const[]){ "whole", "accumulated", "trap: mean of means", NULL },
        (const Result[]){
            { "samples on the device",
              "all, or the largest piece",
              { page_text(run, "=%d", SAMPLES), room, room } },
            { "loss, step 0", "squared errors / all elements", { first[0], first[1], first[2] } },
            { "loss, step 90", "trap: mean of pieces' means", { last[0], last[1], last[2] } },
            { "first dW, largest error",
              "of the batch's largest value",
              { error[0], error[1], error[2] } },
            { 0 } });
    say_answer(run,
               "Divide every piece's squared errors by the %d elements of the whole batch, and add "
               "the gradients of the pieces. The sum differs from the batch's gradient by %.0e of "
               "its largest element. The mean of the pieces' means differs by %.0f %%.",
               SAMPLES * OUT, gradient_error(&way[ACCUMULATED], &way[AT_ONCE]),
               100 * gradient_error(&way[MEANS], &way[AT_ONCE]));
    say_cost(run,
             "a second buffer of the gradient's size, which is added to the sum %d times per step. "
             "02.02 needs no second buffer, because its backward adds to the gradient in "
             "place. The device needs room for %d samples instead of %d.",
             PIECES, ROOM, SAMPLES);
    say_use_when(run, "the batch that training needs does not fit on the device.");
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "01_by_hand runs on one device: start it with one rank");
    on_paper(run);

    real x[SAMPLES * IN], target[SAMPLES * OUT];
    const Samples all = { SAMPLES, x, target };
    Linear start = { .in = IN, .out = OUT };
    linear_random(run, &start, x, target, SAMPLES);
    Trained way[WAYS];
    Snapshot *seen[WAYS];
    for (size_t k = 0; k < WAYS; k++) {
        way[k] = train(&start, all, gradient_of[k]);
        seen[k] = snapshot_of(run, &way[k]);
    }
    say(run,
        "\n%d samples of %d outputs (%d elements), room for %d samples: %d micro-batches, the "
        "last has %d;\n%d steps of SGD\n",
        SAMPLES, OUT, SAMPLES * OUT, ROOM, PIECES, SAMPLES - (PIECES - 1) * ROOM, EPOCHS);
    show_training(run, way);

    check_close(run, "accumulated = the batch at once", seen[ACCUMULATED], seen[AT_ONCE],
                LIMIT_ROUNDING);
    check_numbers(run, "accumulated = the batch at once", "loss", way[ACCUMULATED].loss,
                  way[AT_ONCE].loss, PRINTED, LIMIT_ROUNDING);
    check_differs(run, "trap: the mean of means", seen[MEANS], seen[AT_ONCE], 0.05);
    check_equal(run, "accumulated = data parallel", seen[ACCUMULATED], seen[DEVICES]);
    check_numbers(run, "accumulated = data parallel", "loss", way[ACCUMULATED].loss,
                  way[DEVICES].loss, PRINTED, 0);
    for (size_t k = 0; k < WAYS; k++) snapshot_free(seen[k]);
}

static const Option options[] = {
    REALS_ONLY("this lesson computes with plain C arrays, whose elements are reals"),
    { 0 },
};
EXPERIMENT(by_hand, options);
