// 07_costs.c: see 07_costs.h.
#include "01_data_parallel/support/07_costs.h"
#include <math.h>
#include <stdlib.h>
#include "01_data_parallel/data_parallel.h"
#include "common/model/costs.h"

// The gradient's ring and, where times are sent, that of the n times.
static double communicating(BalanceSizes z, size_t n) {
    double gradient = ring_time(ALL_REDUCE_PASSES, n, config_parameters(&z.model), sizeof(real));
    return gradient + (z.measured ? ring_time(ALL_REDUCE_PASSES, n, n, sizeof(double)) : 0);
}

// All wait for the one who takes longest; then they communicate. A rate is the mean of what it was and of what the last
// step showed.
void balance_forecast(BalanceSizes z, const Devices *d, Range *share, double *time) {
    double *rate = (double *)host_alloc(d->n * sizeof *rate);
    for (size_t r = 0; r < d->n; r++) rate[r] = z.known ? 1 / (double)devices_slowness(d, r, 0) : 0;
    for (size_t step = 0; step < z.steps; step++) {
        Range *now = share + step * d->n;
        double longest = 0;
        balance_shares(now, rate, d->n, z.sequences);
        for (size_t r = 0; r < d->n; r++) {
            size_t B = range_size(now[r]);
            double took = work_model(&z.model, B).time * (double)devices_slowness(d, r, step), did = (double)B / took;
            longest = fmax(longest, took);
            if (z.measured && B > 0) rate[r] = rate[r] > 0 ? (rate[r] + did) / 2 : did;
        }
        time[step] = longest + communicating(z, d->n);
    }
    free(rate);
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
    double computing = over * work_model(&z.model, z.sequences + d->n - 1).time / devices_summed_speed(d, step);
    return computing * 1.01 + communicating(z, d->n);
}
