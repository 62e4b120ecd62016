// balance.c: see balance.h.
#include "01_data_parallel/balance.h"
#include <stdlib.h>

// strtoul would take signs and blanks, too.
static size_t whole(const char *text, char **end) {
    *end = (char *)text;
    return *text >= '1' && *text <= '9' ? strtoul(text, end, 10) : 0;
}

Devices devices_read(Run *run, const char *option, size_t change, size_t changed) {
    Devices d = { run->world->size, (size_t *)host_alloc(run->world->size * sizeof(size_t)), change, changed };
    const char *text = option_text(run, option), *at = text;
    for (size_t r = 0; r < d.n; r++) {
        char *end;
        d.slow[r] = whole(at, &end);
        REQUIRE(d.slow[r] >= 1 && d.slow[r] <= 1000 && (*end == ',' || *end == 0),
                "--%s %s: expected whole numbers from 1 to 1000, such as 1,1,2,4", option, text);
        at = *end ? end + 1 : text;
    }
    return d;
}

size_t devices_slowness(const Devices *d, size_t rank, size_t step) {
    return d->slow[rank] * (rank == 0 && step >= d->change ? d->changed : 1);
}

double devices_summed_speed(const Devices *d, size_t step) {
    double sum = 0;
    for (size_t r = 0; r < d->n; r++) sum += 1 / (double)devices_slowness(d, r, step);
    return sum;
}

void devices_free(Devices *d) { free(d->slow); }

// A device takes (size + 1) / rate with one sequence more. The one that would be done with it first.
static size_t first_done(const Range *share, const double *rate, size_t n) {
    size_t best = 0;
    for (size_t r = 1; r < n; r++)
        if ((double)(range_size(share[r]) + 1) * rate[best] < (double)(range_size(share[best]) + 1) * rate[r]) best = r;
    return best;
}

void balance_shares(Range *share, const double *rate, size_t n, size_t total) {
    double sum = 0;
    size_t given = 0;
    for (size_t r = 0; r < n; r++) sum += rate[r];
    for (size_t r = 0; r < n; r++) {           // the whole part of its exact share: the size here, the place below
        share[r] = sum > 0 ? (Range){ 0, (size_t)((double)total * rate[r] / sum) } : shard_range(total, n, r);
        given += range_size(share[r]);
    }
    // Fewer than n sequences are left, one for each fraction cut off. The largest fraction need not be the right place:
    // it may be the slowest device's, and then everybody waits for its one sequence.
    for (; given < total; given++) share[first_done(share, rate, n)].hi++;
    for (size_t r = 0, lo = 0; r < n; lo = share[r].hi, r++) share[r] = (Range){ lo, lo + range_size(share[r]) };
}
