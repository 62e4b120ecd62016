// planner.c: PipeDream's planner, for 04_partition.c. The planner finds the best stages with
// replicas. A search through all plans checks the result.
#include "04_pipeline_naive/experiments/experiments.h"
#include "common/tensor/random.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// Harlap et al. 2018, section 3.2. A plan has stages of neighbouring layers, each with several
// replicas; in the best plan the slowest stage or message is as fast as possible. Times are per
// micro-batch, which the paper calls minibatch.
enum { MOST_LAYERS = 8, MOST_WORKERS = 8 };
// Times of each layer: of forward and backward together, of its weights on a link, of its output on
// a link.
typedef struct {
    size_t n;
    double time[MOST_LAYERS], weights[MOST_LAYERS], output[MOST_LAYERS];
} Profile;
// The best plan for the first j layers on m workers: its last stage begins at layer `from` and has
// `replicas`.
typedef struct {
    double slowest;
    size_t from, replicas;
} Plan;

// The time per micro-batch of layers i, ..., j-1 on m replicas. The replicas compute m
// micro-batches at the same time, and sum the gradients of the weights: rings for gradients and for
// weights send 4(m-1)/m of the weights.
static double stage_time(const Profile *a, size_t i, size_t j, size_t m) {
    double time = 0, weights = 0;
    for (; i < j; i++) {
        time += a->time[i];
        weights += a->weights[i];
    }
    return fmax(time, 4 * (double)(m - 1) / (double)m * weights) / (double)m;
}

// A(j, m) = min of T(0..j, m), and over i and m' of max{ A(i, m-m'), 2 output_i, T(i..j, m') }.
static void plan(const Profile *a, size_t workers, Plan best[MOST_LAYERS + 1][MOST_WORKERS + 1]) {
    for (size_t j = 1; j <= a->n; j++)
        for (size_t m = 1; m <= workers; m++) {
            Plan p = { stage_time(a, 0, j, m), 0, m };
            for (size_t i = 1; i < j; i++)
                for (size_t last = 1; last < m; last++) {
                    double slowest = fmax(fmax(best[i][m - last].slowest, 2 * a->output[i - 1]),
                                          stage_time(a, i, j, last));
                    if (slowest < p.slowest) p = (Plan){ slowest, i, last };
                }
            best[j][m] = p;
        }
}

// Tries all plans: first the layers and replicas of the first stage, then the rest.
static double exhaustive(const Profile *a, size_t i, size_t workers) {
    double best = stage_time(a, i, a->n, workers);
    for (size_t j = i + 1; j < a->n; j++)
        for (size_t m = 1; m < workers; m++) {
            double rest = exhaustive(a, j, workers - m),
                   stage = fmax(stage_time(a, i, j, m), 2 * a->output[j - 1]);
            best = fmin(best, fmax(stage, rest));
        }
    return best;
}

static void plan_text(char *text, Plan best[MOST_LAYERS + 1][MOST_WORKERS + 1], size_t j,
                      size_t m) {
    Plan p = best[j][m];
    if (p.from > 0) plan_text(text, best, p.from, m - p.replicas);
    sprintf(text + strlen(text), "%s%zu-%zu x%zu", p.from ? ", " : "", p.from, j - 1, p.replicas);
}

// As in VGG: layers that compute much and have few weights, then layers with many weights.
static const Profile vgg = {
    6, { 8, 8, 6, 4, 1, 1 }, { 0.1, 0.2, 0.5, 1, 8, 4 }, { 3, 2, 1, 0.5, 0.1, 0.1 }
};

void partition_planner(Run *run) {
    enum { CASES = 40 };
    double got[CASES], want[CASES];
    for (size_t k = 0; k < CASES; k++) {
        Plan best[MOST_LAYERS + 1][MOST_WORKERS + 1];
        uint64_t key = random_key(run->seed, 1000 + k);
        Profile a = { .n = 1 + key % 5 };
        size_t workers = 1 + (key >> 8) % 5;
        for (size_t i = 0; i < a.n; i++) {
            a.time[i] = (double)(random_key(key, i) % 16);
            a.weights[i] = (double)(random_key(key, i) >> 8 & 7) / 2;
            a.output[i] = (double)(random_key(key, i) >> 16 & 7) / 2;
        }
        plan(&a, workers, best);
        got[k] = best[a.n][workers].slowest;
        want[k] = exhaustive(&a, 0, workers);
    }
    check_numbers(run, "planner", "40 random models: the fastest of all plans", got, want, CASES,
                  0);
    say_detail(run,
               "PipeDream's planner, %zu layers; layers x replicas; time of a micro-batch:", vgg.n);
    for (size_t k = 0; k < 4; k++) {
        static const double link[] = { 4, 1, 0.25, 0.0625 };
        Plan best[MOST_LAYERS + 1][MOST_WORKERS + 1];
        Profile a = vgg;
        char text[80] = "";
        for (size_t i = 0; i < a.n; i++) {
            a.weights[i] /= link[k];
            a.output[i] /= link[k];
        }
        plan(&a, 4, best);
        plan_text(text, best, a.n, 4);
        say_detail(run, "  link %-6g  %-28s %5.2f   data parallel %6.2f   one device %5.2f",
                   link[k], text, best[a.n][4].slowest, stage_time(&a, 0, a.n, 4),
                   stage_time(&a, 0, a.n, 1));
    }
}
