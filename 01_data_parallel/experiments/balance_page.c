// balance_page.c: the page of 07_balance: the times of all steps as a chart, and the table.
#include "01_data_parallel/experiments/experiments.h"
#include "judge/draw/plot.h"
#include <stdlib.h>

// Returns a cell with all shares, such as "=8 8 8 2".
static const char *shares_cell(Run *run, const Range *share, size_t n) {
    const char *text = page_text(run, "=%zu", range_size(share[0]));
    for (size_t r = 1; r < n; r++) text = page_text(run, "%s %zu", text, range_size(share[r]));
    return text;
}

void balance_show_times(Run *run, const Devices *d, const BalanceRecord *seen, int picture) {
    const size_t steps = d->steps;
    const double unit = work_model(d->model, 1).time;
    // y[POLICIES + 1][steps]
    double *x = host_alloc((POLICIES + 2) * steps * sizeof *x), *y = x + steps;
    for (size_t step = 0; step < steps; step++) {
        x[step] = (double)step;
        for (size_t p = 0; p < POLICIES; p++) y[p * steps + step] = seen[p].time[step] / unit;
        y[POLICIES * steps + step] = (balance_ideal(d, step) + balance_rings(EQUAL, d)) / unit;
    }
    PlotLine lines[] = { { "equal", y },
                         { "static", y + steps },
                         { "dynamic", y + 2 * steps },
                         { "ideal", y + 3 * steps } };
    Plot plot = { .title = "time of a step; from step 5 on device 0 is four times as slow",
                  .x_label = "step",
                  .y_label = "1: one sequence on a fast device",
                  .x = x,
                  .n = steps,
                  .lines = lines,
                  .n_lines = POLICIES + 1 };
    plot_show(run, &plot, picture | PICTURE_DETAIL);
    free(x);
}

static const char *milliseconds(Run *run, double ps) {
    return page_text(run, "=%.2f ms", ps * 1e-9);
}

void balance_table(Run *run, const Devices *d, const BalanceRecord *seen) {
    const size_t step[] = { 0, d->change - 1, d->change, d->steps - 1 };
    const char *time[4][POLICIES + 1], *shares[POLICIES], *what[4];
    const CutSizes z = cut_sizes(d->model, 1, 0);
    for (size_t i = 0; i < 4; i++) {
        what[i] = page_text(run, "step %zu%s", step[i], i == 2 ? ": device 0 slows down" : "");
        for (size_t p = 0; p < POLICIES; p++) time[i][p] = milliseconds(run, seen[p].time[step[i]]);
        time[i][POLICIES] = milliseconds(run, balance_ideal(d, step[i]) + balance_rings(EQUAL, d));
    }
    for (size_t p = 0; p < POLICIES; p++)
        shares[p] = shares_cell(run, seen[p].share + (d->steps - 1) * d->n, d->n);
    say(run,
        "\nequal: the same share for all. static: in proportion to the speeds before step 0. "
        "dynamic: to the\nspeeds measured in earlier steps. ideal: shares in fractions of a "
        "sequence. A step: the slowest rank\ncomputes, then all-reduce. A rank keeps %s of "
        "activations per sequence.\n--slow %s: the devices' times per sequence. Device 0 becomes "
        "%zu times slower in step %zu.\n",
        value_text(run, (double)activations_bytes(&z, 1), "bytes"), option_text(run, "slow"),
        d->changed, d->change);
    results(run, (const char *const[]){ "equal", "static", "dynamic", "ideal", NULL },
            (const Result[]){ { what[0], NULL, { time[0][0], time[0][1], time[0][2], time[0][3] } },
                              { what[1], NULL, { time[1][0], time[1][1], time[1][2], time[1][3] } },
                              { what[2], NULL, { time[2][0], time[2][1], time[2][2], time[2][3] } },
                              { what[3], NULL, { time[3][0], time[3][1], time[3][2], time[3][3] } },
                              { "all steps",
                                NULL,
                                { "time.equal", "time.static", "time.dynamic",
                                  value_cell(run, balance_ideal_steps(d), "ps") } },
                              { "sequences per rank, last step",
                                NULL,
                                { shares[0], shares[1], shares[2], "=-" } },
                              { "activations, last step",
                                NULL,
                                { "peak.equal", "peak.static", "peak.dynamic", "=-" } },
                              { 0 } });
}
