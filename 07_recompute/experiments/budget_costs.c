// budget_costs.c: the sizes of a stage and its budget, for 04_budget.c, and the predicted costs of
// a plan.
#include "07_recompute/experiments/experiments.h"
#include <stdlib.h>

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
CutSizes budget_sizes(const Training *t, size_t p, size_t i) {
    return cut_stage(cut_sizes(&t->model, 1, 0), p, i);
}

// The most elements that stage i of p holds under GPipe. The function walks through all forwards,
// then all backwards, block by block. budget_peak(), which it checks, has a formula.
static size_t walked_peak(const Training *t, size_t p, size_t i, const Recompute *choice) {
    CutSizes z = budget_sizes(t, p, i);
    size_t block = kept_block(&z), head = z.last ? kept_head(&z) : 0, held = 0, peak = 0;
    size_t kept[] = { block, block - kept_scores(&z), 0 };
    for (size_t n = 0; n < 2 * t->micro_batches; n++) {
        bool forward = n < t->micro_batches;
        size_t tokens =
            z.T * range_size(shard_range(t->sequences, t->micro_batches, n % t->micro_batches));
        if (!forward) held -= head * tokens;
        for (size_t k = 0; k < z.blocks; k++) {
            size_t b = forward ? k : z.blocks - 1 - k, own = kept[choice[b]] * tokens;
            // The first block's input comes from outside; the last block's output may leave the
            // stage.
            size_t ends = (size_t)(b == 0) + (size_t)(b + 1 < z.blocks || z.last);
            if (forward) held += ends * z.C * tokens;
            else held -= own;
            peak = most(peak, held + block * tokens);
            if (forward) held += own;
            else held -= ends * z.C * tokens;
        }
        if (forward) held += head * tokens;
        peak = most(peak, held);
    }
    return peak;
}

BudgetPlan budget_plan(const Training *t, size_t p, size_t i, double share) {
    CutSizes z = budget_sizes(t, p, i);
    size_t block = kept_block(&z), scores = kept_scores(&z);
    size_t one = ceil_div(t->sequences, t->micro_batches);
    BudgetBlock *list = host_alloc(z.blocks * sizeof *list);
    Recompute *choice = host_alloc(z.blocks * sizeof *choice);
    double some = work_scores(&z, t->sequences).time, whole = work_block(&z, t->sequences).time;
    for (size_t k = 0; k < z.blocks; k++)
        list[k] = (BudgetBlock){ .kept = { block, block - scores, 0 },
                                 .at_work = block,
                                 .again = { 0, some, whole } };
    BudgetStage s = { .block = list,
                      .blocks = z.blocks,
                      .input = z.C,
                      .last = z.last,
                      .head = z.last ? kept_head(&z) : 0,
                      .in_flight = t->sequences * z.T,
                      .one = one * z.T };
    for (size_t k = 0; k < z.blocks; k++) choice[k] = RECOMPUTE_FULL;
    size_t least = walked_peak(t, p, i, choice);
    for (size_t k = 0; k < z.blocks; k++) choice[k] = RECOMPUTE_NONE;
    size_t all = walked_peak(t, p, i, choice);
    size_t budget = least + (size_t)(share * (double)(all - least));
    return (BudgetPlan){ .stage = s, .budget = budget * sizeof(real), .choice = choice };
}
void budget_plan_free(BudgetPlan *plan) {
    free((void *)plan->stage.block);
    free(plan->choice);
}

size_t budget_count(const BudgetPlan *plan, Recompute how) {
    size_t n = 0;
    for (size_t i = 0; i < plan->stage.blocks; i++) n += plan->choice[i] == how;
    return n;
}

void budget_costs(Run *run, const Training *t, WayName name, const BudgetPlan *plan,
                  const StageMeasured *got) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    CutSizes z = budget_sizes(t, p, i);
    size_t full = budget_count(plan, RECOMPUTE_FULL);
    size_t selective = budget_count(plan, RECOMPUTE_SELECTIVE);
    way_cost_played(run, name, "peak", "activation peak", "bytes",
                    (double)(walked_peak(t, p, i, plan->choice) * sizeof(real)), (double)got->peak);
    way_cost(run, name, "forwards", "forwards of this stage's blocks", "calls",
             (double)((z.blocks + full) * m), (double)got->counts.forwards);
    way_cost(run, name, "rebuilds", "probabilities computed again", "calls",
             (double)(selective * m), (double)got->counts.rebuilds);

    double flops = 3 * work_stage(&z, t->sequences).flops +
                   (double)full * work_block(&z, t->sequences).flops +
                   (double)selective * work_scores(&z, t->sequences).flops;
    comm_all_reduce_doubles(run->world, &flops, 1); // each stage has a plan of its own
    way_cost(run, name, "flops", "hardware FLOPs, all stages", "FLOPs", flops, got->timing.flops);
    if (!clock_config()->simulated) return; // real time is not predicted
    double computing = 0; // added per micro-batch, because each product rounds to picoseconds
    for (size_t k = 0; k < m; k++) {
        size_t B = range_size(shard_range(t->sequences, m, k));
        computing += 3 * work_stage(&z, B).time + (double)full * work_block(&z, B).time +
                     (double)selective * work_scores(&z, B).time;
    }
    way_cost(run, name, "computing", "this stage computes", "ps", computing,
             (double)got->computing);
}
