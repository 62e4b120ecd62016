// plan_korthikanti.c: compares the plan with figure 7 and tables 4 and 5 of Korthikanti et al. 2022
// (arXiv 2205.05198). Where they differ, both numbers are printed.
#include "08_3d/experiments/experiments.h"

// Figure 7: memory of a block with tp 8, sequence parallelism, selective recomputation, both, full:
// % of tp alone.
static const struct {
    ModelConfig model;
    const char *percent[4];
} figure7[] = {
    { PAPER_GPT(48, 6144, 64), { "66.8", "49.4", "16.1", "7.6" } },
    { PAPER_GPT(96, 12288, 96), { "62.0", "56.5", "18.5", "8.7" } },
    { PAPER_GPT(105, 20480, 128), { "58.3", "61.9", "20.2", "9.5" } },
    { PAPER_GPT(128, 25600, 160), { "58.3", "61.9", "20.2", "9.5" } },
};
static bool memory_of_a_block(void) {
    bool holds = true;
    for (size_t i = 0; i < 4; i++) {
        PlanTask t = paper_task((PlanModel){ "", figure7[i].model, 1, "" }, 8);
        CutSizes plain = cut_sizes(&t.model.model, 8, 0), sequence = cut_sequence(plain, false);
        // The block's input, which the plan counts between layers.
        double sbh = (double)(plain.T * plain.C * t.format.element), row = sbh / 8;
        double tp = plan_block_bytes(&t, &plain, 1, false) + sbh,
               tp_scores = plan_block_bytes(&t, &plain, 1, true);
        double sp = plan_block_bytes(&t, &sequence, 1, false) + row;
        double sp_scores = plan_block_bytes(&t, &sequence, 1, true);
        const double is[4] = { sp, tp - tp_scores, sp - sp_scores, sbh };
        for (size_t k = 0; k < 4; k++)
            holds &= paper_printed(100 * is[k] / tp, figure7[i].percent[k]);
    }
    return holds;
}

// Table 4: ms of a block of the 22B model, tp 8, micro-batches of 4.
static const struct {
    const char *name;
    bool sequence;
    Recompute recompute;
    double forward, backward;
} table4[] = {
    { "no recomputation", false, RECOMPUTE_NONE, 7.7, 11.9 },
    { "sequence parallelism", true, RECOMPUTE_NONE, 7.2, 11.8 },
    { "full", false, RECOMPUTE_FULL, 7.7, 19.5 },
    { "selective", false, RECOMPUTE_SELECTIVE, 7.7, 13.2 },
    { "both", true, RECOMPUTE_SELECTIVE, 7.2, 13.1 },
};
enum { TABLE4 = sizeof table4 / sizeof *table4 };
// near: forward and backward together. The paper's baseline hides its all-reduces behind the
// gradients of weights, and this model hides nothing: backward takes up to 19 % longer here.
typedef struct {
    bool near, order;
} BlockTimes;
static BlockTimes times_of_a_block(Run *run) {
    const ModelConfig model = PAPER_GPT(48, 6144, 64);
    PlanTask t = paper_task((PlanModel){ "", model, 4, "" }, 8);
    BlockTimes holds = { true, true };
    double sum[TABLE4];
    for (size_t i = 0; i < TABLE4; i++) {
        PlanLayout l = { .n = { 1, 8, 1, 0 },
                         .micro_batch = 4,
                         .chunks = 1,
                         .sequence = table4[i].sequence,
                         .recompute = table4[i].recompute };
        PlanStage s = plan_stage(&t, &l, 0, 0);
        s.z.blocks = 1;
        s.z.first = s.z.last = false;
        PlanOp f = plan_op(&t, &l, &s, true, 4), b = plan_op(&t, &l, &s, false, 4);
        double forward = plan_op_time(&f) * 1e-9, backward = plan_op_time(&b) * 1e-9;
        double want = table4[i].forward + table4[i].backward,
               base = table4[0].forward + table4[0].backward;
        sum[i] = forward + backward;
        say_detail(run,
                   "Korthikanti table 4: %s: forward %.1f ms, printed %.1f; backward %.1f, printed "
                   "%.1f; together %+.0f %% of the first row, printed %+.0f %%",
                   table4[i].name, forward, table4[i].forward, backward, table4[i].backward,
                   100 * (sum[i] / sum[0] - 1), 100 * (want / base - 1));
        holds.near &= paper_within(sum[i], want, 0.15);
    }
    holds.order = sum[1] < sum[0] && sum[0] < sum[4] && sum[4] < sum[3] && sum[3] < sum[2];
    return holds;
}

// Table 5, with the sizes and micro-batches of table 3: seconds of a step with full recomputation,
// and with sequence parallelism and selective; MFU and HFU of the latter in percent. v 3 for 175B
// and 530B (section 6). The last row: 530B with eight replicas (section 6.3). 22B: 41.5 and 43.7
// are printed; 41.7 and 43.9 follow from the rounded 1.10 s. HFU: its equation 8 counts the
// repeated scores three times; own: by its text, once.
static const struct {
    ModelConfig model;
    size_t pp, gpus, batch, b, v;
    double full, seconds, mfu, hfu, own;
} table5[] = {
    { PAPER_GPT(48, 6144, 64), 1, 8, 4, 4, 1, 1.42, 1.10, 41.7, 43.9, 42.5 },
    { PAPER_GPT(96, 12288, 96), 8, 64, 64, 1, 3, 18.13, 13.75, 51.4, 52.8, 51.8 },
    { PAPER_GPT(105, 20480, 128), 35, 280, 280, 1, 3, 49.05, 37.83, 56.0, 57.0, 56.4 },
    { PAPER_GPT(128, 25600, 160), 64, 512, 512, 1, 1, 94.42, 71.49, 56.3, 57.0, 56.5 },
    { PAPER_GPT(105, 20480, 128), 35, 2240, 2240, 1, 3, 0, 39.15, 54.2, 0, 0 },
};
typedef struct {
    bool mfu, hfu, seconds;
} Runs;
static double seconds(const PlanTask *t, size_t i, bool full) {
    PlanLayout l = { .n = { t->gpus / (8 * table5[i].pp), 8, table5[i].pp, 0 },
                     .micro_batch = table5[i].b,
                     .chunks = table5[i].v,
                     .sequence = !full,
                     .recompute = full ? RECOMPUTE_FULL : RECOMPUTE_SELECTIVE };
    return plan_layout(t, &l).step * 1e-12;
}
static Runs runs(Run *run) {
    Runs holds = { true, true, true };
    for (size_t i = 0; i < sizeof table5 / sizeof *table5; i++) {
        PlanTask t =
            paper_task((PlanModel){ "", table5[i].model, table5[i].batch, "" }, table5[i].gpus);
        const ModelConfig *m = &t.model.model;
        CutSizes z = cut_sizes(m, 1, 0);
        double B = (double)table5[i].batch,
               peak = (double)t.gpus * t.cluster.flops * table5[i].seconds;
        double model = 3 * work_stage(&z, 1).flops * B,
               scores = 2 * (double)m->layers * work_scores(&z, 1).flops * B;
        double step = seconds(&t, i, false), full = table5[i].full > 0 ? seconds(&t, i, true) : 0;
        say_detail(run,
                   "Korthikanti table 5: %zu GPUs: MFU %.1f %%, HFU %.1f %% by its equation 8, "
                   "%.1f %% by its text; step %.2f s, printed %.2f (%+.1f %%)",
                   t.gpus, 100 * model / peak, 100 * (model + 3 * scores) / peak,
                   100 * (model + scores) / peak, step, table5[i].seconds,
                   100 * (step / table5[i].seconds - 1));
        holds.mfu &= paper_within(100 * model / peak, table5[i].mfu, 0.002);
        if (table5[i].hfu > 0)
            holds.hfu &= paper_within(100 * (model + 3 * scores) / peak, table5[i].hfu, 0.004) &&
                         paper_within(100 * (model + scores) / peak, table5[i].own, 0.004);
        holds.seconds &= paper_within(step, table5[i].seconds, 0.15);
        if (full == 0) continue;
        say_detail(run, "  with full recomputation %.2f s, printed %.2f (%+.1f %%)", full,
                   table5[i].full, 100 * (full / table5[i].full - 1));
        holds.seconds &= paper_within(full, table5[i].full, 0.15);
    }
    return holds;
}

void plan_korthikanti(Run *run) {
    const bool idle = !run->is_root;
    BlockTimes block = { true, true };
    Runs of = { true, true, true };
    if (!idle) {
        block = times_of_a_block(run);
        of = runs(run);
    }
    check_true(run, "Korthikanti figure 7", "memory of a block in 16 ways, as printed",
               idle || memory_of_a_block());
    check_true(run, "Korthikanti table 4", "time of a block in five ways, within 15 %", block.near);
    check_true(run, "Korthikanti table 4",
               "sequence parallelism saves; both, selective, full cost more and more", block.order);
    check_true(run, "Korthikanti table 5", "MFU of five runs from their seconds", of.mfu);
    check_true(run, "Korthikanti table 5", "HFU by equation 8, and by the text, within 0.4 %",
               of.hfu);
    check_true(run, "Korthikanti table 5", "seconds of nine runs within 15 %", of.seconds);
}
