// plan_papers.c compares the plan's sizes with PTD-P's table 1 (arXiv 2104.04473), and the plan's
// memory with ZeRO's figure 1 and tables I and II (arXiv 1910.02054).
#include "08_3d/experiments/experiments.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const PlanModel *paper_model(const char *name) {
    const PlanModel *m = plan_models;
    while (strcmp(m->name, name)) m++;
    return m;
}
PlanTask paper_task(PlanModel model, size_t gpus) {
    return (PlanTask){ .model = model,
                       .cluster = plan_clusters[0],
                       .format = *plan_format("mixed"),
                       .gpus = gpus,
                       .how = { .scatter = true, .trees = true } };
}
bool paper_printed(double x, const char *text) {
    const char *point = strchr(text, '.');
    double unit = point ? pow(10, -(double)strlen(point + 1)) : 1;
    return fabs(x - strtod(text, NULL)) < unit * 1.000001;
}
bool paper_within(double x, double want, double share) { return fabs(x / want - 1) <= share; }

// ---------------------------------------------------------------- PTD-P

// PTD-P, table 1.
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
// ---------------------------------------------------------------- ZeRO

// Table I of the ZeRO paper gives GB of state per GPU, for N = 1, 4, 16, ..., 1024 GPUs: cell
// [N][ZeRO stage 1 to 3].
static const struct {
    double billions;
    const char *cell[6][3];
} zero1[] = {
    { 7.5,
      { { "120", "120", "120" },
        { "52.5", "41.3", "30" },
        { "35.6", "21.6", "7.5" },
        { "31.4", "16.6", "1.88" },
        { "30.4", "15.4", "0.47" },
        { "30.1", "15.1", "0.12" } } },
    { 128,
      { { "2048", "2048", "2048" },
        { "896", "704", "512" },
        { "608", "368", "128" },
        { "536", "284", "32" },
        { "518", "263", "8" },
        { "513", "257", "2" } } },
    { 1000,
      { { "16000", "16000", "16000" },
        { "7000", "5500", "4000" },
        { "4750", "2875", "1000" },
        { "4187", "2218", "250" },
        { "4046", "2054", "62.5" },
        { "4011", "2013", "15.6" } } },
};
// Figure 1 gives GB of state per GPU for 7.5 billion parameters and 64 GPUs: [ZeRO stage].
static const char *const figure1[4] = { "120", "31.4", "16.6", "1.88" };
// Table II gives the largest models, in billions of parameters: [ZeRO stage][model parallelism 1 to
// 16].
static const double zero2[4][5] = { { 2, 4, 8, 16, 32 },
                                    { 7.6, 15.2, 30.4, 60.8, 121.6 },
                                    { 14.4, 28.8, 57.6, 115.2, 230.4 },
                                    { 128, 256, 512, 1000, 2000 } };

static bool zero_figure1(void) {
    bool holds = true;
    for (size_t zero = 0; zero < 4; zero++)
        holds &= paper_printed(7.5 * plan_parameter_bytes(plan_format("mixed"), zero, 64),
                               figure1[zero]);
    return holds;
}
static bool zero_table1(void) {
    bool holds = true;
    for (size_t m = 0; m < 3; m++)
        for (size_t i = 0; i < 6; i++)
            for (size_t zero = 1; zero < 4; zero++)
                holds &=
                    paper_printed(zero1[m].billions * plan_parameter_bytes(plan_format("mixed"),
                                                                           zero, pow(4, (double)i)),
                                  zero1[m].cell[i][zero - 1]);
    return holds;
}
// Returns whether the plan gives table II of the ZeRO paper, the largest models in 32 GB. The paper
// computes its numbers with model parallelism from the rounded numbers without model parallelism,
// so the limit is 2.5 %.
static bool zero_table2(void) {
    bool holds = true;
    for (size_t zero = 0; zero < 4; zero++)
        for (size_t i = 0; i < 5; i++)
            holds &= paper_within(32 * pow(2, (double)i) /
                                      plan_parameter_bytes(plan_format("mixed"), zero, 64),
                                  zero2[zero][i], 0.025);
    return holds;
}
// Returns whether plan_state(), which counts unit by unit, gives the bytes per parameter of
// plan_parameter_bytes(). ZeRO stages 0 and 1 hold the tied table's gradient twice, so the limit is
// 1.5 %.
static bool zero_by_units(void) {
    PlanTask t = paper_task(*paper_model("ptdp-7.5b"), 64);
    bool holds = true;
    for (size_t zero = 0; zero < 4; zero++) {
        PlanLayout l = { .n = { 64, 1, 1, 0 }, .micro_batch = 1, .chunks = 1, .zero = zero };
        PlanStage s = plan_stage(&t, &l, 0, 0);
        PlanMemory m = plan_state(&t, &l, &s);
        m.bytes[PLAN_GATHERED] = 0;
        holds &= paper_within(plan_memory_sum(&m) / (double)config_parameters(&t.model.model),
                              plan_parameter_bytes(plan_format("mixed"), zero, 64), 0.015);
    }
    return holds;
}

void plan_papers(Run *run) {
    const bool idle = !run->is_root; // rank 0 judges ZeRO's figures for all ranks
    ptdp_sizes(run);
    check_true(run, "ZeRO figure 1", "7.5 billion parameters over 64 GPUs, as printed",
               idle || zero_figure1());
    check_true(run, "ZeRO table I", "54 figures, as printed", idle || zero_table1());
    check_true(run, "ZeRO table II", "largest models in 32 GB: 20 figures within 2.5 %",
               idle || zero_table2());
    check_true(run, "ZeRO figure 1", "PTD-P's model of 7.5 billion, unit by unit: within 1.5 %",
               idle || zero_by_units());
}
