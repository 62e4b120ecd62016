// test_plan_papers.c: compares the plan (08_3d/plan.h) with figures of two papers: PTD-P (arXiv
// 2104.04473) and Korthikanti et al. 2022 (arXiv 2205.05198). Also compares ring attention with its
// closed form, and checks that the constants of the A100 and the H100 fit the published steps best.
// The figures of PTD-P have no printed values, so the order and the sign of each difference are
// compared. Models, layouts and batches of PTD-P's figures are those of the authors' scripts in
// Megatron-LM, examples/sc21. 08_3d/experiments/published.c has the speeds of both papers' tables.
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include "08_3d/experiments/published.h"
#include "tap.h"

// ---------------------------------------------------------------- PTD-P

// Checks the training times of section 5.1: 8 T P / (n X) seconds, for T tokens, P parameters and n
// GPUs of X FLOP/s.
static bool ptdp_days(void) {
    double days[2] = { 8 * 300e9 * 175e9 / (1024 * 140e12) / 86400,
                       8 * 450e9 * 1008e9 / (3072 * 163e12) / 86400 };
    return paper_printed(days[0], "34") && paper_printed(days[1], "84");
}

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
__attribute__((format(printf, 1, 2))) static void comment(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("# ");
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
}
static void say_speeds(const char *what, size_t batch, size_t n, const double *speed) {
    char line[200];
    size_t at = (size_t)snprintf(line, sizeof line, "%s, batch %zu:", what, batch);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, " %.1f", speed[i]);
    comment("%s TFLOP/s per GPU", line);
}
// Returns whether x rises up to index `top` and falls after index `top`.
static bool peaks_at(const double *x, size_t n, size_t top) {
    for (size_t i = 1; i < n; i++)
        if (i <= top ? x[i] <= x[i - 1] : x[i] >= x[i - 1]) return false;
    return true;
}

// Checks figure 11, weak scaling of a pipeline.
static bool figure11(void) {
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
        say_speeds("PTD-P figure 11, pp 1 to 8, tp 8", batch, 4, x[large]);
        holds &= peaks_at(x[large], 4, 0);
    }
    return holds && x[1][3] / x[1][0] > x[0][3] / x[0][0];
}
// Checks figure 12, the gain of interleaved chunks. With `scattered` checks figure 18, the gain of
// scattered messages in a pipeline with chunks.
static bool figure12(bool scattered) {
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
    comment("PTD-P figure %s: gains of %.1f, %.1f, %.1f, %.1f, %.1f %% with batches of 12 to 60",
            scattered ? "18, scatter and gather" : "12, interleaved", gain[0], gain[1], gain[2],
            gain[3], gain[4]);
    return positive && (scattered || peaks_at(gain, BATCHES, 0));
}
// Checks figures 13, 14 and 15: two degrees whose product is 64.
static bool degrees(size_t figure, const ModelConfig *m, size_t batch, size_t top) {
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
    say_speeds(what, batch, 5, x);
    return peaks_at(x, 5, top);
}
static bool figure16(size_t batch) {
    double x[4];
    for (size_t i = 0; i < 4; i++) {
        Case c = {
            PAPER_GPT(32, 15360, 128), 64, batch, 8, 8, (size_t)1 << i, 1, RECOMPUTE_FULL, false
        };
        x[i] = teraflops(&c);
    }
    say_speeds("PTD-P figure 16, tp 8, pp 8, micro-batches of 1, 2, 4, 8", batch, 4, x);
    return peaks_at(x, 4, 1);
}
// Checks figure 17: sequences per second at batches of 1 to 256. In the paper batches above 8 do
// not fit without recomputation. Up to 8, full recomputation is slower by up to 33 %, and both
// lines rise with the batch. Recomputation at 256 is about twice as fast as no recomputation at 8.
// In the plan all batches fit, because a stage keeps at most pp micro-batches, with the items that
// Korthikanti lists.
static bool figure17(void) {
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
    comment(
        "PTD-P figure 17: recomputation costs %.0f %% of the speed at batch 1, %.0f %% at 8; "
        "with recomputation %.1f sequences/s at 256, %.1f times those at 8 without; kept are %.0f "
        "instead of %.0f GB",
        100 * (1 - speed[1][0] / speed[0][0]), 100 * (1 - speed[1][PLAIN_BATCHES - 1] / plain),
        best, best / plain, held[1], held[0]);
    return holds && best > plain && held[1] < held[0];
}

// ---------------------------------------------------------------- Korthikanti et al.

// Figure 7 shows the memory of a block with tp 8 and sequence parallelism, selective recomputation,
// both, or full recomputation. Numbers are % of the memory with tp alone.
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
        PlanTask t = paper_task((PlanModel){ "", figure7[i].model, 1, .source = "" }, 8);
        CutSizes plain = cut_sizes(&t.model.model, 8, 0), sequence = cut_sequence(plain, false);
        // sbh is the bytes of the block's input, which the plan counts between layers.
        double sbh = (double)(plain.T * plain.C * t.format.element), row = sbh / 8;
        double tp = plan_block_bytes(&t, &plain, 1, false) + sbh,
               tp_scores = plan_block_bytes(&t, &plain, 1, true);
        double sp = plan_block_bytes(&t, &sequence, 1, false) + row;
        double sp_scores = plan_block_bytes(&t, &sequence, 1, true);
        const double got[4] = { sp, tp - tp_scores, sp - sp_scores, sbh };
        for (size_t k = 0; k < 4; k++)
            holds &= paper_printed(100 * got[k] / tp, figure7[i].percent[k]);
    }
    return holds;
}

// Returns the time of a block's forward and backward, in ps. Table 4 of the paper gives the order
// of the choices.
static double block_time(Recompute recompute, bool sequence) {
    PlanTask t = paper_task((PlanModel){ "", PAPER_GPT(1, 6144, 64), 4, .source = "" }, 8);
    t.how.overlap.tp = true;
    PlanLayout l = { .n = { 1, 8, 1, 0 },
                     .micro_batch = 4,
                     .chunks = 1,
                     .sequence = sequence,
                     .recompute = recompute };
    PlanStage s = plan_stage(&t, &l, 0, 0);
    s.z.first = s.z.last = false;
    PlanOp f = plan_op(&t, &l, &s, true, 4), b = plan_op(&t, &l, &s, false, 4);
    return plan_op_time(&f) + plan_op_time(&b);
}
static bool order_of_a_block(void) {
    double plain = block_time(RECOMPUTE_NONE, false), both = block_time(RECOMPUTE_SELECTIVE, true),
           selective = block_time(RECOMPUTE_SELECTIVE, false),
           full = block_time(RECOMPUTE_FULL, false), sequence = block_time(RECOMPUTE_NONE, true);
    return sequence < plain && plain < both && both < selective && selective < full;
}

// Table 5 of Korthikanti et al. has the sizes of table 3, with sequence parallelism and selective
// recomputation. MFU and HFU in percent follow from the printed seconds. `hfu` follows equation 8,
// which counts the repeated scores three times. `own` counts the repeated scores once, as the
// paper's text says. In the first row the paper prints 41.5 and 43.7, because the paper rounds 1.10
// s. The last row has eight replicas (section 6.3).
static const struct {
    ModelConfig model;
    size_t gpus, batch;
    double seconds, mfu, hfu, own;
} table5[] = {
    { PAPER_GPT(48, 6144, 64), 8, 4, 1.10, 41.7, 43.9, 42.5 },
    { PAPER_GPT(96, 12288, 96), 64, 64, 13.75, 51.4, 52.8, 51.8 },
    { PAPER_GPT(105, 20480, 128), 280, 280, 37.83, 56.0, 57.0, 56.4 },
    { PAPER_GPT(128, 25600, 160), 512, 512, 71.49, 56.3, 57.0, 56.5 },
    { PAPER_GPT(105, 20480, 128), 2240, 2240, 39.15, 54.2, 0, 0 },
};
typedef struct {
    bool mfu, hfu;
} Runs;
static Runs runs(void) {
    Runs holds = { true, true };
    for (size_t i = 0; i < sizeof table5 / sizeof *table5; i++) {
        const ModelConfig *m = &table5[i].model;
        CutSizes z = cut_sizes(m, 1, 0);
        double B = (double)table5[i].batch,
               peak = (double)table5[i].gpus * plan_clusters[0].flops * table5[i].seconds;
        double model = 3 * work_stage(&z, 1).flops * B,
               scores = 2 * (double)m->layers * work_scores(&z, 1).flops * B;
        holds.mfu &= paper_within(100 * model / peak, table5[i].mfu, 0.002);
        if (table5[i].hfu == 0) continue;
        holds.hfu &= paper_within(100 * (model + 3 * scores) / peak, table5[i].hfu, 0.004) &&
                     paper_within(100 * (model + scores) / peak, table5[i].own, 0.004);
    }
    return holds;
}

// ---------------------------------------------------------------- ring attention

// Checks the closed form of 03.08. For forward and backward of a block a rank sends 6N - 4 tensors
// [B T/N, A]. With zigzag the ranks share the products of the causal mask equally. Here links and
// memory take no time.
static bool ring_closed_form(void) {
    PlanTask t = paper_task((PlanModel){ "", PAPER_GPT(96, 12288, 96), 1, .source = "" }, 1);
    t.cluster = (PlanCluster){ .flops = 1e9, .efficiency = 1 };
    const ModelConfig *m = &t.model.model;
    double all = (double)m->context * (double)m->width,
           pairs = (double)m->context * (double)(m->context + 1) / 2;
    bool holds = true;
    for (size_t n = 2; n <= 16; n *= 2) {
        PlanLayout l = { .n = { 1, 1, 1, n }, .micro_batch = 1, .chunks = 1 };
        PlanStage s = plan_chunk(&t, &l, 0, 0, 0);
        PlanRing forward = plan_ring(&t, &l, &s, true, 1),
                 backward = plan_ring(&t, &l, &s, false, 1);
        // `product` is the time in picoseconds in which one rank would compute one product of all
        // pairs.
        double N = (double)n, product = 2 * pairs * (double)m->width * 1e3;
        holds &= forward.bytes + backward.bytes == (6 * N - 4) * all / N * (double)t.format.element;
        holds &= paper_within(forward.time, 2 * product / N, 1e-9);
        holds &= paper_within(backward.time, 5 * product / N, 1e-9);
    }
    return holds;
}

// ---------------------------------------------------------------- the constants of a GPU

// Returns whether the efficiency and the bandwidth of plan_presets.c have the smallest sum of
// squared errors over the rows of the fit, which are every second row. The other efficiencies are
// 40 to 100 %. The other bandwidths are 50 to 100 % of `sheet`, the bandwidth of the data sheet.
static bool fitted(const PublishedTable *t, double sheet) {
    const PlanCluster *preset = plan_clusters;
    while (strcmp(preset->name, t->cluster) != 0) preset++;
    double least = INFINITY, own = INFINITY;
    for (int percent = 40; percent <= 100; percent += 2)
        for (int tenths = 5; tenths <= 10; tenths++) {
            PlanCluster c = *preset;
            c.efficiency = percent / 100.0;
            c.bandwidth = tenths / 10.0 * sheet;
            double sum = 0;
            for (size_t i = 0; i < t->n; i += 2) sum += pow(published_error(&t->row[i], &c), 2);
            least = fmin(least, sum);
            if (fabs(c.efficiency - preset->efficiency) < 0.001 &&
                fabs(c.bandwidth / preset->bandwidth - 1) < 0.001)
                own = sum;
        }
    return own <= least;
}

int main(void) {
    const ModelConfig model_162b = PAPER_GPT(32, 20480, 128), model_6b = PAPER_GPT(32, 3840, 32);
    bool pipes_and_slices = true, pipes = true, slices = true;
    ok(ptdp_days(), "PTD-P section 5.1: 34 and 84 days by its formula");
    ok(figure11(), "PTD-P figure 11: longer pipelines lose, with batch 128 less than with 8");
    ok(figure12(false), "PTD-P figure 12: chunks are faster, most with small batches");
    for (size_t batch = 32; batch <= 512; batch *= 4) {
        if (batch < 512) pipes_and_slices &= degrees(13, &model_162b, batch, 2);
        pipes &= degrees(14, &model_6b, batch, 0);
        slices &= degrees(15, &model_6b, batch, 0);
    }
    ok(pipes_and_slices, "PTD-P figure 13: tp 8 x pp 8 first, falling to both sides");
    ok(pipes, "PTD-P figure 14: more pp is slower than more dp");
    ok(slices, "PTD-P figure 15: more tp is slower than more dp");
    ok(figure16(128) && figure16(512), "PTD-P figure 16: micro-batches of 2 first");
    ok(figure17(),
       "PTD-P figure 17: recomputation is slower at 1 to 8, and faster at 256 than none at 8");
    ok(figure12(true), "PTD-P figure 18: scattered messages are faster");
    ok(memory_of_a_block(), "Korthikanti figure 7: memory of a block in 16 ways, as printed");
    ok(order_of_a_block(), "Korthikanti table 4: sequence parallelism saves; both, selective, full "
                           "cost more and more");
    const Runs of = runs();
    ok(of.mfu, "Korthikanti table 5: MFU of five runs from their seconds");
    ok(of.hfu, "Korthikanti table 5: HFU by equation 8, and by the text, within 0.4 %%");
    ok(ring_closed_form(),
       "ring attention: (6N - 4)/N of [T, C] sent, 1/N of the products, N to 16");
    ok(fitted(&published[PUBLISHED_A100], 2039e9),
       "efficiency and bandwidth of the A100 are the least squares of their rows");
    ok(fitted(&published[PUBLISHED_H100], 3352e9),
       "efficiency and bandwidth of the H100 are the least squares of their rows");
    return tap_end();
}
