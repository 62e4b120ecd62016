// cuts.c: compares partition_min_max with all cuts of small examples, for 04_partition.c.
#include "04_pipeline_naive/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>

// Tries all cuts of cost [n] into p parts. most, least: the largest and the smallest of the parts
// before. A cut's score is its largest part, or the difference between its largest and smallest
// part. *score becomes the best score, *largest the largest part of that cut.
static void try_all(const double *cost, size_t n, size_t p, double most, double least,
                    bool difference, double *score, double *largest) {
    double sum = 0;
    if (p == 0) {
        double cut = difference ? most - least : most;
        if (n > 0 || cut >= *score) return;
        *score = cut;
        *largest = most;
        return;
    }
    for (size_t i = 1; i + p <= n + 1; i++) {
        sum += cost[i - 1];
        try_all(cost + i, n - i, p - 1, fmax(most, sum), fmin(least, sum), difference, score,
                largest);
    }
}
double partition_exhaustive(const double *cost, size_t n, size_t p) {
    double score = INFINITY, largest = 0;
    try_all(cost, n, p, 0, INFINITY, false, &score, &largest);
    return largest;
}
static double partition_max_min(const double *cost, size_t n, size_t p) {
    double score = INFINITY, largest = 0;
    try_all(cost, n, p, 0, INFINITY, true, &score, &largest);
    return largest;
}
static double partition_largest(const double *cost, size_t p, const size_t *first) {
    double most = 0;
    for (size_t i = 0; i < p; i++) {
        double sum = 0;
        for (size_t k = first[i]; k < first[i + 1]; k++) sum += cost[k];
        most = fmax(most, sum);
    }
    return most;
}

// The earliest layer at which the last of p parts may begin, if no part costs more than `most`.
static size_t earliest_last(const double *cost, size_t n, size_t p, double most) {
    double last = 0;
    size_t earliest = n;
    for (size_t i = n; i-- > p - 1;) {
        last += cost[i];
        bool fits = p > 1 ? partition_exhaustive(cost, i, p - 1) <= most : i == 0;
        if (fits && last <= most) earliest = i;
    }
    return earliest;
}

void partition_cuts(Run *run) {
    // DeepSpeed minimises the difference between the largest and the smallest stage.
    static const double example[] = { 9, 5, 5, 9, 6 };
    size_t first[4];
    double got[] = { partition_min_max(example, 5, 3, first), partition_max_min(example, 5, 3) },
           want[] = { 14, 15 };
    check_numbers(run, "cuts", "costs 9 5 5 9 6 on 3 stages: min-max 14, max - min 15", got, want,
                  2, 0);
    enum { CASES = 200 };
    double best[CASES], every[CASES], sum[CASES], begin[CASES], earliest[CASES];
    for (size_t k = 0; k < CASES; k++) {
        double cost[12];
        size_t n = 1 + random_key(run->seed, k) % 12, p = 1 + random_key(run->seed + 1, k) % n;
        size_t cut[13];
        for (size_t i = 0; i < n; i++)
            cost[i] = (double)(random_key(random_key(run->seed, k), i) % 20);
        best[k] = partition_min_max(cost, n, p, cut);
        every[k] = partition_exhaustive(cost, n, p);
        sum[k] = partition_largest(cost, p, cut);
        begin[k] = (double)cut[p - 1];
        earliest[k] = (double)earliest_last(cost, n, p, every[k]);
    }
    check_numbers(run, "cuts", "200 random ones: the smallest of all cuts", best, every, CASES, 0);
    check_numbers(run, "cuts", "200 random ones: the cut has that cost", sum, every, CASES, 0);
    check_numbers(run, "cuts", "200 random ones: of equal cuts, the last stage begins earliest",
                  begin, earliest, CASES, 0);
}
