// balance_forecast.c: predicts shares and times of 07_balance from sizes and speeds, without a call
// of the technique.
#include "01_data_parallel/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>

// Returns the time of a step's all-reduces, of the gradient, and with DYNAMIC also of the n
// measured times.
double balance_rings(Policy p, const Devices *d) {
    double gradient =
        ring_time(ALL_REDUCE_PASSES, d->n, config_parameters(d->model), gradient_bytes(d->model));
    return gradient + (p == DYNAMIC ? ring_time(ALL_REDUCE_PASSES, d->n, d->n, sizeof(double)) : 0);
}

// Hands out the batch sequence by sequence. Each sequence goes to the device that would finish it
// first. balance_shares() must give the same shares in a shorter way. balance_shares() may begin
// with the whole parts of the exact shares, because no device gets less (the lower quota of
// D'Hondt's method).
static void hand_out(Range *share, const double *rate, size_t n, size_t total) {
    size_t *has = host_alloc(n * sizeof *has), lo = 0;
    for (size_t given = 0; given < total; given++) {
        size_t first = 0;
        for (size_t r = 1; r < n; r++)
            if ((double)(has[r] + 1) * rate[first] < (double)(has[first] + 1) * rate[r]) first = r;
        has[first]++;
    }
    for (size_t r = 0; r < n; r++) {
        share[r] = (Range){ lo, lo + has[r] };
        lo = share[r].hi;
    }
    free(has);
}

// Predicts the shares and times of all steps. All ranks wait for the slowest and then communicate.
// A rate is the mean of its old value and the last measured one. This function computes the
// slowness of each device itself, because slowness() of 07_balance.c sets the clock of the measured
// steps.
void balance_forecast(Policy p, const Devices *d, Range *share, double *time) {
    double *rate = host_alloc(d->n * sizeof *rate), *slow = host_alloc(d->n * sizeof *slow);
    for (size_t r = 0; r < d->n; r++) {
        slow[r] = (double)d->slow[r];
        rate[r] = p == STATIC ? 1 / slow[r] : 1; // unknown speeds: equal shares
    }
    for (size_t step = 0; step < d->steps; step++) {
        Range *now = share + step * d->n;
        double longest = 0;
        if (step == d->change) slow[0] *= (double)d->changed;
        hand_out(now, rate, d->n, d->sequences);
        for (size_t r = 0; r < d->n; r++) {
            size_t B = range_size(now[r]);
            double took = work_model(d->model, B).time * slow[r], did = (double)B / took;
            longest = fmax(longest, took);
            if (p == DYNAMIC && B > 0) rate[r] = step > 0 ? (rate[r] + did) / 2 : did;
        }
        time[step] = longest + balance_rings(p, d);
    }
    free(rate);
    free(slow);
}

// Returns the speed of all devices together. After the change device 0 has 1 / changed of its old
// speed.
static double summed_speed(const Devices *d, size_t step) {
    double sum = 0;
    for (size_t r = 0; r < d->n; r++) sum += 1 / (double)d->slow[r];
    return step < d->change ? sum : sum - (1 - 1 / (double)d->changed) / (double)d->slow[0];
}

double balance_ideal(const Devices *d, size_t step) {
    return work_model(d->model, d->sequences).time / summed_speed(d, step);
}

double balance_ideal_steps(const Devices *d) {
    double time = 0;
    for (size_t s = 0; s < d->steps; s++) time += balance_ideal(d, s) + balance_rings(EQUAL, d);
    return time;
}
