// plan_anchors.c compares the plan with published step times, and prints both with --papers. A
// GPU's efficiency and bandwidth (plan_presets.c) are fitted to rows 1, 3, 5, ... of the table of
// Megatron-LM and Llama 3 on that GPU. The other rows of this table are held out. Nothing is fitted
// to the rows of other systems.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "08_3d/experiments/published.h"

static PlanTask task_of(const PublishedRow *r, const PlanCluster *cluster) {
    PlanTask t =
        paper_task((PlanModel){ r->name, r->model, r->batch, .source = r->source }, r->gpus);
    t.cluster = *cluster;
    t.format = *plan_format(published_systems[r->system].format);
    t.blockwise = published_systems[r->system].blockwise;
    t.how = published_systems[r->system].how;
    t.cluster.rails = published_systems[r->system].rails;
    return t;
}
static PlanLayout layout_of(const PublishedRow *r) {
    return (PlanLayout){ .n = { r->gpus / (r->tp * r->pp * r->cp), r->tp, r->pp, r->cp },
                         .micro_batch = r->b,
                         .chunks = r->v,
                         .zero = r->zero,
                         .sequence = r->sequence,
                         .recompute = r->recompute,
                         .balanced = r->v && r->model.layers % (r->pp * r->v) != 0 };
}

// Returns the share of a forward's FLOPs that the causal mask leaves.
static double causal_part(const PlanTask *t) {
    CutSizes whole = cut_sizes(&t->model.model, 1, 0);
    CutSizes causal = cut_positions(whole, &(Positions){ 0 }, true);
    return work_stage(&causal, 1).flops / work_stage(&whole, 1).flops;
}
// Returns the fastest layout that fits, with 1, 2 or 4 sequences per micro-batch and any number of
// chunks that divides a stage's blocks.
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
static double planned(const PublishedRow *r, const PlanCluster *cluster) {
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
// Returns the planned time divided by the published time, minus 1. `value` is planned().
static double error_of(const PublishedRow *r, double value) {
    return r->printed == STEP || r->printed == BLOCK ? value / r->value - 1 : r->value / value - 1;
}
double published_error(const PublishedRow *r, const PlanCluster *cluster) {
    return error_of(r, planned(r, cluster));
}

static void count(AnchorErrors *e, double error) {
    e->mean = (e->mean * (double)e->n + fabs(error)) / (double)(e->n + 1);
    e->worst = fmax(e->worst, fabs(error));
    e->fast += error < 0;
    e->longest = fmax(e->longest, 1 / (1 + error) - 1);
    e->n++;
}

static const PlanCluster *cluster_named(const char *name) {
    const PlanCluster *c = plan_clusters;
    while (strcmp(c->name, name)) c++;
    return c;
}
static const char *const use_name[USES] = { "fit", "held out", "other system", "not counted" };

static void rows(Run *run, const PublishedTable *t, AnchorErrors of[USES], bool print) {
    static const char *const unit[] = { "s", "TFLOP/s", "% MFU", "% MFU", "ms" };
    for (size_t i = 0; i < t->n; i++) {
        const PublishedRow *r = &t->row[i];
        double value = planned(r, cluster_named(t->cluster)), error = error_of(r, value);
        Use use = t->use == FIT && i % 2 ? HELD_OUT : t->use;
        count(&of[use], error);
        if (print)
            say(run, "  %-20s %-21s %-5s %8.4g %8.4g %-7s %+6.1f %%  %s", r->source, r->name,
                t->gpu, r->value, value, unit[r->printed], 100 * error, use_name[use]);
    }
}

// Returns whether, by the plan, ZeRO 3 is slower than PTD-P's own layout, and loses speed per GPU
// with more GPUs. With more GPUs each rank has fewer sequences per gather.
static bool zero3_loses(void) {
    const PublishedTable *zero3 = &published[PUBLISHED_ZERO3];
    const PlanCluster *cluster = cluster_named(zero3->cluster);
    bool holds = true;
    double before = 0;
    for (size_t i = 0; i < zero3->n; i++) {
        const PublishedRow *row = &zero3->row[i], *own = published[PUBLISHED_A100].row;
        while (own->gpus < row->gpus || own->model.layers != row->model.layers ||
               strcmp(own->source, row->source) != 0)
            own++;
        const bool same_model = i > 0 && row[-1].model.layers == row->model.layers;
        double speed = planned(row, cluster);
        holds &= speed < planned(own, cluster);
        holds &= !same_model || speed < before;
        before = speed;
    }
    return holds;
}

Anchors plan_anchors(Run *run, bool print) {
    AnchorErrors of[USES] = { 0 };
    const bool idle = !run->is_root;
    if (!idle) {
        if (print)
            say(run, "  published            model                 GPU    printed     plan         "
                     "  step takes");
        for (size_t i = 0; i < PUBLISHED_TABLES; i++) rows(run, &published[i], of, print);
        report_config_number(run, "held_out_mean", of[HELD_OUT].mean);
        report_config_number(run, "held_out_worst", of[HELD_OUT].worst);
        report_config_number(run, "other_systems_mean", of[OTHER].mean);
        report_config_number(run, "other_systems_worst", of[OTHER].worst);
    }
    check_true(run, "published steps", "rows held out: mean error at most 7 %, worst 12 %",
               idle || (of[HELD_OUT].mean <= 0.07 && of[HELD_OUT].worst <= 0.12));
    check_true(run, "published steps", "rows of the fit: worst 15 %",
               idle || of[FIT].worst <= 0.15);
    check_true(run, "published steps", "rows of other systems: mean error at most 10 %, worst 16 %",
               idle || (of[OTHER].mean <= 0.1 && of[OTHER].worst <= 0.16));
    check_true(run, "PTD-P table 2", "ZeRO 3 is slower, and loses speed with more GPUs",
               idle || zero3_loses());
    return (Anchors){ of[HELD_OUT], of[OTHER] };
}
