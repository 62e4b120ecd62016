// balance_forecast.c: predicts shares and times of 07_balance from sizes and speeds. Calls no
// function of 01_data_parallel/07_balance.c.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>

// Returns the time of device r for a sequence, divided by the time of a fast device. The forecast
// does not call slowness() of 07_balance.c, which sets the clock of the measured steps. So the
// comparison finds an error in slowness().
static double slow_in(const Devices *d, size_t r, size_t step) {
    return (double)(d->slow[r] * (r == 0 && step >= d->change ? d->changed : 1));
}

// Returns the time of a step's all-reduces, of the gradient, and with DYNAMIC also of the n
// measured times.
static double rings(Policy p, const Devices *d) {
    double gradient =
        ring_time(ALL_REDUCE_PASSES, d->n, config_parameters(d->model), gradient_bytes(d->model));
    return gradient + (p == DYNAMIC ? ring_time(ALL_REDUCE_PASSES, d->n, d->n, sizeof(double)) : 0);
}

// Hands out the batch sequence by sequence. Each sequence goes to the device that would finish the
// sequence first. balance_shares() must give the same shares. balance_shares() may begin with the
// exact shares, rounded down, because no device gets less (the lower quota of D'Hondt's method).
static void hand_out(Range *share, const double *rate, const Devices *d) {
    size_t has[MOST_DEVICES] = { 0 }, lo = 0;
    for (size_t given = 0; given < d->sequences; given++) {
        size_t first = 0;
        for (size_t r = 1; r < d->n; r++)
            if ((double)(has[r] + 1) * rate[first] < (double)(has[first] + 1) * rate[r]) first = r;
        has[first]++;
    }
    for (size_t r = 0; r < d->n; r++) {
        share[r] = (Range){ lo, lo + has[r] };
        lo = share[r].hi;
    }
}

// Predicts shares and times. In each step all ranks wait for the slowest rank and then communicate.
// With DYNAMIC a rank's first rate is the measured rate. Later rates are the mean of the old rate
// and the measured rate.
BalanceRecord balance_forecast(Policy p, const Devices *d) {
    BalanceRecord want = { 0 };
    double rate[MOST_DEVICES];
    // Equal rates stand for unknown speeds.
    for (size_t r = 0; r < d->n; r++) rate[r] = p == STATIC ? 1 / slow_in(d, r, 0) : 1;
    for (size_t step = 0; step < BALANCE_STEPS; step++) {
        Range *share = want.share + step * d->n;
        hand_out(share, rate, d);
        for (size_t r = 0; r < d->n; r++) {
            const size_t B = range_size(share[r]);
            const double took = work_model(d->model, B).time * slow_in(d, r, step);
            const double now = (double)B / took;
            want.time[step] = fmax(want.time[step], took);
            if (p == DYNAMIC && B > 0) rate[r] = step > 0 ? (rate[r] + now) / 2 : now;
        }
        want.time[step] += rings(p, d);
    }
    return want;
}

double balance_ideal(const Devices *d, size_t step) {
    double speeds = 0;
    for (size_t r = 0; r < d->n; r++) speeds += 1 / slow_in(d, r, step);
    return work_model(d->model, d->sequences).time / speeds + rings(EQUAL, d);
}
