// 07_costs.c: see 07_costs.h.
#include "01_data_parallel/experiments/07_costs.h"
#include <math.h>
#include <stdlib.h>
#include "common/model/costs.h"
#include "common/model/model.h"

double balance_rings(BalanceSizes z, size_t n) {
    double gradient = ring_time(ALL_REDUCE_PASSES, n, config_parameters(&z.model), sizeof(real));
    return gradient + (z.measured ? ring_time(ALL_REDUCE_PASSES, n, n, sizeof(double)) : 0);
}

// The batch is handed out sequence by sequence, each to the device that would be done with it first. balance_shares()
// must come to the same, by its shorter way: a device that is done first never gets less than the whole part of its
// exact share (the lower quota of D'Hondt's method).
static void hand_out(Range *share, const double *rate, size_t n, size_t total) {
    size_t *has = host_alloc(n * sizeof *has), lo = 0;
    for (size_t given = 0; given < total; given++) {
        size_t first = 0;
        for (size_t r = 1; r < n; r++)
            if ((double)(has[r] + 1) * rate[first] < (double)(has[first] + 1) * rate[r]) first = r;
        has[first]++;
    }
    for (size_t r = 0; r < n; lo = share[r].hi, r++) share[r] = (Range){ lo, lo + has[r] };
    free(has);
}

// All wait for the one who takes longest; then they communicate. A rate is the mean of what it was and of what the last
// step showed. Who is how slow when is worked out here again: 07_devices.c sets the clock by which steps are measured.
void balance_forecast(BalanceSizes z, const Devices *d, Range *share, double *time) {
    double *rate = host_alloc(d->n * sizeof *rate), *slow = host_alloc(d->n * sizeof *slow);
    for (size_t r = 0; r < d->n; r++) {
        slow[r] = (double)d->slow[r];
        rate[r] = z.known ? 1 / slow[r] : 1;       // nothing known: all alike
    }
    for (size_t step = 0; step < z.steps; step++) {
        Range *now = share + step * d->n;
        double longest = 0;
        if (step == d->change) slow[0] *= (double)d->changed;
        hand_out(now, rate, d->n, z.sequences);
        for (size_t r = 0; r < d->n; r++) {
            size_t B = range_size(now[r]);
            double took = work_model(&z.model, B).time * slow[r], did = (double)B / took;
            longest = fmax(longest, took);
            if (z.measured && B > 0) rate[r] = step > 0 ? (rate[r] + did) / 2 : did;
        }
        time[step] = longest + balance_rings(z, d->n);
    }
    free(rate);
    free(slow);
}

// What device 0 loses from the change on is 1 - 1 / changed of its speed.
double balance_summed_speed(const Devices *d, size_t step) {
    double sum = 0;
    for (size_t r = 0; r < d->n; r++) sum += 1 / (double)d->slow[r];
    return step < d->change ? sum : sum - (1 - 1 / (double)d->changed) / (double)d->slow[0];
}

double balance_ideal(BalanceSizes z, const Devices *d, size_t step) {
    return work_model(&z.model, z.sequences).time / balance_summed_speed(d, step);
}

// Could sequences be cut, all would end together, after work / summed speed. They are whole; but the device that ends
// last got its last one because no other would have ended earlier with one more. So a step takes at most what n - 1
// more sequences would take that could be cut. While a device is believed to be `over` times as fast as it is, its
// share may take that many times as long. The smoothed rate of device 0 is d->changed times too high in the step of the
// change, and then each step halves what is too much. A hundredth is for the products of fast devices, which last whole
// picoseconds.
double balance_bound(BalanceSizes z, const Devices *d, size_t step) {
    double over = 1;
    if (z.measured && step >= d->change) over += (double)(d->changed - 1) / pow(2, (double)(step - d->change));
    double computing = over * work_model(&z.model, z.sequences + d->n - 1).time / balance_summed_speed(d, step);
    return computing * 1.01 + balance_rings(z, d->n);
}

// Rank 0 had 4 sequences and took 8; the others had none.
void balance_check_idle(Run *run, void (*observe)(Comm *dp, const Range *share, double took, double *rate)) {
    size_t n = run->world->size;
    Range *share = (Range *)host_alloc(n * sizeof *share);
    double *rate = host_alloc(n * sizeof *rate);
    for (size_t r = 0; r < n; r++) rate[r] = 1.5;
    share[0].hi = 4;
    observe(run->world, share, run->world->rank == 0 ? 8 : 0, rate);
    bool right = rate[0] == 1;                     // the mean of 1.5 and 4/8
    for (size_t r = 1; r < n; r++) right = right && rate[r] == 1.5;
    check_true(run, "rates", "who had no sequences keeps its own", right);
    free(share);
    free(rate);
}
