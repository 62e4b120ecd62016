// balance_forecast.c: predicts shares and times of 07_balance from sizes and speeds, without a call
// of the technique.
#include "01_data_parallel/experiments/experiments.h"
#include "common/model/costs.h"
#include <math.h>
#include <stdlib.h>

// The time of a step's all-reduces: of the gradient, and with DYNAMIC also of the n measured times.
double balance_rings(Policy p, const Devices *d) {
    double gradient = ring_time(ALL_REDUCE_PASSES, d->n, config_parameters(d->model), sizeof(real));
    return gradient + (p == DYNAMIC ? ring_time(ALL_REDUCE_PASSES, d->n, d->n, sizeof(double)) : 0);
}

// Hands out the batch sequence by sequence. Each sequence goes to the device that would finish it
// first. balance_shares() must give the same shares in a shorter way. It may begin with the whole
// parts of the exact shares, because no device gets less (the lower quota of D'Hondt's method).
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
// A rate is the mean of its old value and the last measured one. The slowness of each device is
// worked out here again, because slowness() of 07_balance.c sets the clock of the steps.
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

// The speed of all devices together. After the change device 0 has 1 / changed of its old speed.
static double summed_speed(const Devices *d, size_t step) {
    double sum = 0;
    for (size_t r = 0; r < d->n; r++) sum += 1 / (double)d->slow[r];
    return step < d->change ? sum : sum - (1 - 1 / (double)d->changed) / (double)d->slow[0];
}

double balance_ideal(const Devices *d, size_t step) {
    return work_model(d->model, d->sequences).time / summed_speed(d, step);
}

// The longest time that a step may take. If sequences could be cut, all devices would finish
// together, after work / summed speed. Sequences are whole, but the device that ends last got
// its last sequence because no other device would have finished it earlier. So a step takes at
// most as long as a step of n - 1 more sequences that could be cut. If the estimated rate of a
// device is `over` times the true rate, its share may take `over` times as long. In the step of the
// change the rate of device 0 is `changed` times the true rate. Each further step halves the
// excess. The bound is one hundredth higher, because products of fast devices take whole
// picoseconds.
double balance_bound(Policy p, const Devices *d, size_t step) {
    double over = 1;
    if (p == DYNAMIC && step >= d->change)
        over += (double)(d->changed - 1) / pow(2, (double)(step - d->change));
    double work = work_model(d->model, d->sequences + d->n - 1).time;
    double computing = over * work / summed_speed(d, step);
    return computing * 1.01 + balance_rings(p, d);
}
