// plan_anchors.c: published step times beside those of the plan, on one table (--papers). Nothing
// is fitted per row. The constants of a GPU (plan_presets.c: efficiency, bandwidth, launch) are
// fitted to every other row of that GPU; the remaining rows are held out.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "08_3d/experiments/experiments.h"

// The quantities that papers print. STEP: seconds of a step. HARDWARE: TFLOP/s per GPU, with the
// repeated forwards. MODEL_SHARE: MFU in percent. CAUSAL_SHARE: the same, and only the part of
// attention counts that the causal mask leaves. BLOCK: ms of the forward and backward of a block.
typedef enum { STEP, HARDWARE, MODEL_SHARE, CAUSAL_SHARE, BLOCK } Printed;
typedef struct {
    const char *source, *name;
    ModelConfig model;
    size_t gpus, batch, tp, pp, cp, b, v;
    size_t zero;
    bool sequence;
    Recompute recompute;
    double value;
    Printed printed;
    bool ddp; // PyTorch's DDP, which overlaps the sum over dp
} Row;

// PTD-P table 1. The paper gives neither micro-batches nor chunks. b, v and DDP=torch (the first
// four rows) are from examples/sc21/run_table_1.sh in Megatron-LM. TFLOP/s count full
// recomputation.
#define PTDP(name, L, h, a, gpus, batch, tp, pp, b, v, value, ddp) \
    { \
        "PTD-P table 1", name, PAPER_GPT(L, h, a), gpus, batch, tp, pp, 1, b, v, 0, false, \
            RECOMPUTE_FULL, value, HARDWARE, ddp \
    }
// PTD-P table 2: model parallelism of 96 is tp 8 x pp 12, of 280 tp 8 x pp 35. No chunks are
// assumed.
#define PTDP2(name, L, h, a, gpus, batch, pp, value) \
    { \
        "PTD-P table 2", name, PAPER_GPT(L, h, a), gpus, batch, 8, pp, 1, 1, 1, 0, false, \
            RECOMPUTE_FULL, value, HARDWARE, false \
    }
// Korthikanti table 5, with the sizes and micro-batches of table 3. v 3 for 175B and 530B (section
// 6). The last row: eight replicas (section 6.3).
#define BIG(name, L, h, a, gpus, batch, pp, b, v, present, value) \
    { \
        "Korthikanti table 5", name, PAPER_GPT(L, h, a), gpus, batch, 8, pp, 1, b, v, 0, present, \
            present ? RECOMPUTE_SELECTIVE : RECOMPUTE_FULL, value, STEP, false \
    }
// Korthikanti table 4: a block of the 22B model, tp 8, micro-batches of 4.
#define ONE(name, sequence, recompute, value) \
    { \
        "Korthikanti table 4", name, PAPER_GPT(1, 6144, 64), 8, 4, 8, 1, 1, 4, 1, 0, sequence, \
            recompute, value, BLOCK, false \
    }
static const Row a100[] = {
    PTDP("1.7B", 24, 2304, 24, 32, 512, 1, 1, 16, 1, 137, true),
    PTDP("3.6B", 30, 3072, 32, 64, 512, 2, 1, 16, 1, 138, true),
    PTDP("7.5B", 36, 4096, 32, 128, 512, 4, 1, 16, 1, 142, true),
    PTDP("18B", 40, 6144, 48, 256, 1024, 8, 1, 8, 1, 135, true),
    PTDP("39B", 48, 8192, 64, 512, 1536, 8, 2, 4, 1, 138, false),
    PTDP("76B", 60, 10240, 80, 1024, 1792, 8, 4, 2, 3, 140, false),
    PTDP("145B", 80, 12288, 96, 1536, 2304, 8, 8, 2, 2, 148, false),
    PTDP("310B", 96, 16384, 128, 1920, 2160, 8, 16, 1, 2, 155, false),
    PTDP("530B", 105, 20480, 128, 2520, 2520, 8, 35, 1, 3, 163, false),
    PTDP("1T", 128, 25600, 160, 3072, 3072, 8, 64, 1, 1, 163, false),
    PTDP2("175B, 384 GPUs", 96, 12288, 96, 384, 1536, 12, 153),
    PTDP2("175B, 768 GPUs", 96, 12288, 96, 768, 1536, 12, 149),
    PTDP2("175B, 1536 GPUs", 96, 12288, 96, 1536, 1536, 12, 141),
    PTDP2("530B, 560 GPUs", 105, 20480, 128, 560, 2240, 35, 171),
    PTDP2("530B, 1120 GPUs", 105, 20480, 128, 1120, 2240, 35, 167),
    PTDP2("530B, 2240 GPUs", 105, 20480, 128, 2240, 2240, 35, 159),
    BIG("22B, full", 48, 6144, 64, 8, 4, 1, 4, 1, false, 1.42),
    BIG("22B, both", 48, 6144, 64, 8, 4, 1, 4, 1, true, 1.10),
    BIG("175B, full", 96, 12288, 96, 64, 64, 8, 1, 3, false, 18.13),
    BIG("175B, both", 96, 12288, 96, 64, 64, 8, 1, 3, true, 13.75),
    BIG("530B, full", 105, 20480, 128, 280, 280, 35, 1, 3, false, 49.05),
    BIG("530B, both", 105, 20480, 128, 280, 280, 35, 1, 3, true, 37.83),
    BIG("1T, full", 128, 25600, 160, 512, 512, 64, 1, 1, false, 94.42),
    BIG("1T, both", 128, 25600, 160, 512, 512, 64, 1, 1, true, 71.49),
    BIG("530B, both, dp 8", 105, 20480, 128, 2240, 2240, 35, 1, 3, true, 39.15),
    ONE("no recomputation", false, RECOMPUTE_NONE, 7.7 + 11.9),
    ONE("sequence parallelism", true, RECOMPUTE_NONE, 7.2 + 11.8),
    ONE("full", false, RECOMPUTE_FULL, 7.7 + 19.5),
    ONE("selective", false, RECOMPUTE_SELECTIVE, 7.7 + 13.2),
    ONE("both", true, RECOMPUTE_SELECTIVE, 7.2 + 13.1),
};

// Megatron-LM's README, strong scaling: GPT-3 at batch 1152. The README gives no layout; tp 8 x pp
// 12 fills 96 GPUs. b and v 0: the plan tries 1, 2 and 4 sequences and all numbers of chunks that
// divide, and takes the fastest that fit. Llama 3, table 4, does not give the chunks: one block
// each is assumed, and parts of equal cost, because the paper takes a block from the first and the
// last part.
#define LLAMA_405B(T) \
    { \
        .layers = 126, .width = 16384, .heads = 128, .context = T, .vocab = 128256, \
        .norm = NORM_RMS, .positions = POSITIONS_ROTARY, .activation = ACTIVATION_SWIGLU, \
        .biases = BIASES_NONE, .kv_heads = 8, .ffn = 53248, .untied = true, .rope_theta = 5e5, \
        .norm_eps = 1e-5 \
    }
#define README(name, gpus, value) \
    { \
        "Megatron-LM README", name, PAPER_GPT(96, 12288, 96), gpus, 1152, 8, 12, 1, 0, 0, 1, true, \
            RECOMPUTE_NONE, value, MODEL_SHARE, false \
    }
#define HERD(name, T, gpus, batch, cp, value) \
    { \
        "Llama 3 table 4", name, LLAMA_405B(T), gpus, batch, 8, 16, cp, 1, 8, 1, true, \
            RECOMPUTE_NONE, value, CAUSAL_SHARE, false \
    }
static const Row h100[] = {
    README("GPT-3, 96 GPUs", 96, 47),
    README("GPT-3, 4608 GPUs", 4608, 42),
    HERD("405B, 8192 GPUs", 8192, 8192, 2048, 1, 43),
    HERD("405B, 16384 GPUs", 8192, 16384, 2048, 1, 41),
    HERD("405B, cp 16", 131072, 16384, 128, 16, 38),
};

// Each system and year overlaps other communication. PTD-P's Megatron-LM waits for every message
// and sum, except under PyTorch's DDP. In Korthikanti's version the sums over tp of a backward run
// beside products; section 6.3 of the paper says that the sum over dp does not. In 2024 all of them
// overlap. Messages between stages are scattered and gathered since PTD-P's section 4.1.
static PlanTask task_of(const Row *r, const PlanCluster *cluster) {
    bool pieces = r->printed == MODEL_SHARE, modern = pieces || r->printed == CAUSAL_SHARE,
         korthikanti = strstr(r->source, "Korthikanti") != NULL;
    PlanTask t =
        paper_task((PlanModel){ r->name, r->model, r->batch, .source = r->source }, r->gpus);
    t.cluster = *cluster;
    if (modern) t.format = *plan_format("bf16");
    t.blockwise = modern;
    t.how = (PlanHow){ .overlap = { .dp = modern || r->ddp,
                                    .tp = modern || korthikanti,
                                    .pieces = pieces,
                                    .pp = modern },
                       .trees = true,
                       .scatter = !modern };
    return t;
}
static PlanLayout layout_of(const Row *r) {
    return (PlanLayout){ .n = { r->gpus / (r->tp * r->pp * r->cp), r->tp, r->pp, r->cp },
                         .micro_batch = r->b,
                         .chunks = r->v,
                         .zero = r->zero,
                         .sequence = r->sequence,
                         .recompute = r->recompute,
                         .balanced = r->v && r->model.layers % (r->pp * r->v) != 0 };
}

// The plan's value of what the paper prints.
static double causal_part(const PlanTask *t) {
    CutSizes whole = cut_sizes(&t->model.model, 1, 0);
    CutSizes causal = cut_positions(whole, &(Positions){ 0 }, true);
    return work_stage(&causal, 1).flops / work_stage(&whole, 1).flops;
}
static PlanResult fastest(const PlanTask *t, PlanLayout l) {
    PlanResult best = { .step = INFINITY };
    size_t each = t->model.model.layers / l.n.pp;
    for (l.micro_batch = 1; l.micro_batch <= 4; l.micro_batch *= 2)
        for (l.chunks = 1; l.chunks <= each; l.chunks++) {
            char why[200];
            l.balanced = false;
            if (each % l.chunks || !plan_possible(t, &l, why, sizeof why)) continue;
            PlanResult r = plan_layout(t, &l);
            if (r.fits && r.step < best.step) best = r;
        }
    return best;
}
static double planned(const Row *r, const PlanCluster *cluster) {
    PlanTask t = task_of(r, cluster);
    PlanLayout l = layout_of(r);
    if (r->printed == BLOCK) {
        PlanStage s = plan_stage(&t, &l, 0, 0);
        s.z.first = s.z.last = false;
        PlanOp f = plan_op(&t, &l, &s, true, r->b), b = plan_op(&t, &l, &s, false, r->b);
        return (plan_op_time(&f) + plan_op_time(&b)) * 1e-9;
    }
    PlanResult p = r->b ? plan_layout(&t, &l) : fastest(&t, l);
    if (r->printed == STEP) return p.step * 1e-12;
    if (r->printed == CAUSAL_SHARE) return 100 * p.mfu * causal_part(&t);
    return r->printed == HARDWARE ? p.hfu * t.cluster.flops * 1e-12 : 100 * p.mfu;
}
// The error of the planned step: its time over the published time, minus 1.
static double error_of(const Row *r, double value) {
    return r->printed == STEP || r->printed == BLOCK ? value / r->value - 1 : r->value / value - 1;
}

// Errors of rows: the mean of their sizes, and the largest.
typedef struct {
    double sum, worst;
    size_t n;
} Errors;
static void count(Errors *e, double error) {
    e->sum += fabs(error);
    e->worst = fmax(e->worst, fabs(error));
    e->n++;
}
static double mean(const Errors *e) { return e->n ? e->sum / (double)e->n : 0; }

static void rows(Run *run, const char *gpu, const Row *row, size_t n, const PlanCluster *cluster,
                 Errors held[2], bool print) {
    static const char *const unit[] = { "s", "TFLOP/s", "% MFU", "% MFU", "ms" };
    for (size_t i = 0; i < n; i++) {
        double value = planned(&row[i], cluster), error = error_of(&row[i], value);
        bool out = i % 2;
        count(&held[out], error);
        if (print)
            say(run, "  %-20s %-21s %-5s %8.4g %8.4g %-7s %+6.1f %%  %s", row[i].source,
                row[i].name, gpu, row[i].value, value, unit[row[i].printed], 100 * error,
                out ? "held out" : "fit");
    }
}

static const PlanCluster *cluster_named(const char *name) {
    const PlanCluster *c = plan_clusters;
    while (strcmp(c->name, name)) c++;
    return c;
}
void plan_anchors(Run *run, bool print) {
    Errors held[2] = { { 0, 0, 0 }, { 0, 0, 0 } }; // fit, held out
    const bool idle = !run->is_root;
    if (!idle) {
        if (print)
            say(run, "  published            model                 GPU    printed     plan         "
                     "  step takes");
        rows(run, "A100", a100, sizeof a100 / sizeof *a100, cluster_named("dgx-a100"), held, print);
        rows(run, "H100", h100, sizeof h100 / sizeof *h100, cluster_named("dgx-h100"), held, print);
        for (size_t i = 0; i < 2; i++)
            say_detail(run, "%s: %zu rows, mean error %.1f %%, worst %.1f %%",
                       i ? "held out" : "fit", held[i].n, 100 * mean(&held[i]),
                       100 * held[i].worst);
        report_config_number(run, "held_out_mean", mean(&held[1]));
        report_config_number(run, "held_out_worst", held[1].worst);
    }
    check_true(run, "published steps", "rows held out: mean error at most 7 %, worst 12 %",
               idle || (mean(&held[1]) <= 0.07 && held[1].worst <= 0.12));
    check_true(run, "published steps", "rows of the fit: worst 15 %",
               idle || held[0].worst <= 0.15);
}
