// Checks that the parts of 01_by_hand.c give the same weights as the replicas. Also compares the
// computed memory per rank with table I of the ZeRO paper.
#include "06_zero/by_hand.h"
#include "judge/frame/lesson.h"

static double start(size_t i) { return 0.5 - 0.1 * (double)i; }

static void update_by_hand(Run *run) {
    double whole[N][SIZE], parts[N][SIZE];
    for (size_t r = 0; r < N; r++)
        for (size_t i = 0; i < SIZE; i++) whole[r][i] = parts[r][i] = start(i);
    say(run,
        "10 parameters: elements 0..3 are a bias b0..b3, elements 4..9 a 2x3 matrix a00..a12.");
    say(run, "A replica holds 10 weights, 10 gradients, and AdamW's moments, 10 m and 10 v.");
    say(run, "Gradients of the first step at elements 3 and 4, and the part that each rank owns:");
    say(run, "            b3  a00");
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
    say(run, "  sum     %+.1f %+.1f   goes to rank 1 only, which owns both elements", 4 * start(3),
        4 * start(4) - 4);
    say(run, "Only the matrix has weight decay. Rank 1 owns parts of bias and matrix, so rank 1 "
             "chooses element\n"
             "by element: no decay for b3, decay for a00.");
    say(run, "After %d steps, with replicas and with parts: b3 = %.4f, a00 = %.4f.", STEPS,
        parts[0][3], parts[0][4]);
    size_t moved = 0;
    for (size_t r = 0; r < N; r++) {
        check_numbers(run, "parts, gathered = replicas",
                      page_text(run, "10 weights on rank %zu", r), parts[r], whole[r], SIZE, 0);
    }
    for (size_t i = 0; i < SIZE; i++) moved += parts[0][i] != start(i);
    check_true(run, "parts, gathered = replicas", "all 10 weights were updated", moved == SIZE);
    // Rank 0 has one of the largest parts.
    size_t held = 2 * SIZE + 2 * range_size(shard_range(SIZE, N, 0));
    say_answer(run,
               "All weights, gradients and moments: each of %d replicas holds %d numbers. With "
               "ZeRO-1 a rank keeps moments only for its own part, and holds at most %zu. After %d "
               "steps all weights agree in every bit.",
               N, 4 * SIZE, held, STEPS);
    say_cost(run,
             "with ZeRO-1 no more bytes: the all-reduce of %d gradients becomes a reduce-scatter "
             "of %d gradients and an all-gather of %d weights. ZeRO-2 sends more if a step has "
             "several micro-batches (06.03). ZeRO-3 as in 06.04 sends more, even with one.",
             SIZE, SIZE, SIZE);
    say_use_when(run, "there is data parallelism and memory is short. Try ZeRO-1 first, because it "
                      "sends about as much as data parallelism. ZeRO-3 sends most.");
}

// ---------------------------------------------------------------- bytes per parameter

// Bytes per parameter: `whole` bytes on every rank, and `divided` bytes that the N ranks divide.
typedef struct {
    double whole, divided;
} Bytes;
static double on_ranks(Bytes b, double N) { return b.whole + b.divided / N; }
// Returns "8 + 8/N", without a term that is zero.
static const char *formula_of(Run *run, Bytes b) {
    if (b.divided == 0) return page_text(run, "%g", b.whole);
    if (b.whole == 0) return page_text(run, "%g/N", b.divided);
    return page_text(run, "%g + %g/N", b.whole, b.divided);
}
// In fp32 weights have 4 bytes, gradients 4, m and v 8. In 16 bits weights have 2 bytes, gradients
// 2, and m, v and a copy of the weights in fp32 have 12. `published` is table I of Rajbhandari et
// al. 2020, in GB of 10^9 bytes, for 7.5e9 parameters on 64 ranks in 16 bits.
static const struct {
    const char *stage;
    Bytes fp32, half;
    double published;
} row[] = {
    { "data parallel", { 16, 0 }, { 16, 0 }, 120 },
    { "ZeRO-1", { 8, 8 }, { 4, 12 }, 31.4 },
    { "ZeRO-2", { 4, 12 }, { 2, 14 }, 16.6 },
    { "ZeRO-3", { 0, 16 }, { 0, 16 }, 1.88 },
};

static void table(Run *run) {
    say(run, "Bytes per parameter between steps on N ranks. fp32: weights 4, gradients 4, m and v "
             "8.\n"
             "16-bit: weights 2, gradients 2, and 12 for m, v and a copy of the weights in fp32.\n"
             "GB: all bytes per rank for 7.5e9 parameters on 64 ranks, 16-bit; published: the ZeRO "
             "paper, table I.\n"
             "                 fp32                         16-bit\n"
             "                 formula     N = 4   N = 64   formula     N = 4   N = 64       GB  "
             "published");
    for (size_t s = 0; s < 4; s++) {
        const Bytes fp32 = row[s].fp32, half = row[s].half;
        const double computed = 7.5 * on_ranks(half, 64);
        say(run, "  %-13s  %-10s %6.3f %8.3f   %-10s %6.3f %8.3f %8.3f  %9g", row[s].stage,
            formula_of(run, fp32), on_ranks(fp32, 4), on_ranks(fp32, 64), formula_of(run, half),
            on_ranks(half, 4), on_ranks(half, 64), computed, row[s].published);
        // The paper prints three digits.
        check_numbers(run, "ZeRO table I, 7.5B, N = 64", row[s].stage, &computed, &row[s].published,
                      1, 3e-3);
    }
}

static void by_hand(Run *run) {
    REQUIRE(run->world->size == 1,
            "one process holds all four imagined ranks: start it with one rank (NP=1, or "
            "--emulate 1)");
    update_by_hand(run);
    table(run);
}

static const Option options[] = {
    REALS_ONLY("this lesson computes with plain C arrays, whose elements are reals"),
    { 0 },
};
EXPERIMENT(by_hand, options);
