// 04_costs.c: see 04_costs.h.
#include "07_recompute/experiments/04_costs.h"
#include "common/model/costs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

const char *const budget_name[BUDGET_WAYS] = { "100 %", "60 %", "30 %", "least" };
const double budget_share[BUDGET_WAYS] = { 1, 0.6, 0.3, 0 };

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
static CutSizes stage_sizes(const Training *t, size_t p, size_t i) {
    return cut_stage(cut_sizes(&t->model, 1, 0), p, i);
}

// ---------------------------------------------------------------- what a plan is made from

BudgetPlan budget_plan(const Training *t, size_t p, size_t i, double share) {
    CutSizes z = stage_sizes(t, p, i);
    size_t block = kept_block(&z), scores = kept_scores(&z), one = ceil_div(t->sequences, t->micro_batches);
    BudgetBlock *list = host_alloc(z.blocks * sizeof *list);
    Recompute *choice = host_alloc(z.blocks * sizeof *choice);
    double some = work_scores(&z, t->sequences).time, whole = work_block(&z, t->sequences).time;
    for (size_t k = 0; k < z.blocks; k++)
        list[k] = (BudgetBlock){ .kept = { block, block - scores, 0 }, .at_work = block, .again = { 0, some, whole } };
    BudgetStage s = { .block = list, .blocks = z.blocks, .input = z.C, .last = z.last,
                      .head = z.last ? kept_head(&z) : 0, .in_flight = t->sequences * z.T, .one = one * z.T };
    for (size_t k = 0; k < z.blocks; k++) choice[k] = RECOMPUTE_FULL;
    size_t least = budget_peak(&s, choice);
    for (size_t k = 0; k < z.blocks; k++) choice[k] = RECOMPUTE_NONE;
    size_t all = budget_peak(&s, choice);
    size_t budget = least + (size_t)(share * (double)(all - least));
    return (BudgetPlan){ .stage = s, .budget = budget * sizeof(real), .choice = choice };
}
void budget_plan_free(BudgetPlan *plan) {
    free((void *)plan->stage.block);
    free(plan->choice);
}

// ---------------------------------------------------------------- costs of a plan

static size_t count(const BudgetPlan *plan, Recompute how) {
    size_t n = 0;
    for (size_t i = 0; i < plan->stage.blocks; i++) n += plan->choice[i] == how;
    return n;
}

void budget_costs(Run *run, const Training *t, size_t way, const BudgetPlan *plan, const BudgetMeasured *got) {
    const char *name = budget_name[way];
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    CutSizes z = stage_sizes(t, p, i);
    size_t full = count(plan, RECOMPUTE_FULL), selective = count(plan, RECOMPUTE_SELECTIVE), forwards = 0, rebuilds = 0;
    for (size_t k = 0; k < sizeof got->counts / sizeof *got->counts; k++) {
        forwards += got->counts[k].forwards;
        rebuilds += got->counts[k].rebuilds;
    }
    counted_cost(run, name, "activation peak", "bytes",
                 (double)(budget_peak(&plan->stage, plan->choice) * sizeof(real)), (double)got->peak);
    counted_cost(run, name, "forwards of my blocks", "calls", (double)((z.blocks + full) * m), (double)forwards);
    counted_cost(run, name, "probabilities computed again", "calls", (double)(selective * m), (double)rebuilds);

    double again[2] = { (double)full * work_block(&z, t->sequences).flops +
                        (double)selective * work_scores(&z, t->sequences).flops,
                        (double)full * work_block(&z, t->sequences).time +
                        (double)selective * work_scores(&z, t->sequences).time };
    double flops = 3 * work_stage(&z, t->sequences).flops + again[0], all = flops;
    comm_all_reduce_doubles(run->world, &all, 1);                  // each stage has a plan of its own
    counted_cost(run, name, "hardware FLOPs, all stages", "FLOPs", all, got->timing.flops);
    if (!clock_config()->simulated) return;                        // real time is as it is
    double micro = 0;                                              // products round to picoseconds one by one
    for (size_t k = 0; k < m; k++) {
        size_t B = range_size(shard_range(t->sequences, m, k));
        micro += 3 * work_stage(&z, B).time + (double)full * work_block(&z, B).time +
                 (double)selective * work_scores(&z, B).time;
    }
    counted_cost(run, name, "my stage computes", "ps", micro, (double)got->computing);
}

#define EACH_WAY(name) { "100 %: " name, "60 %: " name, "30 %: " name, "least: " name }
void budget_results(Run *run, const BudgetMeasured got[BUDGET_WAYS]) {
    static const char *const columns[] = { "100 %", "60 %", "30 %", "least", NULL };
    char more[BUDGET_WAYS][32], step[BUDGET_WAYS][32];
    for (size_t w = 0; w < BUDGET_WAYS; w++) {
        snprintf(more[w], sizeof more[w], "=+%.1f %%", 100 * (got[w].timing.flops / got[0].timing.flops - 1));
        step[w][0] = '=';
        page_value(step[w] + 1, sizeof step[w] - 1, (double)got[w].timing.step, "ps");
    }
    const Result rows[] = {
        { "activations, peak", "the budget", EACH_WAY("activation peak") },
        { "forwards of blocks", "m; 2m if full", EACH_WAY("forwards of my blocks") },
        { "probabilities again", "m if selective", EACH_WAY("probabilities computed again") },
        { "more work", "of 3F", { more[0], more[1], more[2], more[3] } },
        { "step", "GPipe's order", { step[0], step[1], step[2], step[3] } },
        {0}
    };
    results(run, columns, rows);
}

// ---------------------------------------------------------------- every k-th input

// Elements per token of the segment at work: its blocks' items, and the inputs of all of them but the first.
static size_t segment(const CutSizes *z, size_t k) { return k * kept_block(z) + (k - 1) * z->C; }

static size_t segment_peak(const Training *t, size_t p, size_t i, size_t k) {
    CutSizes z = stage_sizes(t, p, i);
    size_t segments = ceil_div(z.blocks, k), last = z.blocks - (segments - 1) * k, head = z.last ? kept_head(&z) : 0;
    size_t waiting = (segments + z.last) * z.C + head;
    // The last segment may be a shorter one; then the one before it may take more.
    size_t at_work = (segments + z.last) * z.C + segment(&z, last);
    if (segments > 1) at_work = most(at_work, segments * z.C + segment(&z, k));
    size_t all = t->sequences * z.T, one = ceil_div(t->sequences, t->micro_batches) * z.T;
    return (all - one) * waiting + one * most(waiting, at_work);
}

void segment_costs(Run *run, const char *name, const Training *t, size_t k, const BudgetMeasured *got) {
    size_t p = run->world->size, i = run->world->rank;
    counted_cost(run, name, "activation peak", "bytes", (double)(segment_peak(t, p, i, k) * sizeof(real)),
                 (double)got->peak);
    double flops = 0;
    for (size_t s = 0; s < p; s++) {
        CutSizes z = stage_sizes(t, p, s);
        flops += 3 * work_stage(&z, t->sequences).flops + (double)z.blocks * work_block(&z, t->sequences).flops;
    }
    counted_cost(run, name, "hardware FLOPs, all stages", "FLOPs", flops, got->timing.flops);
}

void segment_results(Run *run, const Training *t, const size_t every[BUDGET_SEGMENTS]) {
    char peak[BUDGET_SEGMENTS][64], name[BUDGET_SEGMENTS][16];
    const char *columns[BUDGET_SEGMENTS + 1] = {0};
    Result row = { .what = "activations, peak", .formula = "m(L/k)C + k nC" };
    for (size_t i = 0; i < BUDGET_SEGMENTS; i++) {
        snprintf(name[i], sizeof name[i], "k = %zu", every[i]);
        snprintf(peak[i], sizeof peak[i], "every %zu: activation peak", every[i]);
        columns[i] = name[i];
        row.cell[i] = peak[i];
    }
    CutSizes z = stage_sizes(t, run->world->size, 0);
    double n = (double)kept_block(&z) / (double)z.C;
    say(run, "%zu blocks, L = %zu on stage 0, each n = %.1f times its input; kept is the input of every k-th:",
        t->model.layers, z.blocks, n);
    const Result rows[] = { row, {0} };
    results(run, columns, rows);
    say(run, "Least at k = sqrt(m L/n) = %.1f.", sqrt((double)(t->micro_batches * z.blocks) / n));
}
