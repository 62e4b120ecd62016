// ZeRO on paper: parts give the weights of replicas; bytes per parameter; the paper's figures.
#include "06_zero/by_hand.h"
#include "judge/frame/lesson.h"
#include <stdio.h>

static double start(size_t i) { return 0.5 - 0.1 * (double)i; }

static void update_by_hand(Run *run) {
    double whole[N][SIZE], cut[N][SIZE];
    for (size_t r = 0; r < N; r++)
        for (size_t i = 0; i < SIZE; i++) whole[r][i] = cut[r][i] = start(i);
    say(run,
        "10 parameters: a bias b0..b3, then a 2x3 matrix m00..m12, the only one with weight decay");
    say(run, "four replicas: each holds 10 weights, 10 gradients, 10 m and 10 v, and updates all "
             "10 weights alike");
    say(run, "gradients of the first step at elements 3 (b3) and 4 (m00), rank by rank:");
    for (size_t r = 0; r < N; r++) {
        Range own = shard_range(SIZE, N, r);
        say(run, "  rank %zu: %+.1f %+.1f   owns elements %zu..%zu, m and v for %zu of 10", r,
            start(3) - zero_by_hand_target(r, 3), start(4) - zero_by_hand_target(r, 4), own.lo,
            own.hi - 1, range_size(own));
    }
    zero_by_hand_replicas(whole);
    zero_by_hand_parts(cut);
    say(run, "  sum    %+.1f %+.1f   reduced to rank 1, which owns both; only m00 has weight decay",
        4 * start(3), 4 * start(4) - 4);
    say(run, "after %d steps, with replicas and with parts: b3 = %.4f, m00 = %.4f", STEPS,
        cut[0][3], cut[0][4]);
    for (size_t r = 0; r < N; r++) {
        char name[40];
        snprintf(name, sizeof name, "10 weights on rank %zu", r);
        check_numbers(run, "parts, gathered = replicas", name, cut[r], whole[r], SIZE, 0);
    }
    size_t moved = 0;
    for (size_t i = 0; i < SIZE; i++) moved += cut[0][i] != start(i);
    check_true(run, "parts, gathered = replicas", "all 10 weights were updated", moved == SIZE);
}

// ---------------------------------------------------------------- bytes a parameter

// Bytes that stay whole on every rank, and bytes that are cut in N. 16-bit: 2 weights, 2 gradients,
// 12 fp32 (copy of the weights, m, v). fp32: 4 weights, 4 gradients, 8 (m, v).
typedef struct { const char *stage; double whole16, cut16, whole32, cut32; } Row;
static const Row row[] = {
    { "data parallel", 16, 0, 16, 0 },
    { "ZeRO-1", 4, 12, 8, 8 },
    { "ZeRO-2", 2, 14, 4, 12 },
    { "ZeRO-3", 0, 16, 0, 16 },
};
static double bytes16(size_t stage, double ranks) {
    return row[stage].whole16 + row[stage].cut16 / ranks;
}
static double bytes32(size_t stage, double ranks) {
    return row[stage].whole32 + row[stage].cut32 / ranks;
}

static void table(Run *run) {
    say(run, "bytes a parameter between steps, N ranks         N = 4    N = 64   N = 1024");
    for (size_t s = 0; s < 4; s++) {
        say(run, "  %-13s  fp32 + AdamW    %2g + %2g/N     %9.3f %9.3f %10.3f", row[s].stage,
            row[s].whole32, row[s].cut32, bytes32(s, 4), bytes32(s, 64), bytes32(s, 1024));
        say(run, "  %-13s  16-bit + AdamW  %2g + %2g/N     %9.3f %9.3f %10.3f", "", row[s].whole16,
            row[s].cut16, bytes16(s, 4), bytes16(s, 64), bytes16(s, 1024));
    }
    for (size_t s = 0; s < 4; s++) // at N = 1 nothing is saved or lost, whatever the stage
        check_true(run, "one rank holds everything", row[s].stage,
                   bytes16(s, 1) == 16 && bytes32(s, 1) == 16);
}

// Figure 1 and three cells of table I of Rajbhandari et al. 2020, in GB of 10^9 bytes, 16-bit +
// Adam.
static void published(Run *run) {
    static const double figure1[4] = { 120, 31.4, 16.6, 1.88 }, table1[3] = { 608, 368, 128 };
    say(run, "a model of 7.5e9 parameters on 64 ranks (ZeRO, figure 1):");
    for (size_t s = 0; s < 4; s++) {
        double computed = 7.5 * bytes16(s, 64);
        say(run, "  %-13s  %7.3f GB   published %g", row[s].stage, computed, figure1[s]);
        // three printed digits
        check_numbers(run, "ZeRO figure 1, 7.5B, N = 64", row[s].stage, &computed, &figure1[s], 1,
                      3e-3);
    }
    for (size_t s = 1; s < 4; s++) {
        double computed = 128 * bytes16(s, 16);
        check_numbers(run, "ZeRO table I, 128B, N = 16", row[s].stage, &computed, &table1[s - 1], 1,
                      1e-12);
    }
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1,
            "the ranks are imagined here: start it with one rank (NP=1, or --emulate 1)");
    update_by_hand(run);
    table(run);
    published(run);
}

EXPERIMENT(by_hand, NULL);
