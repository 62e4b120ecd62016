// search.c: compares the plans of dynamic programming (04_budget.c) with all possible plans.
#include "07_recompute/experiments/experiments.h"
#include "common/tensor/random.h"

enum { CASES = 60 };

// Tries every plan. Returns the least work that fits; -1: nothing fits.
static double exhaustive(const BudgetStage *s, size_t budget) {
    size_t plans = 1;
    double best = -1;
    for (size_t i = 0; i < s->blocks; i++) plans *= RECOMPUTE_CHOICES;
    for (size_t number = 0; number < plans; number++) {
        Recompute choice[8];
        double again = 0;
        for (size_t i = 0, rest = number; i < s->blocks; i++, rest /= RECOMPUTE_CHOICES) {
            choice[i] = (Recompute)(rest % RECOMPUTE_CHOICES);
            again += s->block[i].again[choice[i]];
        }
        if (budget_peak(s, choice) <= budget && (best < 0 || again < best)) best = again;
    }
    return best;
}

// Stages of one to seven unequal blocks with random sizes.
void budget_search(Run *run) {
    size_t equal = 0, fits = 0, none = 0; // none: no plan fits
    for (size_t n = 0; n < CASES; n++) {
        uint64_t key = random_key(run->seed, n);
        BudgetBlock block[7];
        BudgetStage s = { .block = block,
                          .blocks = 1 + random_mix(key) % 7,
                          .input = 1 + random_mix(key + 1) % 20,
                          .last = n % 2,
                          .head = random_mix(key + 2) % 60,
                          .one = 3 };
        s.in_flight = s.one * (1 + random_mix(key + 3) % 4);
        for (size_t i = 0; i < s.blocks; i++) {
            uint64_t at = random_key(key, i);
            size_t dense = 1 + random_mix(at) % 150, scores = random_mix(at + 1) % 150;
            double work = (double)(1 + random_mix(at + 2) % 100);
            block[i] = (BudgetBlock){ .kept = { dense + scores, dense, 0 },
                                      .at_work = dense + scores,
                                      .again = { 0, work,
                                                 work + (double)(1 + random_mix(at + 3) % 300) } };
        }
        Recompute choice[7], all[7];
        for (size_t i = 0; i < s.blocks; i++) {
            all[i] = RECOMPUTE_NONE;
            choice[i] = RECOMPUTE_FULL;
        }
        size_t least = budget_peak(&s, choice), whole = budget_peak(&s, all);
        size_t budget = least - least / 8 + random_mix(key + 4) % (whole - least + least / 4);
        double want = exhaustive(&s, budget), got = -1;
        if (budget_choose(&s, budget, choice)) {
            got = 0;
            for (size_t i = 0; i < s.blocks; i++) got += block[i].again[choice[i]];
            fits += budget_peak(&s, choice) <= budget;
        } else {
            fits++;
            none++;
        }
        equal += got == want;
    }
    check_true(run, "plan = exhaustive search", "the least work", equal == CASES);
    check_true(run, "plan = exhaustive search", "within the budget", fits == CASES);
    check_true(run, "plan = exhaustive search", "some budgets are too small",
               none > 0 && none < CASES / 2);
}
