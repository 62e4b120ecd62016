// 07_page.c: see 07_page.h.
#include "01_data_parallel/experiments/07_page.h"
#include <stdio.h>
#include <stdlib.h>
#include "judge/draw/plot.h"
#include "common/model/costs.h"

const char *const balance_policy[] = { "equal", "static", "dynamic" };

// "8 8 8 2", or of many devices the least and the most.
static void shares_text(char *text, size_t room, const Range *share, size_t n) {
    size_t least = range_size(share[0]), most = least, at = 0;
    for (size_t r = 0; r < n; r++) {
        size_t size = range_size(share[r]);
        least = size < least ? size : least;
        most = size > most ? size : most;
        if (n <= 8) at += (size_t)snprintf(text + at, room - at, r > 0 ? " %zu" : "%zu", size);
    }
    if (n > 8) snprintf(text, room, "%zu..%zu", least, most);
}

void balance_show_times(Run *run, BalanceSizes z, const Devices *d, const BalanceSeen *seen, int picture) {
    const double unit = work_model(&z.model, 1).time;
    double *x = host_alloc((POLICIES + 2) * z.steps * sizeof *x), *y = x + z.steps;    // y[POLICIES + 1][steps]
    say_detail(run, "\nstep    equal   static  dynamic   ideal   sequences of each device, dynamic");
    for (size_t step = 0; step < z.steps; step++) {
        char shares[64];
        shares_text(shares, sizeof shares, seen[DYNAMIC].share + step * d->n, d->n);
        x[step] = (double)step;
        for (size_t p = 0; p < POLICIES; p++) y[p * z.steps + step] = seen[p].time[step] / unit;
        y[POLICIES * z.steps + step] = (balance_ideal(z, d, step) + balance_rings(z, d->n)) / unit;
        say_detail(run, "%4zu %8.2f %8.2f %8.2f %7.2f   %s\n", step, y[step], y[z.steps + step], y[2 * z.steps + step],
                   y[3 * z.steps + step], shares);
    }
    PlotLine lines[] = { { "equal", y }, { "static", y + z.steps }, { "dynamic", y + 2 * z.steps },
                         { "ideal", y + 3 * z.steps } };
    Plot plot = { .title = "time of a step; from step 5 on device 0 is four times as slow", .x_label = "step",
                  .y_label = "1: one sequence on a fast device",
                  .x = x, .n = z.steps, .lines = lines, .n_lines = POLICIES + 1 };
    plot_show(run, &plot, picture | PICTURE_DETAIL);
    free(x);
}

typedef char Cell[64];
static void milliseconds(Cell text, double ps) { snprintf(text, sizeof(Cell), "=%.2f ms", ps * 1e-9); }

void balance_results(Run *run, BalanceSizes z, const Devices *d, const BalanceSeen *seen) {
    const size_t step[] = { 0, d->change - 1, d->change, z.steps - 1 };
    Cell time[4][POLICIES + 1], shares[POLICIES], what[4], best;
    double all = 0;
    for (size_t s = 0; s < z.steps; s++) all += balance_ideal(z, d, s) + balance_rings(z, d->n);
    milliseconds(best, all);
    for (size_t i = 0; i < 4; i++) {
        snprintf(what[i], sizeof *what, i == 2 ? "step %zu: slowed" : "step %zu", step[i]);
        for (size_t p = 0; p < POLICIES; p++) milliseconds(time[i][p], seen[p].time[step[i]]);
        milliseconds(time[i][POLICIES], balance_ideal(z, d, step[i]) + balance_rings(z, d->n));
    }
    for (size_t p = 0; p < POLICIES; p++) {
        *shares[p] = '=';
        shares_text(shares[p] + 1, sizeof *shares - 1, seen[p].share + (z.steps - 1) * d->n, d->n);
    }
    results(run, (const char *const[]){ "equal", "static", "dynamic", "ideal", NULL }, (const Result[]){
        { what[0], "max k_r s_r 3F+ring", { time[0][0], time[0][1], time[0][2], time[0][3] } },
        { what[1], "ideal: 3F(B)/S+ring", { time[1][0], time[1][1], time[1][2], time[1][3] } },
        { what[2], "device 0 slows down", { time[2][0], time[2][1], time[2][2], time[2][3] } },
        { what[3], NULL, { time[3][0], time[3][1], time[3][2], time[3][3] } },
        { "all steps", "their sum", { "equal: all steps", "static: all steps", "dynamic: all steps", best } },
        { "k_r, last step", "sequences: B in all", { shares[0], shares[1], shares[2] } },
        { "kept, last step", "k_r T kept e", { "equal: activations, last step",
          "static: activations, last step", "dynamic: activations, last step" } },
        {0} });
}
