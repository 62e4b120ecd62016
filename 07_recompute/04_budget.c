// ranks: 2
// level: extra
// question: Which blocks should be computed again if the memory for activations is limited?
// vary: width 12|18|24, context 8..13, vocab 31..50
//
// Holds:  for every block and token, from forward to backward, the items of the block's choice
//         (table below). A stage holds at most the budget.
// Sends:  nothing more, except that a fully recomputed block sends its forward's messages again
//         (02_full.c).
// Saves:  work. Of all plans within the budget, the planner takes the plan with the least
//         recomputation.
// Costs:  a search before training, by dynamic programming over the blocks. The search needs only
//         sizes.
// Korthikanti et al. 2022, appendix C, store as much as fits; Chen et al. 2016, section 4.3, search
// for a plan that fits a budget. The lesson leaves out different plans for different micro-batches,
// and segments of unequal length. budget_schedule.c handles chunks and backwards in halves.
#include "07_recompute/recompute.h"
#include <stdlib.h>
#include <string.h>

//     choice       kept per token until backward   computed again          held while it runs
//     none         15C + 4 + 2HT                   nothing                 15C + 4 + 2HT
//     selective    15C + 4                         q k^T of every head     15C + 4 + 2HT
//     full         nothing                         the block's forward     15C + 4 + 2HT
//
// Every block's input, C, is kept under every choice. The caller gives the sizes of every block
// (BudgetBlock), because blocks may differ.

// ---------------------------------------------------------------- the peak of a plan

// Counts the elements of the inputs of the first n blocks, and of the output of the last of these
// blocks, unless that output leaves the stage.
static size_t passed_on(const BudgetStage *s, size_t n) {
    return (n + (n < s->blocks || s->last)) * s->input;
}
static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// Returns the peak of a stage. The micro-batch whose forward or backward runs holds the inputs and
// kept items of the earlier blocks, and all items of one block. In forward that block has not
// dropped its items yet; in backward it has just computed them again. All other micro-batches hold
// only inputs and kept items.
static size_t stage_peak(const BudgetStage *s, size_t kept, size_t at_work) {
    size_t waiting = passed_on(s, s->blocks) + kept + s->head;
    return (s->in_flight - s->one) * waiting + s->one * most(at_work, waiting);
}

size_t budget_peak(const BudgetStage *s, const Recompute *choice) {
    size_t kept = 0, at_work = 0;
    for (size_t i = 0; i < s->blocks; i++) {
        at_work = most(at_work, passed_on(s, i + 1) + kept + s->block[i].at_work);
        kept += s->block[i].kept[choice[i]];
    }
    return stage_peak(s, kept, at_work);
}

// ------------------------------------------------ the cheapest plan: dynamic programming

// A plan for blocks 0..i. Later blocks depend on this plan only through kept, at_work and again. So
// of two plans for the same blocks, a plan that is lower in none of these three numbers can be
// dropped. `before` is the index of the plan for blocks 0..i-1 that this plan extends.
typedef struct {
    size_t kept, at_work, before;
    double again;
    Recompute choice;
} Plan;
static bool no_better(const Plan *a, const Plan *b) {
    return a->kept >= b->kept && a->at_work >= b->at_work && a->again >= b->again;
}

typedef struct {
    Plan *plan;
    size_t n, room;
} Plans;
// Adds p to the plans all->plan[first..n), unless p is no better than one of these plans. Drops
// each of these plans that is no better than p.
static void plans_add(Plans *all, size_t first, Plan p) {
    size_t left = first;
    for (size_t k = first; k < all->n; k++) {
        // The loop has dropped no plan before this return. A plan that is no better than p would
        // also be no better than plan k, and plans_add never keeps such a pair of plans.
        if (no_better(&p, &all->plan[k])) return;
        if (!no_better(&all->plan[k], &p)) all->plan[left++] = all->plan[k];
    }
    all->n = left;
    if (all->n == all->room) {
        all->room = 2 * all->room + 16;
        Plan *more = host_alloc(all->room * sizeof *more);
        if (all->n) memcpy(more, all->plan, all->n * sizeof *more);
        free(all->plan);
        all->plan = more;
    }
    all->plan[all->n++] = p;
}

bool budget_choose(const BudgetStage *s, size_t budget, Recompute *choice) {
    Plans all = { 0 };
    plans_add(&all, 0, (Plan){ 0 }); // adds the plan for no block
    size_t lo = 0, hi = 1;           // the plans for the blocks before i
    for (size_t i = 0; i < s->blocks; i++) {
        // EXERCISE 07.04a (4 points): extend every plan for the blocks before i, all.plan[lo ..
        // hi), by block i, in each of the RECOMPUTE_CHOICES ways. Add each new plan with
        // plans_add(&all, hi, ...). A plan has these fields.
        //   kept     elements that blocks 0..i keep
        //   at_work  the most elements held while one of these blocks runs, as in budget_peak()
        //   again    the work of their recomputation
        //   before   index of the extended plan
        //   choice   of block i
        for (size_t k = lo; k < hi; k++)
            for (Recompute c = RECOMPUTE_NONE; c <= RECOMPUTE_FULL; c++) {
                Plan rest = all.plan[k]; // a copy, because plans_add may move the list
                size_t here = passed_on(s, i + 1) + rest.kept + s->block[i].at_work;
                plans_add(&all, hi,
                          (Plan){ .kept = rest.kept + s->block[i].kept[c],
                                  .at_work = most(rest.at_work, here),
                                  .before = k,
                                  .again = rest.again + s->block[i].again[c],
                                  .choice = c });
            }
        // END
        lo = hi;
        hi = all.n;
    }
    const Plan *best = NULL;
    for (size_t k = lo; k < hi; k++) {
        const Plan *p = &all.plan[k];
        if (stage_peak(s, p->kept, p->at_work) <= budget && (!best || p->again < best->again))
            best = p;
    }
    const Plan *p = best;
    for (size_t i = s->blocks; best && i-- > 0; p = &all.plan[p->before]) choice[i] = p->choice;
    free(all.plan);
    return best;
}

// ---------------------------------------------------------------- a model that follows a plan

void recompute_each(Model *m, const Recompute *choice) {
    static const LayerKind *const wrapper[] = { NULL, &recompute_selective, &recompute_full };
    for (size_t i = 0, block = 0; i < m->n_layers; i++) {
        if (!m->layers[i].kind->rebuild) continue; // embedding, head or loss
        Recompute how = choice[block++];
        if (how != RECOMPUTE_NONE) layer_wrap(&m->layers[i], wrapper[how], NULL);
    }
}
