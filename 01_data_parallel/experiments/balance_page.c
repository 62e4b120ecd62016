// balance_page.c: a chart of the times of all steps, and the table, for the page of 07_balance.
#include "01_data_parallel/experiments/experiments.h"
#include "judge/draw/plot.h"

void balance_show_times(Run *run, const Devices *d, const BalanceRecord *seen, int picture) {
    static const char *const name[] = { "equal", "static", "dynamic", "ideal" };
    const double unit = work_model(d->model, 1).time;
    double x[BALANCE_STEPS], y[POLICIES + 1][BALANCE_STEPS];
    PlotLine lines[POLICIES + 1];
    for (size_t p = 0; p <= POLICIES; p++) {
        for (size_t step = 0; step < BALANCE_STEPS; step++) {
            x[step] = (double)step;
            y[p][step] = (p < POLICIES ? seen[p].time[step] : balance_ideal(d, step)) / unit;
        }
        lines[p] = (PlotLine){ name[p], y[p] };
    }
    Plot plot = { .title = "time of a step; from step 5 on device 0 is four times as slow",
                  .x_label = "step",
                  .y_label = "1: one sequence on a fast device",
                  .x = x,
                  .n = BALANCE_STEPS,
                  .lines = lines,
                  .n_lines = POLICIES + 1 };
    plot_show(run, &plot, picture | PICTURE_DETAIL);
}

void balance_table(Run *run, const Devices *d, const BalanceRecord *seen, double ideal) {
    const size_t step[] = { 0, d->change - 1, d->change, BALANCE_STEPS - 1 };
    const char *shares[POLICIES];
    Result rows[8] = { 0 };
    const CutSizes z = cut_sizes(d->model, 1, 0);
    for (size_t i = 0; i < 4; i++) {
        rows[i].what = page_text(run, "step %zu%s", step[i], i == 2 ? ": device 0 slows down" : "");
        for (size_t p = 0; p <= POLICIES; p++) {
            const double time = p < POLICIES ? seen[p].time[step[i]] : balance_ideal(d, step[i]);
            rows[i].cell[p] = page_text(run, "=%.2f ms", time * 1e-9);
        }
    }
    for (size_t p = 0; p < POLICIES; p++) {
        const Range *last = seen[p].share + (BALANCE_STEPS - 1) * d->n;
        shares[p] = "=";
        for (size_t r = 0; r < d->n; r++)
            shares[p] = page_text(run, "%s%s%zu", shares[p], r ? " " : "", range_size(last[r]));
    }
    rows[4] =
        (Result){ "all steps",
                  NULL,
                  { "time.equal", "time.static", "time.dynamic", value_cell(run, ideal, "ps") } };
    rows[5] = (Result){ "sequences per rank, last step",
                        NULL,
                        { shares[EQUAL], shares[STATIC], shares[DYNAMIC], "=-" } };
    rows[6] = (Result){ "activations, last step",
                        NULL,
                        { "peak.equal", "peak.static", "peak.dynamic", "=-" } };
    say(run,
        "\nequal: the same share of the %zu sequences for all. static: in proportion to the "
        "speeds before step\n0. dynamic: to the mean of the old and the last measured speed. "
        "ideal: by the present speeds, in\nfractions of a sequence. A step: the slowest rank's "
        "computation, then the all-reduce. A rank keeps\n%s of activations per sequence. --slow "
        "%s: the devices' times per sequence. Device 0\nbecomes %zu times slower in step %zu.\n",
        d->sequences, value_text(run, (double)activations_bytes(&z, 1), "bytes"),
        option_text(run, "slow"), d->changed, d->change);
    results(run, (const char *const[]){ "equal", "static", "dynamic", "ideal", NULL }, rows);
}
