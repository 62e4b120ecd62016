// plan_ptdp.c: compares the plan with the tables and figures of PTD-P (arXiv 2104.04473).
#include "08_3d/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>

// Table 1. TFLOP/s of a GPU count full recomputation, as the paper's F does. The paper gives
// neither micro-batches nor chunks. b and v are from the authors' scripts in Megatron-LM:
// examples/sc21/run_table_1.sh, and for the figures run_figure_13.sh to run_figure_16.sh
// (github.com/NVIDIA/Megatron-LM). No overlap is assumed.
static const struct {
    const char *model, *billions;
    size_t tp, pp, gpus, b, v;
    double teraflops;
} table1[] = {
    { "ptdp-1.7b", "1.65", 1, 1, 32, 16, 1, 137 },
    { "ptdp-3.6b", "3.56", 2, 1, 64, 16, 1, 138 },
    { "ptdp-7.5b", "7.47", 4, 1, 128, 16, 1, 142 },
    { "ptdp-18b", "18.45", 8, 1, 256, 8, 1, 135 },
    { "ptdp-39b", "39.10", 8, 2, 512, 4, 1, 138 },
    { "ptdp-76b", "76.05", 8, 4, 1024, 2, 3, 140 },
    { "ptdp-145b", "145.62", 8, 8, 1536, 2, 2, 148 },
    { "ptdp-310b", "310.13", 8, 16, 1920, 1, 2, 155 },
    { "ptdp-530b", "529.60", 8, 35, 2520, 1, 3, 163 },
    { "ptdp-1t", "1008.04", 8, 64, 3072, 1, 1, 163 },
};
enum { TABLE1 = sizeof table1 / sizeof *table1 };

static double teraflops(const PlanTask *t, const PlanResult *r) {
    return r->hfu * t->cluster.flops * 1e-12;
}
static PlanResult planned(const PlanTask *t, size_t tp, size_t pp, size_t b, size_t v) {
    PlanLayout l = { .n = { t->gpus / (tp * pp), tp, pp, 0 },
                     .micro_batch = b,
                     .chunks = v,
                     .recompute = RECOMPUTE_FULL };
    return plan_layout(t, &l);
}

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
static bool ptdp_speeds(Run *run, bool *fit) {
    bool holds = true;
    for (size_t i = 0; i < TABLE1; i++) {
        PlanTask t = paper_task(*paper_model(table1[i].model), table1[i].gpus);
        PlanResult r = planned(&t, table1[i].tp, table1[i].pp, table1[i].b, table1[i].v);
        double speed = teraflops(&t, &r);
        say_detail(run,
                   "PTD-P table 1: %7s billion, b %zu, v %zu: %5.1f TFLOP/s per GPU, printed %3.0f "
                   "(%+.1f %%), %.1f GB",
                   table1[i].billions, table1[i].b, table1[i].v, speed, table1[i].teraflops,
                   100 * (speed / table1[i].teraflops - 1), 1e-9 * plan_memory_sum(&r.fullest));
        holds &= paper_within(speed, table1[i].teraflops, 0.15);
        *fit &= r.fits;
    }
    return holds;
}
// Section 5.1: 8 T P / (n X) seconds.
static bool ptdp_days(void) {
    double days[2] = { 8 * 300e9 * 175e9 / (1024 * 140e12) / 86400,
                       8 * 450e9 * 1008e9 / (3072 * 163e12) / 86400 };
    return paper_printed(days[0], "34") && paper_printed(days[1], "84");
}
static bool ptdp_days_planned(Run *run) {
    const struct {
        const char *model;
        size_t gpus, pp, v;
        double tokens, days;
    } of[] = { { "gpt3-175b", 1024, 8, 4, 300e9, 34 }, { "ptdp-1t", 3072, 64, 1, 450e9, 84 } };
    bool holds = true;
    for (size_t i = 0; i < 2; i++) {
        PlanTask t = paper_task(*paper_model(of[i].model), of[i].gpus);
        PlanResult r = planned(&t, 8, of[i].pp, 1, of[i].v);
        double steps = of[i].tokens / (double)(t.model.batch * t.model.model.context);
        double days = r.step * 1e-12 * steps / 86400;
        say_detail(run, "PTD-P section 5.1: %s takes %.1f days by the plan's step, printed %.0f",
                   of[i].model, days, of[i].days);
        holds &= paper_within(days, of[i].days, 0.15);
    }
    return holds;
}

// Figures 13 to 16 of PTD-P, on 64 GPUs. The sizes are from the text; those of the 91 billion of
// figure 16 are from its script.
static const ModelConfig model_162b = PAPER_GPT(32, 20480, 128), model_6b = PAPER_GPT(32, 3840, 32);
static const ModelConfig model_91b = PAPER_GPT(32, 15360, 128);

// tflops of layouts (tp[i], pp[i]) at one micro-batch size.
static void speeds(const ModelConfig *m, size_t batch, size_t n, const size_t *tp, const size_t *pp,
                   const size_t *b, double *speed) {
    PlanTask t = paper_task((PlanModel){ "", *m, batch, "" }, 64);
    for (size_t i = 0; i < n; i++) {
        PlanResult r = planned(&t, tp[i], pp[i], b[i], 1);
        speed[i] = teraflops(&t, &r);
    }
}
static void say_speeds(Run *run, const char *what, size_t batch, size_t n, const double *speed) {
    char line[200];
    size_t at = (size_t)snprintf(line, sizeof line, "%s, batch %zu:", what, batch);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, " %.1f", speed[i]);
    say_detail(run, "%s TFLOP/s per GPU", line);
}
// Do the values rise up to `top` and fall from there?
static bool peaks_at(const double *x, size_t n, size_t top) {
    for (size_t i = 1; i < n; i++)
        if (i <= top ? x[i] <= x[i - 1] : x[i] >= x[i - 1]) return false;
    return true;
}
enum { FIGURES = 4 }; // 13 to 16
static void ptdp_figures(Run *run, bool holds[FIGURES]) {
    const size_t up[] = { 2, 4, 8, 16, 32 }, down[] = { 32, 16, 8, 4, 2 },
                 ones[] = { 1, 1, 1, 1, 1 };
    const size_t eights[] = { 8, 8, 8, 8 }, b[] = { 1, 2, 4, 8 };
    const size_t batches[] = { 32, 128, 512 };
    double x[5];
    for (size_t i = 0; i < 3; i++) {
        size_t batch = batches[i];
        if (batch < 512) {
            speeds(&model_162b, batch, 5, down, up, ones, x); // pp 2 to 32
            say_speeds(run, "PTD-P figure 13, pp 2 to 32, tp 32 to 2", batch, 5, x);
            holds[0] &= peaks_at(x, 5, 2);
        }
        // With smaller batches the sum over dp is most of a step, because it is not hidden here.
        if (batch == 512) {
            speeds(&model_6b, batch, 5, ones, up, ones, x);
            say_speeds(run, "PTD-P figure 14, pp 2 to 32, dp 32 to 2", batch, 5, x);
            holds[1] &= peaks_at(x, 5, 0);
            speeds(&model_6b, batch, 5, up, ones, ones, x);
            say_speeds(run, "PTD-P figure 15, tp 2 to 32, dp 32 to 2", batch, 5, x);
            holds[2] &= peaks_at(x, 5, 0);
        }
        if (batch == 32) continue;
        speeds(&model_91b, batch, 4, eights, eights, b, x);
        say_speeds(run, "PTD-P figure 16, tp 8, pp 8, micro-batches of 1, 2, 4, 8", batch, 4, x);
        holds[3] &= peaks_at(x, 4, 1);
    }
}

void plan_ptdp(Run *run) {
    const bool idle = !run->is_root; // rank 0 judges, and all get its verdict
    bool fit = true, figure[FIGURES] = { true, true, true, true };
    ptdp_sizes(run);
    check_true(run, "PTD-P table 1", "speed of ten models within 15 %, one efficiency for all",
               idle || ptdp_speeds(run, &fit));
    check_true(run, "PTD-P table 1", "all ten fit 80 GB", fit);
    check_true(run, "PTD-P section 5.1", "34 and 84 days by its formula", idle || ptdp_days());
    check_true(run, "PTD-P section 5.1", "both by the plan's steps, within 15 %",
               idle || ptdp_days_planned(run));
    if (!idle) ptdp_figures(run, figure);
    check_true(run, "PTD-P figure 13", "162 billion: tp 8 x pp 8 first, falling to both sides",
               figure[0]);
    check_true(run, "PTD-P figure 14", "5.9 billion, batch 512: more pp is slower than more dp",
               figure[1]);
    check_true(run, "PTD-P figure 15", "5.9 billion, batch 512: more tp is slower than more dp",
               figure[2]);
    check_true(run, "PTD-P figure 16", "91 billion: micro-batches of 2 first", figure[3]);
}
