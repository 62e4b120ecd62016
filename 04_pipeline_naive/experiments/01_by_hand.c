// 01_by_hand.c (experiment): checks that the chain on 2 and on 4 devices equals the chain on one
// device in every bit. Also checks that played step times and idle shares equal their formulas.
#include "04_pipeline_naive/by_hand.h"
#include "judge/frame/lesson.h"
#include <string.h>

static const ChainLayer *layer_of(const Chain *c, size_t n) {
    const Device *d = c->device;
    for (; n >= d->n; d++) n -= d->n;
    return &d->layer[n];
}

// Trains for STEPS steps. `number` gets the w, b, dw and db of each layer in each step. w and b are
// the values after the update.
enum { NUMBERS = STEPS * LAYERS * 4 };
static void train(Chain *c, double loss[STEPS], double number[NUMBERS]) {
    for (size_t step = 0; step < STEPS; step++) {
        double *at = &number[4 * LAYERS * step];
        chain_play(c);
        loss[step] = c->loss;
        for (size_t n = 0; n < LAYERS; n++) {
            at[4 * n + 2] = layer_of(c, n)->dw;
            at[4 * n + 3] = layer_of(c, n)->db;
        }
        chain_update(c); // also sets the gradients to zero
        for (size_t n = 0; n < LAYERS; n++) {
            at[4 * n] = layer_of(c, n)->w;
            at[4 * n + 1] = layer_of(c, n)->b;
        }
    }
}

// Draws the ops of device i into row. A unit of time is two columns wide. An op begins with its
// name, such as "F0", and continues as "--". An idle unit is ". ".
static void draw(char row[2 * MOST_UNITS + 1], const Chain *c, size_t i) {
    for (size_t u = 0; u < c->end; u++) strcpy(row + 2 * u, ". ");
    for (size_t n = 0; n < c->device[i].ops; n++) {
        Op op = c->device[i].op[n];
        size_t units = op.what == 'B' ? T_BACKWARD : T_FORWARD;
        char *cell = row + 2 * c->device[i].start[n];
        memset(cell, '-', 2 * units);
        cell[0] = op.what;
        cell[1] = (char)('0' + op.k);
    }
}

// Compares the training of `split` with the training of one device. Draws the last step of `split`
// if there is a title.
static void compare(Run *run, const char *what, const char *title, Chain *split) {
    Chain whole = chain_new(run->seed, 1, split->pieces, chain_there_and_back);
    double loss[STEPS], want_loss[STEPS], number[NUMBERS], want_number[NUMBERS];
    train(split, loss, number);
    train(&whole, want_loss, want_number);
    if (title) say(run, "\n%s", title);
    for (size_t i = 0; title && i < split->p; i++) {
        char row[2 * MOST_UNITS + 1] = "";
        draw(row, split, i);
        say(run, "  %zu %s", i, row);
    }
    check_numbers(run, what, "weights and gradients of every step", number, want_number, NUMBERS,
                  0);
    check_numbers(run, what, "loss of every step", loss, want_loss, STEPS, 0);
}

static double idle(const Chain *t) {
    return (double)(t->p * t->end - t->busy) / (double)(t->p * t->end);
}

// Returns the largest number of micro-batches that are between their forward and their backward on
// device d at one time.
static size_t kept(const Device *d) {
    size_t now = 0, most = 0;
    for (size_t n = 0; n < d->ops; n++) {
        if (d->op[n].what == 'B') now--;
        else if (++now > most) most = now;
    }
    return most;
}

static void show_results(Run *run, const Chain *naive, const Chain *piped) {
    const Chain *way[] = { naive, piped };
    Result rows[] = { { .what = "step", .formula = "naive m p (f+b), micro-batched (m+p-1)(f+b)" },
                      { .what = "idle, of the step",
                        .formula = "naive 1-1/p, micro-batched (p-1)/(m+p-1)" },
                      { .what = "micro-batches kept", .formula = "naive 1, micro-batched m" },
                      { 0 } };
    for (size_t k = 0; k < 2; k++) {
        rows[0].cell[k] = page_text(run, "=%zu units", way[k]->end);
        rows[1].cell[k] = page_text(run, "=%.1f %%", 100 * idle(way[k]));
        rows[2].cell[k] = page_text(run, "=%zu", kept(&way[k]->device[0]));
    }
    results(run, (const char *const[]){ "naive", "micro-batched", NULL }, rows);
    say(run, "  p = %zu devices, m = %zu micro-batches. Kept: from a forward to its backward.",
        naive->p, naive->pieces);
    say_answer(run,
               "In the naive order one device works at a time, and %zu devices are idle for "
               "%.0f %% of the step. Micro-batched, the devices work on different micro-batches at "
               "the same time: a step takes %zu units instead of %zu, and %.0f %% of it is idle.",
               naive->p, 100 * idle(naive), piped->end, naive->end, 100 * idle(piped));
    say_cost(run, "every device keeps the outputs of %zu micro-batches instead of %zu.",
             kept(&piped->device[0]), kept(&naive->device[0]));
    say_use_when(run, "the model does not fit on one device, and a batch has many more "
                      "micro-batches than devices.");
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "01_by_hand imagines its devices: start it with one rank");
    Chain piped = chain_new(run->seed, LAYERS, PIECES, chain_all_there_all_back);
    Chain two = chain_new(run->seed, 2, 1, chain_there_and_back),
          naive = chain_new(run->seed, LAYERS, PIECES, chain_there_and_back);
    say(run,
        "%d devices have one layer each. A batch of %d samples is cut into %d micro-batches. A row "
        "is a device.",
        LAYERS, SAMPLES, PIECES);
    say(run, "F0 is the forward of micro-batch 0. F0 takes f = 1 unit of time, drawn as two "
             "characters. B0-- is");
    say(run, "its backward, b = 2 units. \". \" is an idle unit. A forward needs the output of the "
             "device above,");
    say(run, "a backward the gradient from the device below.");
    // In `two` each of two devices has two layers, and the batch is one micro-batch.
    compare(run, "naive, 2 devices = unsplit", NULL, &two);
    compare(run, "naive, 4 devices = unsplit",
            "Naive: a micro-batch goes through all devices and comes back before the next one "
            "starts:",
            &naive);
    compare(run, "micro-batched = unsplit",
            "Micro-batched: every device runs all its forwards, then all its backwards:", &piped);
    double p = LAYERS, m = PIECES, both = T_FORWARD + T_BACKWARD;
    double units[] = { two.end, naive.end, piped.end },
           want_units[] = { 2 * both, m * p * both, (m + p - 1) * both };
    double share[] = { idle(&two), idle(&naive), idle(&piped) };
    double want_share[] = { 1 - 1 / 2.0, 1 - 1 / p, (p - 1) / (m + p - 1) };
    check_numbers(run, "played = formula", "step time: 2(f+b), mp(f+b), (m+p-1)(f+b)", units,
                  want_units, 3, 0);
    check_numbers(run, "played = formula", "idle share: 1-1/2, 1-1/p, (p-1)/(m+p-1)", share,
                  want_share, 3, 1e-15);
    show_results(run, &naive, &piped);
}

static const Option options[] = {
    REALS_ONLY("this lesson computes times and has no tensors"),
    { 0 },
};
EXPERIMENT(by_hand, options);
