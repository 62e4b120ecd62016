// ranks: 2
// level: extra
// question: Which blocks should be computed again, when the memory for activations is given?
// vary: STEPS 2..3, width 12|18|24, context 8..13, vocab 31..50
//
// 02_full and 03_selective treat all blocks alike. With a budget of bytes, some blocks may keep everything, some shed
// their attention probabilities and some keep only their input, and the best plan is the one that computes least
// again (Korthikanti et al. 2022, appendix C, stores as much as fits; Chen et al. 2016, section 4.3, search a plan for
// a budget). The plan is made before training, from sizes alone.
//
//     choice       kept per token until backward   computed again                per token while the block is at work
//     none         15C + 4 + 2HT                   nothing                       15C + 4 + 2HT
//     selective    15C + 4                         q k^T of every head           15C + 4 + 2HT
//     full         nothing                         the block's forward           15C + 4 + 2HT
//
// and every block's input, C, in any case. Rank i is stage i of a GPipe pipeline; one rank is the plain case. Left out:
// other plans for other micro-batches, segments of unequal length.
#include "04_pipeline_naive/pipeline.h"
#include "07_recompute/recompute.h"
#include "07_recompute/experiments/04_costs.h"
#include "judge/draw/picture.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ================================ the technique ================================

// ---------------------------------------------------------------- what a plan takes

// Inputs of the blocks 0..i, and the output of block i, unless it leaves the stage.
static size_t passed_on(const BudgetStage *s, size_t i) {
    return (i + 1 + (i + 1 < s->blocks || s->last)) * s->input;
}
static size_t most(size_t a, size_t b) { return a > b ? a : b; }

// The micro-batch that is at work holds what the blocks before keep, and all of one block: in the forward before it
// forgets, in the backward after it has computed it again. All others hold what is kept.
static size_t stage_peak(const BudgetStage *s, size_t kept, size_t at_work) {
    size_t waiting = passed_on(s, s->blocks - 1) + kept + s->head;
    return (s->in_flight - s->one) * waiting + s->one * most(at_work, waiting);
}

size_t budget_peak(const BudgetStage *s, const Recompute *choice) {
    size_t kept = 0, at_work = 0;
    for (size_t i = 0; i < s->blocks; i++) {
        at_work = most(at_work, passed_on(s, i) + kept + s->block[i].at_work);
        kept += s->block[i].kept[choice[i]];
    }
    return stage_peak(s, kept, at_work);
}

// ---------------------------------------------------------------- the cheapest plan: dynamic programming

// A plan for blocks 0..i. Whatever the blocks behind do, it counts by three figures only. So of two plans for the same
// blocks, one that is not lower in any of them can be dropped: nothing that follows can make it the better one.
typedef struct { size_t kept, at_work, before; double again; Recompute choice; } Plan;     // before: place of its rest
static bool no_better(const Plan *a, const Plan *b) {
    return a->kept >= b->kept && a->at_work >= b->at_work && a->again >= b->again;
}

typedef struct { Plan *plan; size_t n, room; } Plans;
// Adds p to the plans from `first` on, unless one of them is as good; drops those that are no better than p.
static void plans_add(Plans *all, size_t first, Plan p) {
    size_t left = first;
    for (size_t k = first; k < all->n; k++) {
        if (no_better(&p, &all->plan[k])) return;                  // (then none was dropped before it)
        if (!no_better(&all->plan[k], &p)) all->plan[left++] = all->plan[k];
    }
    all->n = left;
    if (all->n == all->room) {
        Plan *more = host_alloc((all->room = 2 * all->room + 16) * sizeof *more);
        if (all->n) memcpy(more, all->plan, all->n * sizeof *more);
        free(all->plan);
        all->plan = more;
    }
    all->plan[all->n++] = p;
}

bool budget_choose(const BudgetStage *s, size_t budget, Recompute *choice) {
    Plans all = {0};
    plans_add(&all, 0, (Plan){0});                                 // for no block at all
    size_t lo = 0, hi = 1;                                         // the plans for the blocks before i
    for (size_t i = 0; i < s->blocks; i++) {
        // EXERCISE 07.04a (4 points): extend every plan for the blocks before i, all.plan[lo .. hi), by block i, in
        // each of the RECOMPUTE_CHOICES ways, and add what comes out with plans_add(&all, hi, ...). kept: what blocks
        // 0..i keep; at_work: the most that is held while one of them is at work, as budget_peak() has it; again: what
        // is computed again, of all of them; before: where the extended plan stands; choice: of block i.
        for (size_t k = lo; k < hi; k++)
            for (Recompute c = RECOMPUTE_NONE; c <= RECOMPUTE_FULL; c++) {
                Plan rest = all.plan[k];                           // (plans_add may move the list)
                size_t here = passed_on(s, i) + rest.kept + s->block[i].at_work;
                plans_add(&all, hi, (Plan){ .kept = rest.kept + s->block[i].kept[c],
                                            .at_work = most(rest.at_work, here), .before = k,
                                            .again = rest.again + s->block[i].again[c], .choice = c });
            }
        // END
        lo = hi;
        hi = all.n;
    }
    const Plan *best = NULL;
    for (size_t k = lo; k < hi; k++) {
        const Plan *p = &all.plan[k];
        if (stage_peak(s, p->kept, p->at_work) <= budget && (!best || p->again < best->again)) best = p;
    }
    const Plan *p = best;
    for (size_t i = s->blocks; best && i-- > 0; p = &all.plan[p->before]) choice[i] = p->choice;
    free(all.plan);
    return best;
}

// ---------------------------------------------------------------- a model that follows it

void recompute_each(Model *m, const Recompute *choice) {
    static const LayerKind *const wrapper[] = { NULL, &recompute_selective, &recompute_full };
    for (size_t i = 0, block = 0; i < m->n_layers; i++) {
        if (!m->layers[i].kind->rebuild) continue;                 // the embedding, the head, the loss
        Recompute how = choice[block++];
        if (how != RECOMPUTE_NONE) layer_wrap(&m->layers[i], wrapper[how], NULL);
    }
}

// Every k-th block's input only: segments of k blocks, the last one may be shorter (Chen et al. 2016).
static void recompute_every(Model *m, size_t k) {
    size_t lo = m->layers[0].number == 0, blocks = 0;              // behind the embedding, where that is here
    while (lo + blocks < m->n_layers && m->layers[lo + blocks].kind->rebuild) blocks++;
    for (size_t i = 0; i * k < blocks; i++) recompute_wrap_range(m, lo + i, blocks - i * k < k ? blocks - i * k : k);
}

// ================================ the experiment ================================

static const ModelConfig tiny = { .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1 };
enum { STEPS = 2, LONG = 64 };                     // LONG: blocks of the model of which every k-th input is kept
static const size_t every[BUDGET_SEGMENTS] = { 1, 2, 4, 8 };

// ---------------------------------------------------------------- training by a plan

typedef struct { Comm *pp, *tied; BudgetMeasured seen; } Pipeline;             // all stages; {first, last}, or NULL

// As 02_full's: m forwards, m backwards of my stage, with their messages; the tied sum, SGD.
static StepResult step(void *pipeline, Model *m, Optimizer *o, const Training *t, const Batch *batch) {
    Pipeline *p = pipeline;
    memset(p->seen.counts, 0, sizeof p->seen.counts);
    model_zero_gradients(m);
    Schedule s = schedule_gpipe(p->pp->size, t->micro_batches, p->pp->rank);
    double loss = pipeline_run(p->pp, m, &s, batch, t->micro_batches).loss;
    schedule_free(&s);
    pipeline_tied_sum(m, p->tied);
    comm_all_reduce_doubles(p->pp, &loss, 1);
    double norm = model_grad_norm(m, p->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss * batch[0].token_weight, norm };
}

// choice: of each block of my stage; NULL: segments of k blocks.
static BudgetMeasured train(Comm *pp, const Training *t, const Recompute *choice, size_t k, Trajectory *c) {
    Pipeline p = { .pp = pp, .tied = pipeline_tied_group(pp) };
    Model *m = model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    counted_wrap_blocks(m, p.seen.counts);
    if (choice) recompute_each(m, choice);
    else recompute_every(m, k);
    model_allocate(m);
    training_run(c, m, t, 1, 0, step, &p);
    p.seen.timing = picture_timing(c->run);
    p.seen.computing = counted_computing();
    p.seen.peak = memory_peak(MEM_ACTIVATIONS);
    model_free(m);
    comm_free(p.tied);
    return p.seen;
}

// Budgets: shares of the peak of keeping everything, down to what recomputing every block takes.
static void budgets(Run *run, Comm *pp, const Training *t) {
    Trajectory unsplit = training_unsplit(run, t, 1);
    BudgetMeasured seen[BUDGET_WAYS];
    for (size_t way = 0; way < BUDGET_WAYS; way++) {
        BudgetMeasured *r = &seen[way];
        BudgetPlan plan = budget_plan(t, pp->size, pp->rank, budget_share[way]);
        bool found = budget_choose(&plan.stage, plan.budget / sizeof(real), plan.choice);
        check_true(run, "every plan", "is found", found);
        Trajectory got = trajectory_new(run, t);
        *r = train(pp, t, plan.choice, 0, &got);
        char title[64];
        snprintf(title, sizeof title, "budget: %s of the way from the least to keeping all", budget_name[way]);
        picture_show(run, title, PICTURE_MEMORY | PICTURE_SAME_SCALE |
                     (way == BUDGET_DRAWN ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        check_true(run, "every plan", "the measured peak is within its budget", r->peak <= plan.budget);
        budget_costs(run, t, way, &plan, r);
        training_compare(run, "every plan = unsplit", &got, &unsplit, 0);
        trajectory_free(&got);
        budget_plan_free(&plan);
    }
    budget_results(run, seen);
    trajectory_free(&unsplit);
}

// Training with segments of k blocks; the peak, in bytes, of the rank that has most.
static size_t segment(Run *run, Comm *pp, const Training *t, const char *name, size_t k) {
    Trajectory got = trajectory_new(run, t), unsplit = training_unsplit(run, t, 1);
    BudgetMeasured r = train(pp, t, NULL, k, &got);
    segment_costs(run, name, t, k, &r);
    training_compare(run, "every segment = unsplit", &got, &unsplit, 0);
    trajectory_free(&got);
    trajectory_free(&unsplit);
    double peak[1] = { pp->rank == 0 ? (double)r.peak : 0 };
    comm_all_reduce_doubles(pp, peak, 1);
    return (size_t)peak[0];
}

// The rule: of L blocks that keep n times their input, every k-th input with k = sqrt(m L/n) takes least memory. With
// one segment a stage, as GPipe has it, memory is O(N + L/K N/M): N sequences in M micro-batches, L/K blocks on a stage
// (Huang et al. 2018, section 2.3; their K is our p).
static void segments(Run *run, Comm *pp, Training t) {
    char name[48], bytes[4][32];
    t.model.layers = LONG;
    for (size_t i = 0; i < BUDGET_SEGMENTS; i++) {
        snprintf(name, sizeof name, "every %zu", every[i]);
        segment(run, pp, &t, name, every[i]);
    }
    segment_results(run, &t, every);
    for (size_t i = 0; i < 3; i++) {
        t.micro_batches = (size_t)1 << i;
        snprintf(name, sizeof name, "whole stage, M = %zu", t.micro_batches);
        size_t peak = t.sequences < t.micro_batches ? 0 : segment(run, pp, &t, name, LONG);
        page_value(bytes[i], sizeof bytes[i], (double)peak, "bytes");
    }
    say(run, "Whole stages, as GPipe: %s at M = 1, %s at 2, %s at 4: N C + (L/K)(N/M)nC.", bytes[0],
        bytes[1], bytes[2]);
}

static void budget(Run *run) {
    require_one_link(run);
    Comm *pp = comm_split(run->world, 0, run->world->rank, "pp");
    Training t = { .model = tiny, .steps = STEPS, .sequences = option_size(run, "batch"),
                   .micro_batches = option_size(run, "micro-batches"), .optimizer = sgd(0.1), .clip = 0.5,
                   .recorded = true, .watched = MEM_ACTIVATIONS };
    t.model.layers = option_size(run, "layers");
    t.model.seed = run->seed;
    REQUIRE(t.model.layers >= pp->size && t.model.layers <= 96, "--layers %zu: expected %zu, a block per stage, to 96",
            t.model.layers, pp->size);
    REQUIRE(pp->size <= LONG, "%zu stages need as many blocks; the longer model has %d: start fewer ranks", pp->size,
            LONG);
    REQUIRE(t.micro_batches > 0 && t.sequences >= t.micro_batches, "--batch %zu leaves some of the %zu micro-batches "
            "empty: choose at least as many sequences", t.sequences, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    config_require(&t.model);
    say(run, "%zu blocks on %zu stages, C = %zu, H = %zu, T = %zu; %zu sequences in %zu micro-batches, all in flight",
        t.model.layers, pp->size, tiny.width, tiny.heads, tiny.context, t.sequences, t.micro_batches);
    budget_search(run);                            // on random stages: plan = the best of all that there are
    budgets(run, pp, &t);
    segments(run, pp, t);
    data_free(&t.data);
    comm_free(pp);
}

static const Option options[] = {
    { "layers", "N", "16", "blocks" },
    { "batch", "N", "4", "sequences in a step" },
    { "micro-batches", "N", "2", "micro-batches of a step, all in flight at once under GPipe" },
    {0},
};
EXPERIMENT(budget, options);
