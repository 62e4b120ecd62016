// cuts.c: compares the results of partition_min_max with all cuts of small examples, for
// 04_partition.c.
#include "04_pipeline_naive/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>

double partition_exhaustive(const double *cost, size_t n, size_t p, size_t *last) {
    double best = INFINITY;
    // Bit i of cut is 1 if a part other than the last ends with layer i.
    for (size_t cut = 0; cut < (size_t)1 << (n - 1); cut++) {
        double most = 0, sum = 0;
        size_t parts = 1, begin = 0;
        for (size_t i = 0; i < n; i++) {
            sum += cost[i];
            most = fmax(most, sum);
            if (!(cut >> i & 1)) continue;
            parts++;
            begin = i + 1;
            sum = 0;
        }
        if (parts != p || most > best || (most == best && begin > *last)) continue;
        best = most;
        *last = begin;
    }
    return best;
}

static double largest_part(const double *cost, size_t p, const size_t *first) {
    double most = 0;
    for (size_t i = 0; i < p; i++) {
        double sum = 0;
        for (size_t k = first[i]; k < first[i + 1]; k++) sum += cost[k];
        most = fmax(most, sum);
    }
    return most;
}

void partition_cuts(Run *run) {
    static const double example[] = { 9, 5, 5, 9, 6 }, want = 14;
    size_t first[13], last;
    double got = partition_min_max(example, 5, 3, first);
    check_numbers(run, "cuts", "costs 9 5 5 9 6 on 3 stages: min-max 14", &got, &want, 1, 0);
    enum { CASES = 200 };
    double best[CASES], every[CASES], sum[CASES], begin[CASES], earliest[CASES];
    for (size_t k = 0; k < CASES; k++) {
        double cost[12];
        size_t n = 1 + random_key(run->seed, k) % 12, p = 1 + random_key(run->seed + 1, k) % n;
        for (size_t i = 0; i < n; i++)
            cost[i] = (double)(random_key(random_key(run->seed, k), i) % 20);
        best[k] = partition_min_max(cost, n, p, first);
        every[k] = partition_exhaustive(cost, n, p, &last);
        sum[k] = largest_part(cost, p, first);
        begin[k] = (double)first[p - 1];
        earliest[k] = (double)last;
    }
    check_numbers(run, "cuts", "200 random ones: the smallest of all cuts", best, every, CASES, 0);
    check_numbers(run, "cuts", "200 random ones: the cut has that cost", sum, every, CASES, 0);
    check_numbers(run, "cuts", "200 random ones: of equal cuts, the last stage begins earliest",
                  begin, earliest, CASES, 0);
}
