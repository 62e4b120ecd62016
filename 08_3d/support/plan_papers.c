// plan_papers.c: see plan_papers.h. What the papers do not give is assumed here, and said.
#include "08_3d/support/plan_papers.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "08_3d/plan.h"

static const PlanModel *model_named(const char *name) {
    const PlanModel *m = plan_models;
    while (strcmp(m->name, name)) m++;
    return m;
}
// Some kind of a DGX A100 for a model.
static PlanTask task_of(PlanModel model, size_t gpus) {
    return (PlanTask){ .model = model, .cluster = plan_clusters[0], .format = plan_formats[0], .gpus = gpus };
}
// Does x, rounded or cut, stand there? "41.3" stands for anything that is less than 0.1 away.
static bool printed_as(double x, const char *text) {
    const char *point = strchr(text, '.');
    double unit = point ? pow(10, -(double)strlen(point + 1)) : 1;
    return fabs(x - strtod(text, NULL)) < unit * 1.000001;
}
static bool within(double x, double want, double share) { return fabs(x / want - 1) <= share; }

// ---------------------------------------------------------------- ZeRO

static void zero_tables(Run *run) {
    static const struct { double billions; const char *cell[6][3]; } table1[] = {      // N = 1, 4, ..., 1024
        { 7.5, { { "120", "120", "120" }, { "52.5", "41.3", "30" }, { "35.6", "21.6", "7.5" },
                 { "31.4", "16.6", "1.88" },
                 { "30.4", "15.4", "0.47" }, { "30.1", "15.1", "0.12" } } },
        { 128, { { "2048", "2048", "2048" }, { "896", "704", "512" }, { "608", "368", "128" }, { "536", "284", "32" },
                 { "518", "263", "8" }, { "513", "257", "2" } } },
        { 1000, { { "16000", "16000", "16000" }, { "7000", "5500", "4000" }, { "4750", "2875", "1000" },
                  { "4187", "2218", "250" }, { "4046", "2054", "62.5" }, { "4011", "2013", "15.6" } } },
    };
    static const char *const figure1[4] = { "120", "31.4", "16.6", "1.88" };           // 7.5 billion, N = 64
    static const double table2[4][5] = { { 2, 4, 8, 16, 32 }, { 7.6, 15.2, 30.4, 60.8, 121.6 },
                                         { 14.4, 28.8, 57.6, 115.2, 230.4 }, { 128, 256, 512, 1000, 2000 } };
    const PlanFormat *f = &plan_formats[0];
    bool holds = true;
    for (size_t zero = 0; zero < 4; zero++) holds &= printed_as(7.5 * plan_parameter_bytes(f, zero, 64), figure1[zero]);
    check_true(run, "ZeRO figure 1", "7.5 billion parameters over 64 GPUs, as printed", holds);
    holds = true;
    for (size_t m = 0; m < 3; m++)
        for (size_t i = 0; i < 6; i++)
            for (size_t zero = 1; zero < 4; zero++)
                holds &= printed_as(table1[m].billions * plan_parameter_bytes(f, zero, pow(4, (double)i)),
                                    table1[m].cell[i][zero - 1]);
    check_true(run, "ZeRO table I", "54 figures, as printed", holds);
    holds = true;                                  // the paper multiplies its rounded first row
    for (size_t zero = 0; zero < 4; zero++)
        for (size_t i = 0; i < 5; i++)
            holds &= within(32 * pow(2, (double)i) / plan_parameter_bytes(f, zero, 64), table2[zero][i], 0.025);
    check_true(run, "ZeRO table II", "largest models in 32 GB: 20 figures within 2.5 %", holds);
    // The same of a model with its units; stages 0 and 1 have the tied table's gradient twice.
    PlanTask t = task_of(*model_named("ptdp-7.5b"), 64);
    double parameters = (double)config_parameters(&t.model.model);
    holds = true;
    for (size_t zero = 0; zero < 4; zero++) {
        PlanLayout l = { .n = { 64, 1, 1, 0 }, .micro_batch = 1, .chunks = 1, .zero = zero };
        PlanStage s = plan_stage(&t, &l, 0, 0);
        PlanMemory m = plan_state(&t, &l, &s);
        m.bytes[PLAN_GATHERED] = 0;
        holds &= within(plan_memory_sum(&m) / parameters, plan_parameter_bytes(f, zero, 64), 0.015);
    }
    check_true(run, "ZeRO figure 1", "PTD-P's model of 7.5 billion, unit by unit: within 1.5 %", holds);
}

// ---------------------------------------------------------------- PTD-P

// Table 1. TFLOP/s of a GPU count full recomputation, as the paper's F does. The paper gives neither micro-batches nor
// chunks: assumed are b and v as here, full recomputation, no ZeRO, no overlap.
static const struct { const char *model, *billions; size_t tp, pp, gpus, b, v; double teraflops; } table1[] = {
    { "ptdp-1.7b", "1.65", 1, 1, 32, 8, 1, 137 }, { "ptdp-3.6b", "3.56", 2, 1, 64, 8, 1, 138 },
    { "ptdp-7.5b", "7.47", 4, 1, 128, 8, 1, 142 }, { "ptdp-18b", "18.45", 8, 1, 256, 8, 1, 135 },
    { "ptdp-39b", "39.10", 8, 2, 512, 4, 2, 138 }, { "ptdp-76b", "76.05", 8, 4, 1024, 2, 3, 140 },
    { "ptdp-145b", "145.62", 8, 8, 1536, 2, 2, 148 }, { "ptdp-310b", "310.13", 8, 16, 1920, 1, 3, 155 },
    { "ptdp-530b", "529.60", 8, 35, 2520, 1, 3, 163 }, { "ptdp-1t", "1008.04", 8, 64, 3072, 1, 2, 163 },
};
enum { TABLE1 = sizeof table1 / sizeof *table1 };

static double teraflops(const PlanTask *t, const PlanResult *r) { return r->hfu * t->cluster.flops * 1e-12; }
static PlanResult planned(const PlanTask *t, size_t tp, size_t pp, size_t b, size_t v) {
    PlanLayout l = { .n = { t->gpus / (tp * pp), tp, pp, 0 }, .micro_batch = b, .chunks = v,
                    .recompute = RECOMPUTE_FULL };
    return plan_layout(t, &l);
}

static void ptdp_table(Run *run) {
    bool sizes = true, speeds = true, fits = true;
    double got[TABLE1], want[TABLE1];
    for (size_t i = 0; i < TABLE1; i++) {
        PlanTask t = task_of(*model_named(table1[i].model), table1[i].gpus);
        double P = 1e-9 * (double)config_parameters(&t.model.model);
        PlanResult r = planned(&t, table1[i].tp, table1[i].pp, table1[i].b, table1[i].v);
        double speed = teraflops(&t, &r);
        say_detail(run, "PTD-P table 1: %7.2f billion, b %zu, v %zu: %5.1f TFLOP/s per GPU, printed %3.0f (%+.1f %%), "
                   "%.1f GB", P,
                   table1[i].b, table1[i].v, speed, table1[i].teraflops, 100 * (speed / table1[i].teraflops - 1),
                   1e-9 * plan_memory_sum(&r.fullest));
        sizes &= printed_as(P, table1[i].billions);
        got[i] = P;
        want[i] = strtod(table1[i].billions, NULL);
        speeds &= within(speed, table1[i].teraflops, 0.15);
        fits &= r.fits;
    }
    check_numbers(run, "PTD-P table 1", "sizes", got, want, TABLE1, 1e-5);
    check_true(run, "PTD-P table 1", "sizes of ten models, to 10 million parameters", sizes);
    check_true(run, "PTD-P table 1", "speed of ten models within 15 %, one efficiency for all", speeds);
    check_true(run, "PTD-P table 1", "all ten fit 80 GB", fits);
    // Section 5.1: 8 T P / (n X) seconds.
    double days[2] = { 8 * 300e9 * 175e9 / (1024 * 140e12) / 86400, 8 * 450e9 * 1008e9 / (3072 * 163e12) / 86400 };
    PlanTask t = task_of(*model_named("gpt3-175b"), 1024);
    PlanResult r = planned(&t, 8, 8, 1, 4);
    double mine = r.step * 1e-12 * 300e9 / (double)(t.model.batch * t.model.model.context) / 86400;
    say_detail(run, "PTD-P section 5.1: %.1f and %.1f days; the plan's step makes it %.1f days for GPT-3", days[0],
               days[1], mine);
    check_true(run, "PTD-P section 5.1", "34 and 84 days by its formula",
               printed_as(days[0], "34") && printed_as(days[1], "84"));
    check_true(run, "PTD-P section 5.1", "GPT-3 in 34 days by the plan's step, within 15 %", within(mine, 34, 0.15));
}

// Its figures 13 to 16: 64 GPUs. Sizes from the text; of figure 16 only 91 billion is given: 32 blocks assumed.
#define GPT(L, h, a) { .layers = L, .width = h, .heads = a, .context = 2048, .vocab = 51200, .dropout = 0.1 }
static const ModelConfig model_162b = GPT(32, 20480, 128), model_6b = GPT(32, 3840, 32);
static const ModelConfig model_91b = GPT(32, 15360, 128);

// tflops of layouts (tp[i], pp[i]) at one micro-batch size.
static void speeds(const ModelConfig *m, size_t batch, size_t n, const size_t *tp, const size_t *pp, const size_t *b,
                   double *speed) {
    PlanTask t = task_of((PlanModel){ "", *m, batch, "" }, 64);
    for (size_t i = 0; i < n; i++) {
        PlanResult r = planned(&t, tp[i], pp[i], b[i], 1);
        speed[i] = teraflops(&t, &r);
    }
}
static void say_speeds(Run *run, const char *what, size_t batch, size_t n, const double *speed) {
    char line[200];
    size_t at = (size_t)snprintf(line, sizeof line, "%s, batch %zu:", what, batch);
    for (size_t i = 0; i < n; i++) at += (size_t)snprintf(line + at, sizeof line - at, " %.1f", speed[i]);
    say_detail(run, "%s TFLOP/s per GPU", line);
}
// Rising to `top`, falling from there.
static bool peaks_at(const double *x, size_t n, size_t top) {
    for (size_t i = 1; i < n; i++)
        if (i <= top ? x[i] <= x[i - 1] : x[i] >= x[i - 1]) return false;
    return true;
}
static void ptdp_figures(Run *run) {
    const size_t up[] = { 2, 4, 8, 16, 32 }, down[] = { 32, 16, 8, 4, 2 }, ones[] = { 1, 1, 1, 1, 1 };
    const size_t eights[] = { 8, 8, 8, 8 }, b[] = { 1, 2, 4, 8 };
    const size_t batches[] = { 32, 128, 512 };
    double x[5];
    bool f13 = true, f14 = true, f15 = true, f16 = true;
    for (size_t i = 0; i < 3; i++) {
        size_t batch = batches[i];
        if (batch < 512) {
            speeds(&model_162b, batch, 5, down, up, ones, x);              // pp 2 to 32
            say_speeds(run, "PTD-P figure 13, pp 2 to 32, tp 32 to 2", batch, 5, x);
            f13 &= peaks_at(x, 5, 2);
        }
        if (batch == 512) {                        // with less the sum over dp is most of a step: it is not hidden here
            speeds(&model_6b, batch, 5, ones, up, ones, x);
            say_speeds(run, "PTD-P figure 14, pp 2 to 32, dp 32 to 2", batch, 5, x);
            f14 &= peaks_at(x, 5, 0);
            speeds(&model_6b, batch, 5, up, ones, ones, x);
            say_speeds(run, "PTD-P figure 15, tp 2 to 32, dp 32 to 2", batch, 5, x);
            f15 &= peaks_at(x, 5, 0);
        }
        if (batch == 32) continue;
        speeds(&model_91b, batch, 4, eights, eights, b, x);
        say_speeds(run, "PTD-P figure 16, tp 8, pp 8, micro-batches of 1, 2, 4, 8", batch, 4, x);
        f16 &= peaks_at(x, 4, 1);
    }
    check_true(run, "PTD-P figure 13", "162 billion: tp 8 x pp 8 first, falling to both sides", f13);
    check_true(run, "PTD-P figure 14", "5.9 billion, batch 512: more pp is slower than more dp", f14);
    check_true(run, "PTD-P figure 15", "5.9 billion, batch 512: more tp is slower than more dp", f15);
    check_true(run, "PTD-P figure 16", "91 billion: micro-batches of 2 first", f16);
}

// ---------------------------------------------------------------- Korthikanti

// Tables 3 and 5: seconds of a step, MFU and HFU in percent, as printed. 22B: 41.5 is printed; 41.7 follows from the
// rounded 1.10 s. HFU: its equation 8 counts the repeated scores three times; own: by the text, once.
static const struct { ModelConfig model; size_t pp, gpus, batch; double seconds, mfu, hfu, own; } table5[] = {
    { GPT(48, 6144, 64), 1, 8, 4, 1.10, 41.7, 43.9, 42.5 }, { GPT(96, 12288, 96), 8, 64, 64, 13.75, 51.4, 52.8, 51.8 },
    { GPT(105, 20480, 128), 35, 280, 280, 37.83, 56.0, 57.0, 56.4 },
    { GPT(128, 25600, 160), 64, 512, 512, 71.49, 56.3, 57.0, 56.5 },
    { GPT(105, 20480, 128), 35, 2240, 2240, 39.15, 54.2, 0, 0 },
};

static void korthikanti(Run *run) {
    // Figure 7: memory of a block with tp 8, sequence parallelism, selective recomputation, both, full: % of tp alone.
    static const struct { const char *name; ModelConfig model; const char *percent[4]; } figure7[] = {
        { "22B", GPT(48, 6144, 64), { "66.8", "49.4", "16.1", "7.6" } },
        { "175B", GPT(96, 12288, 96), { "62.0", "56.5", "18.5", "8.7" } },
        { "530B", GPT(105, 20480, 128), { "58.3", "61.9", "20.2", "9.5" } },
        { "1T", GPT(128, 25600, 160), { "58.3", "61.9", "20.2", "9.5" } },
    };
    bool figure = true, mfu = true, hfu = true, speed = true;
    for (size_t i = 0; i < 4; i++) {
        PlanTask t = task_of((PlanModel){ "", figure7[i].model, 1, "" }, 8);
        CutSizes plain = cut_sizes(&t.model.model, 8, 0), sequence = cut_sequence(plain, false);
        // The block's input, which the plan counts between layers.
        double sbh = (double)(plain.T * plain.C * t.format.element), row = sbh / 8;
        double tp = plan_block_bytes(&t, &plain, 1, false) + sbh, tp_scores = plan_block_bytes(&t, &plain, 1, true);
        double sp = plan_block_bytes(&t, &sequence, 1, false) + row;
        double sp_scores = plan_block_bytes(&t, &sequence, 1, true);
        const double is[4] = { sp, tp - tp_scores, sp - sp_scores, sbh };
        for (size_t k = 0; k < 4; k++) figure &= printed_as(100 * is[k] / tp, figure7[i].percent[k]);
    }
    for (size_t i = 0; i < sizeof table5 / sizeof *table5; i++) {
        PlanTask t = task_of((PlanModel){ "", table5[i].model, table5[i].batch, "" }, table5[i].gpus);
        const ModelConfig *m = &t.model.model;
        CutSizes z = cut_sizes(m, 1, 0);
        double B = (double)table5[i].batch, peak = (double)t.gpus * t.cluster.flops * table5[i].seconds;
        double model = 3 * work_stage(&z, 1).flops * B, scores = 2 * (double)m->layers * work_scores(&z, 1).flops * B;
        mfu &= within(100 * model / peak, table5[i].mfu, 0.002);
        if (table5[i].hfu > 0)
            hfu &= within(100 * (model + 3 * scores) / peak, table5[i].hfu, 0.004) &&
                   within(100 * (model + scores) / peak, table5[i].own, 0.004);
        // With sequence parallelism and selective recomputation; v 3, 3 and 2 and b 1 assumed, of 22B b 4.
        PlanLayout l = { .n = { table5[i].gpus / (8 * table5[i].pp), 8, table5[i].pp, 0 }, .sequence = true,
                         .micro_batch = i ? 1 : 4, .chunks = i == 0 ? 1 : i == 3 ? 2 : 3,
                         .recompute = RECOMPUTE_SELECTIVE };
        PlanResult r = plan_layout(&t, &l);
        say_detail(run, "Korthikanti table 5: %zu GPUs: MFU %.1f %%, HFU %.1f %% by its equation 8, %.1f %% by its "
                   "text; step %.2f "
                   "s, printed %.2f (%+.1f %%)", t.gpus, 100 * model / peak, 100 * (model + 3 * scores) / peak,
                   100 * (model + scores) / peak, r.step * 1e-12, table5[i].seconds,
                   100 * (r.step * 1e-12 / table5[i].seconds - 1));
        speed &= within(r.step * 1e-12, table5[i].seconds, 0.15);
    }
    check_true(run, "Korthikanti figure 7", "memory of a block in 16 ways, as printed", figure);
    check_true(run, "Korthikanti table 5", "MFU of five runs from their seconds", mfu);
    check_true(run, "Korthikanti table 5", "HFU by equation 8, and by the text, within 0.4 %", hfu);
    check_true(run, "Korthikanti table 5", "seconds of five runs within 15 %", speed);
}

void plan_papers(Run *run) {
    zero_tables(run);
    ptdp_table(run);
    ptdp_figures(run);
    korthikanti(run);
}
