// test_budget.c: compares the plans of budget_choose() (07_recompute/04_budget.c) with all possible
// plans, on random stages of one to seven unequal blocks.
#include "07_recompute/recompute.h"
#include "common/tensor/random.h"
#include "tap.h"

enum { CASES = 600, MOST_BLOCKS = 7 };

// Returns the least work that a plan within the budget computes again, or -1 if no plan fits.
static double exhaustive(const BudgetStage *s, size_t budget) {
    size_t plans = 1;
    double best = -1;
    for (size_t i = 0; i < s->blocks; i++) plans *= RECOMPUTE_CHOICES;
    for (size_t number = 0; number < plans; number++) {
        Recompute choice[MOST_BLOCKS];
        double again = 0;
        for (size_t i = 0, rest = number; i < s->blocks; i++, rest /= RECOMPUTE_CHOICES) {
            choice[i] = (Recompute)(rest % RECOMPUTE_CHOICES);
            again += s->block[i].again[choice[i]];
        }
        if (budget_peak(s, choice) <= budget && (best < 0 || again < best)) best = again;
    }
    return best;
}

static BudgetStage random_stage(uint64_t key, bool last, BudgetBlock block[MOST_BLOCKS]) {
    BudgetStage s = { .block = block,
                      .blocks = 1 + random_mix(key) % MOST_BLOCKS,
                      .input = 1 + random_mix(key + 1) % 20,
                      .last = last,
                      .head = random_mix(key + 2) % 60,
                      .one = 3 };
    s.in_flight = s.one * (1 + random_mix(key + 3) % 4);
    for (size_t i = 0; i < s.blocks; i++) {
        uint64_t at = random_key(key, i);
        size_t dense = 1 + random_mix(at) % 150, scores = random_mix(at + 1) % 150;
        double some = (double)(1 + random_mix(at + 2) % 100);
        double whole = some + (double)(1 + random_mix(at + 3) % 300);
        block[i] = (BudgetBlock){ .kept = { dense + scores, dense, 0 },
                                  .at_work = dense + scores,
                                  .again = { 0, some, whole } };
    }
    return s;
}

int main(void) {
    bool least_work = true, fits = true;
    for (size_t n = 0; n < CASES; n++) {
        uint64_t key = random_key(1, n);
        BudgetBlock block[MOST_BLOCKS];
        BudgetStage s = random_stage(key, n % 2, block);
        Recompute choice[MOST_BLOCKS], all[MOST_BLOCKS] = { RECOMPUTE_NONE };
        for (size_t i = 0; i < s.blocks; i++) choice[i] = RECOMPUTE_FULL;
        // Some budgets are below the least peak, so no plan fits.
        size_t least = budget_peak(&s, choice), whole = budget_peak(&s, all);
        size_t budget = least - least / 8 + random_mix(key + 4) % (whole - least + least / 4);
        double again = 0, want = exhaustive(&s, budget);
        bool found = budget_choose(&s, budget, choice);
        for (size_t i = 0; i < s.blocks; i++) again += block[i].again[choice[i]];
        least_work = least_work && (found ? again : -1) == want;
        fits = fits && (!found || budget_peak(&s, choice) <= budget);
    }
    ok(least_work, "plan = exhaustive search: the least work");
    ok(fits, "plan = exhaustive search: within the budget");
    return tap_end();
}
