// plan_ptdp.c: compares the plan with the sizes and figures of PTD-P (arXiv 2104.04473). The
// figures have no printed values, so the order and the sign of each difference are compared.
// Models, layouts and batches are those of the authors' scripts in Megatron-LM, examples/sc21.
// plan_anchors.c has the speeds of its tables.
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// Table 1.
static const struct {
    const char *model, *billions;
} table1[] = {
    { "ptdp-1.7b", "1.65" },   { "ptdp-3.6b", "3.56" },   { "ptdp-7.5b", "7.47" },
    { "ptdp-18b", "18.45" },   { "ptdp-39b", "39.10" },   { "ptdp-76b", "76.05" },
    { "ptdp-145b", "145.62" }, { "ptdp-310b", "310.13" }, { "ptdp-530b", "529.60" },
    { "ptdp-1t", "1008.04" },
};
enum { TABLE1 = sizeof table1 / sizeof *table1 };

static void ptdp_sizes(Run *run) {
    double got[TABLE1], want[TABLE1];
    bool holds = true;
    for (size_t i = 0; i < TABLE1; i++) {
        got[i] = 1e-9 * (double)config_parameters(&paper_model(table1[i].model)->model);
        want[i] = strtod(table1[i].billions, NULL);
        holds &= paper_printed(got[i], table1[i].billions);
    }
    check_numbers(run, "PTD-P table 1", "sizes", got, want, TABLE1, 1e-5);
    check_true(run, "PTD-P table 1", "sizes of ten models, to 10 million parameters", holds);
}
// Section 5.1: 8 T P / (n X) seconds.
static bool ptdp_days(void) {
    double days[2] = { 8 * 300e9 * 175e9 / (1024 * 140e12) / 86400,
                       8 * 450e9 * 1008e9 / (3072 * 163e12) / 86400 };
    return paper_printed(days[0], "34") && paper_printed(days[1], "84");
}

// One run of a figure.
typedef struct {
    ModelConfig model;
    size_t gpus, batch, tp, pp, b, v;
    Recompute recompute;
    bool unscattered;
} Case;
static PlanResult planned(const Case *c) {
    PlanTask t = paper_task((PlanModel){ "", c->model, c->batch, .source = "" }, c->gpus);
    PlanLayout l = { .n = { c->gpus / (c->tp * c->pp), c->tp, c->pp, 0 },
                     .micro_batch = c->b,
                     .chunks = c->v,
                     .recompute = c->recompute };
    t.how.scatter = !c->unscattered;
    return plan_layout(&t, &l);
}
static double teraflops(const Case *c) { return planned(c).hfu * plan_clusters[0].flops * 1e-12; }
static void say_speeds(Run *run, const char *what, size_t batch, size_t n, const double *speed) {
    char line[200];
    size_t at = (size_t)snprintf(line, sizeof line, "%s, batch %zu:", what, batch);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, " %.1f", speed[i]);
    say_detail(run, "%s TFLOP/s per GPU", line);
}
// True if x rises up to index `top` and falls after index `top`.
static bool peaks_at(const double *x, size_t n, size_t top) {
    for (size_t i = 1; i < n; i++)
        if (i <= top ? x[i] <= x[i - 1] : x[i] >= x[i - 1]) return false;
    return true;
}

// 11: weak scaling of a pipeline. Larger batches lose less.
static bool figure11(Run *run) {
    double x[2][4];
    bool holds = true;
    for (size_t large = 0; large < 2; large++) {
        size_t batch = large ? 128 : 8;
        for (size_t i = 0; i < 4; i++) {
            size_t pp = (size_t)1 << i;
            Case c = {
                PAPER_GPT(3 * pp, 20480, 128), 8 * pp, batch, 8, pp, 1, 1, RECOMPUTE_FULL, false
            };
            x[large][i] = teraflops(&c);
        }
        say_speeds(run, "PTD-P figure 11, pp 1 to 8, tp 8", batch, 4, x[large]);
        holds &= peaks_at(x[large], 4, 0);
    }
    return holds && x[1][3] / x[1][0] > x[0][3] / x[0][0];
}
// 12: chunks help, most with small batches. 18: scattered messages help a pipeline with chunks.
static bool figure12(Run *run, bool scattered) {
    enum { BATCHES = 5 };
    double gain[BATCHES];
    bool positive = true;
    for (size_t i = 0; i < BATCHES; i++) {
        Case plain = {
            PAPER_GPT(96, 12288, 96), 96, 12 + 12 * i, 8, 12, 1, 1, RECOMPUTE_FULL, false
        };
        Case other = plain;
        other.v = 4;
        if (scattered) {
            plain = other;
            plain.unscattered = true;
        }
        gain[i] = 100 * (teraflops(&other) / teraflops(&plain) - 1);
        positive &= gain[i] > 0;
    }
    say_detail(run,
               "PTD-P figure %s: gains of %.1f, %.1f, %.1f, %.1f, %.1f %% with batches of 12 to 60",
               scattered ? "18, scatter and gather" : "12, interleaved", gain[0], gain[1], gain[2],
               gain[3], gain[4]);
    return positive && (scattered || peaks_at(gain, BATCHES, 0));
}
// 13, 14, 15: two degrees whose product is 64.
static bool degrees(Run *run, size_t figure, const ModelConfig *m, size_t batch, size_t top) {
    double x[5];
    char what[64];
    snprintf(what, sizeof what, "PTD-P figure %zu, %s", figure,
             figure == 13   ? "pp 2 to 32, tp 32 to 2"
             : figure == 14 ? "pp 2 to 32, dp 32 to 2"
                            : "tp 2 to 32, dp 32 to 2");
    for (size_t i = 0; i < 5; i++) {
        size_t up = (size_t)2 << i, down = 64 / up;
        Case c = { *m,
                   64,
                   batch,
                   figure == 13   ? down
                   : figure == 14 ? 1
                                  : up,
                   figure == 15 ? 1 : up,
                   1,
                   1,
                   RECOMPUTE_FULL,
                   false };
        x[i] = teraflops(&c);
    }
    say_speeds(run, what, batch, 5, x);
    return peaks_at(x, 5, top);
}
static bool figure16(Run *run, size_t batch) {
    double x[4];
    for (size_t i = 0; i < 4; i++) {
        Case c = {
            PAPER_GPT(32, 15360, 128), 64, batch, 8, 8, (size_t)1 << i, 1, RECOMPUTE_FULL, false
        };
        x[i] = teraflops(&c);
    }
    say_speeds(run, "PTD-P figure 16, tp 8, pp 8, micro-batches of 1, 2, 4, 8", batch, 4, x);
    return peaks_at(x, 4, 1);
}
// 17: sequences per second at batches of 1 to 256, without recomputation up to 8. In the paper full
// recomputation is slower at each of these batches, by up to 33 %, and both lines rise with the
// batch. Recomputation at 256 is faster than no recomputation at 8, about twice. In the paper
// larger batches do not fit without recomputation. Here all batches fit, because a stage keeps at
// most pp micro-batches, with the items that Korthikanti lists.
static bool figure17(Run *run) {
    enum { BATCHES = 9, PLAIN_BATCHES = 4 };
    double speed[2][BATCHES], held[2] = { 0, 0 };
    bool holds = true;
    for (size_t full = 0; full < 2; full++)
        for (size_t i = 0; i < BATCHES; i++) {
            Case c = { PAPER_GPT(80, 12288, 96),
                       128,
                       (size_t)1 << i,
                       8,
                       16,
                       1,
                       1,
                       full ? RECOMPUTE_FULL : RECOMPUTE_NONE,
                       false };
            PlanResult r = planned(&c);
            speed[full][i] = (double)c.batch / (r.step * 1e-12);
            held[full] = plan_memory_sum(&r.fullest) * 1e-9;
            holds &= i == 0 || speed[full][i] > speed[full][i - 1];
        }
    for (size_t i = 0; i < PLAIN_BATCHES; i++) {
        double loss = 1 - speed[1][i] / speed[0][i];
        holds &= loss > 0 && loss <= 0.33;
    }
    const double plain = speed[0][PLAIN_BATCHES - 1], best = speed[1][BATCHES - 1];
    say_detail(
        run,
        "PTD-P figure 17: recomputation costs %.0f %% of the speed at batch 1, %.0f %% at 8; "
        "with it %.1f sequences/s at 256, %.1f times those at 8 without it; it keeps %.0f "
        "instead of %.0f GB",
        100 * (1 - speed[1][0] / speed[0][0]), 100 * (1 - speed[1][PLAIN_BATCHES - 1] / plain),
        best, best / plain, held[1], held[0]);
    return holds && best > plain && held[1] < held[0];
}

void plan_ptdp(Run *run) {
    const ModelConfig model_162b = PAPER_GPT(32, 20480, 128), model_6b = PAPER_GPT(32, 3840, 32);
    const bool idle = !run->is_root; // rank 0 judges, and all get its verdict
    bool holds[3] = { true, true, true };
    ptdp_sizes(run);
    check_true(run, "PTD-P section 5.1", "34 and 84 days by its formula", idle || ptdp_days());
    check_true(run, "PTD-P figure 11", "longer pipelines lose, with batch 128 less than with 8",
               idle || figure11(run));
    check_true(run, "PTD-P figure 12", "175 billion: chunks are faster, most with small batches",
               idle || figure12(run, false));
    for (size_t batch = 32; batch <= 512 && !idle; batch *= 4) {
        if (batch < 512) holds[0] &= degrees(run, 13, &model_162b, batch, 2);
        holds[1] &= degrees(run, 14, &model_6b, batch, 0);
        holds[2] &= degrees(run, 15, &model_6b, batch, 0);
    }
    check_true(run, "PTD-P figure 13", "162 billion: tp 8 x pp 8 first, falling to both sides",
               holds[0]);
    check_true(run, "PTD-P figure 14", "5.9 billion: more pp is slower than more dp", holds[1]);
    check_true(run, "PTD-P figure 15", "5.9 billion: more tp is slower than more dp", holds[2]);
    check_true(run, "PTD-P figure 16", "91 billion: micro-batches of 2 first",
               idle || (figure16(run, 128) && figure16(run, 512)));
    check_true(run, "PTD-P figure 17",
               "145 billion: recomputation is slower at 1 to 8, and faster at 256 than none at 8",
               idle || figure17(run));
    check_true(run, "PTD-P figure 18", "175 billion: scattered messages are faster",
               idle || figure12(run, true));
}
