// 01_by_hand.c (experiment): the chain on 2 and on 4 devices equals the chain on one device in
// every bit. Played step times and idle shares equal their formulas.
#include "04_pipeline_naive/by_hand.h"
#include "judge/frame/lesson.h"
#include <stdio.h>
#include <string.h>

static const ChainLayer *layer_of(const Chain *c, size_t n) { // n counts in the whole chain
    const Device *d = c->device;
    for (; n >= d->n; d++) n -= d->n;
    return &d->layer[n];
}

// A training records w, b and their gradients of every layer, after every step.
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
        chain_update(c); // sets the gradients to zero
        for (size_t n = 0; n < LAYERS; n++) {
            at[4 * n] = layer_of(c, n)->w;
            at[4 * n + 1] = layer_of(c, n)->b;
        }
    }
}

// Draws the step of device i into row. Two columns are a unit of time. An op begins with its name,
// such as "F0", and continues as "--". An idle unit is ". ".
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

// Draws a step of `split`, and compares the training of `split` with the training of one device.
static void compare(Run *run, const char *what, Chain *split) {
    Chain whole = chain_new(run->seed, 1, split->pieces, chain_there_and_back);
    double loss[STEPS], want_loss[STEPS], number[NUMBERS], want_number[NUMBERS];
    train(split, loss, number);
    train(&whole, want_loss, want_number);
    for (size_t i = 0; i < split->p; i++) {
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

// Prints the page's table and its answer.
static void show_results(Run *run, const Chain *two, const Chain *naive, const Chain *piped) {
    const Chain *way[] = { two, naive, piped };
    char end[3][16], share[3][16];
    for (size_t k = 0; k < 3; k++) {
        sprintf(end[k], k ? "=%zu" : "=%zu x %d", way[k]->end, LAYERS / 2 * PIECES);
        sprintf(share[k], "=%.1f %%", 100 * idle(way[k]));
    }
    results(run, (const char *const[]){ "naive", "naive", "micro-batched", NULL },
            (const Result[]){ { "devices p", "-", { "=2", "=4", "=4" } },
                              { "micro-batches m", "-", { "=1", "=4", "=4" } },
                              { "step, units of time",
                                "naive m p (f+b), micro-batched (m+p-1)(f+b)",
                                { end[0], end[1], end[2] } },
                              { "idle, of the step",
                                "naive 1-1/p, micro-batched (p-1)/(m+p-1)",
                                { share[0], share[1], share[2] } },
                              { 0 } });
    say_answer(run,
               "In the naive order one device works at a time, because each waits for its "
               "neighbour: %zu devices are idle for %.0f %% of the time. With all forwards "
               "first, a step takes %zu units instead of %zu.",
               naive->p, 100 * idle(naive), piped->end, naive->end);
    say_cost(run,
             "every device keeps the outputs of %zu micro-batches instead of 1, and is still "
             "idle for %.0f %% of the time.",
             piped->pieces, 100 * idle(piped));
    say_use_when(run, "the model does not fit on one device, and a batch has many more "
                      "micro-batches than devices.");
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1, "01_by_hand imagines its devices: start it with one rank");
    Chain piped = chain_new(run->seed, LAYERS, PIECES, chain_all_there_all_back);
    Chain two = chain_new(run->seed, 2, 1, chain_there_and_back),
          naive = chain_new(run->seed, LAYERS, PIECES, chain_there_and_back);
    say(run, "A row is a device, two columns are a unit of time. F0: forward of micro-batch 0, "
             "f = 1 unit.");
    say(run, "B0--: its backward, b = 2 units. A dot: idle.");
    say(run,
        "\nNaive, 2 devices with %d layers each, the batch in one piece. Here a unit is %d of the "
        "units below:",
        LAYERS / 2, LAYERS / 2 * PIECES);
    compare(run, "naive, 2 devices = unsplit", &two);
    say(run, "\nNaive, 4 devices with a layer each, %d micro-batches one after the other:", PIECES);
    compare(run, "naive, 4 devices = unsplit", &naive);
    say(run, "\nMicro-batched, 4 devices: all forwards, then all backwards:");
    compare(run, "micro-batched = unsplit", &piped);
    double p = LAYERS, m = PIECES, both = T_FORWARD + T_BACKWARD;
    double units[] = { two.end, naive.end, piped.end },
           want_units[] = { 2 * both, m * p * both, (m + p - 1) * both };
    double share[] = { idle(&two), idle(&naive), idle(&piped) };
    double want_share[] = { 1 - 1 / 2.0, 1 - 1 / p, (p - 1) / (m + p - 1) };
    check_numbers(run, "played = formula", "step time: 2(f+b), mp(f+b), (m+p-1)(f+b)", units,
                  want_units, 3, 0);
    check_numbers(run, "played = formula", "idle share: 1-1/2, 1-1/p, (p-1)/(m+p-1)", share,
                  want_share, 3, 1e-15);
    show_results(run, &two, &naive, &piped);
}

static const Option options[] = {
    REALS_ONLY("this lesson computes times and has no tensors"),
    { 0 },
};
EXPERIMENT(by_hand, options);
