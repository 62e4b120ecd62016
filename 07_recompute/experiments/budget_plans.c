// budget_plans.c: computes the sizes of a stage, its budget, and the peak of a plan, for
// 04_budget.c.
#include "07_recompute/experiments/experiments.h"
#include <stdlib.h>

// Walks block by block through all forwards and then all backwards, in GPipe's order, and returns
// the peak. The walk does not use the formula of budget_peak(), so it can check this formula.
size_t budget_walked_peak(const Training *t, size_t p, size_t i, const Recompute *choice) {
    CutSizes z = stage_sizes(&t->model, p, i);
    size_t input = z.C * weight_bytes(&t->model), block = kept_block_bytes(&z);
    size_t head = z.last ? kept_head_bytes(&z) : 0, held = 0, peak = 0;
    size_t kept[] = { block, block - kept_scores_bytes(&z), 0 };
    for (size_t n = 0; n < 2 * t->micro_batches; n++) {
        bool forward = n < t->micro_batches;
        size_t tokens = stage_tokens(t, n % t->micro_batches);
        if (!forward) held -= head * tokens;
        for (size_t k = 0; k < z.blocks; k++) {
            size_t b = forward ? k : z.blocks - 1 - k, own = kept[choice[b]] * tokens;
            // Counts the input of the first block, and each block's output that stays on the stage.
            size_t ends = (size_t)(b == 0) + (size_t)(b + 1 < z.blocks || z.last);
            if (forward) held += ends * input * tokens;
            else held -= own;
            peak = larger(peak, held + block * tokens);
            if (forward) held += own;
            else held -= ends * input * tokens;
        }
        if (forward) held += head * tokens;
        peak = larger(peak, held);
    }
    return peak;
}

BudgetPlan budget_plan(const Training *t, size_t p, size_t i, double share) {
    CutSizes z = stage_sizes(&t->model, p, i);
    // Sizes are in elements of e bytes, so a real counts as sizeof(real) / e elements.
    const size_t e = weight_bytes(&t->model);
    size_t block = kept_block_bytes(&z) / e;
    BudgetBlock *list = host_alloc(z.blocks * sizeof *list);
    Recompute *choice = host_alloc(z.blocks * sizeof *choice);
    for (size_t k = 0; k < z.blocks; k++)
        list[k] = (BudgetBlock){ .kept = { block, block - kept_scores(&z), 0 },
                                 .at_work = block,
                                 .again = { 0, work_scores(&z, t->sequences).time,
                                            work_block(&z, t->sequences).time } };
    BudgetStage s = { .block = list,
                      .blocks = z.blocks,
                      .input = z.C,
                      .last = z.last,
                      .head = z.last ? kept_head_bytes(&z) / e : 0,
                      .in_flight = t->sequences * z.T,
                      .one = stage_tokens(t, 0) };
    for (size_t k = 0; k < z.blocks; k++) choice[k] = RECOMPUTE_NONE;
    const size_t all = budget_walked_peak(t, p, i, choice) / e;
    for (size_t k = 0; k < z.blocks; k++) choice[k] = RECOMPUTE_FULL;
    const size_t least = budget_walked_peak(t, p, i, choice) / e;
    const size_t budget = least + (size_t)(share * (double)(all - least));
    return (BudgetPlan){ .stage = s, .budget = budget * e, .choice = choice };
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
