// 08_power_sgd.c: runs trainings whose gradients are summed as matrices of rank 2. N ranks must get
// the bits of the same rule on one device. The model must learn a text. Bytes, calls and memory are
// compared with formulas. tests/exact-sums.t tests that nothing is lost, and that a sum of rank 2
// is exact.
#include "01_data_parallel/experiments/experiments.h"

enum { SEQUENCES = 7, STEPS = 3, RANK = 2, MIN_RATE = 2 };
static const ModelConfig tiny = {
    .layers = 2, .width = 24, .heads = 3, .context = 12, .vocab = 61, .dropout = 0.1
};
static const CompressionPlan rank_2 = { .method = POWER_SGD, .rank = RANK, .min_rate = MIN_RATE };
static const CompressionPlan forgets = {
    .method = POWER_SGD, .rank = RANK, .min_rate = MIN_RATE, .forgets = true
};

typedef enum { EXACT, RANK_2, FORGETS, CURVES } Course;

// Checks the losses, in nats per byte. The exact training's loss falls by 2.5. PowerSGD must end
// less than a tenth of this number above the exact loss.
static void check_learning(Run *run, double last[CURVES]) {
    const Curve curve[CURVES] = { { "exact", NULL, false },
                                  { "PowerSGD", &rank_2, false },
                                  { "PowerSGD, forgets", &forgets, false } };
    compression_curves(run, curve, CURVES, last);
    check_true(run, "trained on text", "PowerSGD", last[RANK_2] < last[EXACT] + 0.25);
}

static void table(Run *run, const CompressionSeen seen[2], const double last[CURVES]) {
    Result rows[] = {
        { "sent per rank and step", "2(N-1)/N of (a + b) r e, and of vectors", { 0 } },
        { "calls per step", "2 tables x 2, 2 blocks x 3, last norm 1", { 0 } },
        { "step", "computing + products of P and Q + sums", { 0 } },
        { "loss of another model, on a text",
          page_text(run, "after %d steps", COMPRESSION_LONG),
          { 0 } },
        { "loss without the residual",
          "dropped in each step",
          { "=-", page_text(run, "=%.2f", last[FORGETS]) } },
        { 0 }
    };
    for (Course i = EXACT; i <= RANK_2; i++) {
        rows[0].cell[i] = compression_sent(run, &seen[i], &seen[EXACT]);
        rows[1].cell[i] = page_text(run, "=%.0f", seen[i].calls);
        rows[2].cell[i] = page_text(run, "=%.2f ms", seen[i].step * 1e-9);
        rows[3].cell[i] = page_text(run, "=%.2f", last[i]);
    }
    results(run, (const char *const[]){ "exact", "PowerSGD", NULL }, rows);
}

static void answer(Run *run, const CompressionSeen seen[2], const double last[CURVES]) {
    if (seen[EXACT].sent == 0)
        say_answer(run,
                   "One rank sends nothing. With rank %d alone the loss is %.2f after %d steps, "
                   "exact %.2f.",
                   RANK, last[RANK_2], COMPRESSION_LONG, last[EXACT]);
    else
        say_answer(
            run,
            "Yes. Matrices with %d columns, and the vectors, are %.0f %% of the bytes. After %d "
            "steps the loss is %.2f, with the exact sum %.2f. Ranks can add the matrices, so their "
            "share of the bytes is the same for any number of ranks. Top-k's share (01.06) grows.",
            RANK, compression_share(&seen[RANK_2], &seen[EXACT]), COMPRESSION_LONG, last[RANK_2],
            last[EXACT]);
    say_cost(run,
             "a residual of %s per rank, %.0f calls per step instead of %.0f, and three products "
             "per matrix. Without the residual the loss ends %.2f higher.",
             value_text(run, (double)(config_parameters(&tiny) * sizeof(real)), "bytes"),
             seen[RANK_2].calls, seen[EXACT].calls, last[FORGETS] - last[RANK_2]);
    say_use_when(run, "the link is slow, matrices are large (the share of bytes falls with the "
                      "width), and memory has room for the residual.");
}

static void power_sgd(Run *run) {
    Training t = synthetic_training(run, &tiny, STEPS, SEQUENCES);
    CompressionSeen seen[2];
    double last[CURVES];
    compression_check_rule(run, &t, &rank_2, &seen[RANK_2]);
    compression_show_steps(run, &t, &rank_2,
                           "A step with the exact all-reduce, then one with PowerSGD");
    Trajectory plain = compression_train(run, &t, NULL, &seen[EXACT]);
    trajectory_free(&plain);
    check_learning(run, last);
    say(run,
        "\nThe gradient G [a, b] of a matrix is sent as P [a, r] and Q [b, r], here with r = %d "
        "columns:\n(a + b) r numbers instead of a b. P Q^T replaces the sum of G. Each step: the "
        "columns of the last Q\nare made orthonormal (length 1, at right angles). P = G Q; "
        "all-reduce of P. P is made orthonormal,\ntoo. Q = G^T P; all-reduce of Q. Vectors "
        "(biases and gains) are sent whole. To its next G a rank\nadds the residual G - P Q^T / "
        "N. Products with P and Q are drawn as idle. N ranks, e bytes each.%s\n",
        RANK, uneven_shares(run, "\n", SEQUENCES));
    table(run, seen, last);
    answer(run, seen, last);
    data_free(&t.data);
}

EXPERIMENT(power_sgd, compression_options);
