// test_shares.c: tests the shares that balance_shares() computes from random rates. The shares must
// add up to the batch. With n devices and B sequences, a step must take at most the ideal time of B
// + n - 1 sequences. In the ideal time fractions of a sequence are allowed. This bound holds
// because each further sequence goes to the device that would finish first with one more sequence.
// The ideal time must follow from the summed speed of the devices.
//
// ranks: 1
// level: core
// question: How much longer than the ideal does a step take if sequences are whole?
#include "01_data_parallel/experiments/experiments.h"
#include "common/tensor/random.h"
#include "tap.h"
#include <math.h>

// Four devices have the speeds 1, 1, 1 and 1/4, so the sum is 13/4. From step 5 on device 0 has the
// speed 1/4, too, so the sum is 10/4.
static bool ideal_follows_speeds(void) {
    static const ModelConfig tiny = {
        .layers = 1, .width = 24, .heads = 3, .context = 12, .vocab = 61
    };
    const Devices d = { &tiny, 26, 5, 4, 4, { 1, 1, 1, 4 } };
    clock_configure(&(ClockConfig){ .simulated = true, .device = { .flops = 1e9 } });
    const double batch_time = work_model(&tiny, 26).time;
    const double change = balance_ideal(&d, 5) - balance_ideal(&d, 4);
    return batch_time > 0 && fabs(change / batch_time - (4 / 10. - 4 / 13.)) < 1e-9 &&
           balance_ideal(&d, 4) >= batch_time * 4 / 13;
}

int main(void) {
    enum { MOST = 9, ROUNDS = 500 };
    bool whole = true, bounded = true;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const size_t n = 1 + random_key(round, 1) % MOST, total = random_key(round, 2) % 40;
        Range share[MOST];
        double rate[MOST], sum = 0, longest = 0;
        size_t lo = 0;
        for (size_t r = 0; r < n; r++) {
            rate[r] = 1 / (1 + (double)(random_key(round, 3 + r) % 1000) / 100);
            sum += rate[r];
        }
        balance_shares(share, rate, n, total);
        for (size_t r = 0; r < n; r++) {
            whole = whole && share[r].lo == lo;
            lo = share[r].hi;
            longest = fmax(longest, (double)range_size(share[r]) / rate[r]);
        }
        whole = whole && lo == total;
        bounded = bounded && longest <= (double)(total + n - 1) / sum * (1 + 1e-12);
    }
    ok(whole, "the shares follow one another and add up to the batch");
    ok(bounded, "no step is longer than the bound for whole sequences");
    ok(ideal_follows_speeds(), "the ideal time follows from the speeds of all devices");
    return tap_end();
}
