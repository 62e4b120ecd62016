// Checks that ZeRO on paper gives the same weights with parts as with replicas. Also compares bytes
// per parameter with table I of the paper.
#include "06_zero/by_hand.h"
#include "judge/frame/lesson.h"
#include <stdio.h>

static double start(size_t i) { return 0.5 - 0.1 * (double)i; }

static void update_by_hand(Run *run) {
    double whole[N][SIZE], parts[N][SIZE];
    for (size_t r = 0; r < N; r++)
        for (size_t i = 0; i < SIZE; i++) whole[r][i] = parts[r][i] = start(i);
    say(run, "10 parameters: elements 0..3 are a bias b0..b3, elements 4..9 a 2x3 matrix "
             "m00..m12.");
    say(run, "A replica holds 10 weights, 10 gradients, and AdamW's moments, 10 m and 10 v.");
    say(run, "Gradients of the first step at elements 3 and 4, and the part that each rank owns:");
    say(run, "            b3  m00");
    for (size_t r = 0; r < N; r++) {
        Range own = shard_range(SIZE, N, r);
        say(run,
            "  rank %zu: %+.1f %+.1f   owns elements %zu..%zu: updates them, holds their m "
            "and v",
            r, start(3) - zero_by_hand_target(r, 3), start(4) - zero_by_hand_target(r, 4), own.lo,
            own.hi - 1);
    }
    zero_by_hand_replicas(whole);
    zero_by_hand_parts(parts);
    say(run, "  sum    %+.1f %+.1f   goes to rank 1 only, which owns both elements", 4 * start(3),
        4 * start(4) - 4);
    say(run, "Only the matrix has weight decay. Rank 1 owns parts of bias and matrix, so it "
             "decides per element.");
    say(run, "After %d steps, with replicas and with parts: b3 = %.4f, m00 = %.4f.", STEPS,
        parts[0][3], parts[0][4]);
    size_t moved = 0, equal = 0;
    for (size_t r = 0; r < N; r++) {
        char name[40];
        snprintf(name, sizeof name, "10 weights on rank %zu", r);
        check_numbers(run, "parts, gathered = replicas", name, parts[r], whole[r], SIZE, 0);
        for (size_t i = 0; i < SIZE; i++) equal += parts[r][i] == whole[r][i];
    }
    for (size_t i = 0; i < SIZE; i++) moved += parts[0][i] != start(i);
    check_true(run, "parts, gathered = replicas", "all 10 weights were updated", moved == SIZE);
    char agree[32] = "all";
    if (equal < N * SIZE) snprintf(agree, sizeof agree, "%zu of %d", equal, N * SIZE);
    // Rank 0 has one of the largest parts.
    size_t held = 2 * SIZE + 2 * range_size(shard_range(SIZE, N, 0));
    say_answer(run,
               "Each of %d replicas holds %d numbers. If each keeps moments only for its own "
               "part, it holds at most %zu; after %d steps %s weights agree in every bit.",
               N, 4 * SIZE, held, STEPS, agree);
    say_cost(run,
             "no more bytes are sent: the all-reduce of %d gradients becomes a "
             "reduce-scatter of %d gradients and an all-gather of %d weights.",
             SIZE, SIZE, SIZE);
    say_use_when(run, "there is data parallelism and memory is short: ZeRO-1 first, because it "
                      "sends no more; ZeRO-3 last.");
}

// ---------------------------------------------------------------- bytes per parameter

// A row has the bytes that stay whole on every rank, and the bytes that are divided by N. 16-bit: 2
// weights, 2 gradients, 12 fp32 (copy of the weights, m, v). fp32: 4 weights, 4 gradients, 8 (m,
// v).
typedef struct {
    const char *stage;
    double whole16, cut16, whole32, cut32;
} Row;
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

// Writes "8 + 8/N", without a term that is zero.
static void formula_text(char text[16], double whole, double cut) {
    if (cut == 0) snprintf(text, 16, "%g", whole);
    else if (whole == 0) snprintf(text, 16, "%g/N", cut);
    else snprintf(text, 16, "%g + %g/N", whole, cut);
}

// Table I of Rajbhandari et al. 2020, in GB of 10^9 bytes: 7.5e9 parameters on 64 ranks, 16-bit +
// Adam.
static const double published_7b[4] = { 120, 31.4, 16.6, 1.88 };
static double computed_7b(size_t stage) { return 7.5 * bytes16(stage, 64); }

static void table(Run *run) {
    say(run, "Bytes per parameter between steps on N ranks. fp32: weights 4, gradients 4, m and v "
             "8.");
    say(run, "16-bit: weights 2, gradients 2, and 12 for m, v and a copy of the weights in fp32.");
    say(run, "GB: all bytes per rank for 7.5e9 parameters on 64 ranks; published: the ZeRO paper, "
             "table I.");
    say(run, "                 fp32                         16-bit");
    say(run, "                 formula     N = 4   N = 64   formula     N = 4   N = 64       GB  "
             "published");
    for (size_t s = 0; s < 4; s++) {
        char text[2][16];
        formula_text(text[0], row[s].whole32, row[s].cut32);
        formula_text(text[1], row[s].whole16, row[s].cut16);
        say(run, "  %-13s  %-10s %6.3f %8.3f   %-10s %6.3f %8.3f %8.3f  %9g", row[s].stage, text[0],
            bytes32(s, 4), bytes32(s, 64), text[1], bytes16(s, 4), bytes16(s, 64), computed_7b(s),
            published_7b[s]);
    }
}

// Compares the computed memory per rank with cells of table I of Rajbhandari et al. 2020.
static void published(Run *run) {
    static const double table1[3] = { 608, 368, 128 };
    for (size_t s = 0; s < 4; s++) {
        double computed = computed_7b(s);
        // the paper prints three digits
        check_numbers(run, "ZeRO table I, 7.5B, N = 64", row[s].stage, &computed, &published_7b[s],
                      1, 3e-3);
    }
    for (size_t s = 1; s < 4; s++) {
        double computed = 128 * bytes16(s, 16);
        check_numbers(run, "ZeRO table I, 128B, N = 16", row[s].stage, &computed, &table1[s - 1], 1,
                      1e-12);
    }
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1,
            "one process holds all four imagined ranks: start it with one rank (NP=1, or "
            "--emulate 1)");
    update_by_hand(run);
    table(run);
    published(run);
}

static const Option options[] = {
    REALS_ONLY("this lesson computes with plain C arrays, whose elements are reals"),
    { 0 },
};
EXPERIMENT(by_hand, options);
