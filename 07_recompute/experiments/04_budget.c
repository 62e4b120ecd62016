// Plans for four budgets in a GPipe pipeline, from keeping everything to recomputing every block,
// are compared with the unsplit model, bit by bit. budget_costs.c has the sizes and the costs of a
// plan; search.c compares plans with exhaustive search; segments.c keeps every k-th input.
#include "07_recompute/experiments/experiments.h"
#include <stdio.h>
#include <string.h>

static const ModelConfig tiny = {
    .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
enum { STEPS = 2, BUDGETS = 4, DRAWN = 2 };
// A budget's place between the peak of recomputing every block, 0, and of keeping everything, 1.
static const struct {
    WayName name;
    double share;
} budgeted[BUDGETS] = {
    { { "b100", "100 %" }, 1 },
    { { "b60", "60 %" }, 0.6 },
    { { "b30", "30 %" }, 0.3 },
    { { "least", "least" }, 0 },
};

// ---------------------------------------------------------------- the page

#define EACH_WAY(id) \
    { "b100." id, "b60." id, "b30." id, "least." id }
static void show_plans(Run *run, const StageMeasured got[BUDGETS]) {
    static const char *const columns[] = { "budget 100 %", "budget 60 %", "budget 30 %",
                                           "recompute all", NULL };
    char more[BUDGETS][32], step[BUDGETS][32];
    for (size_t w = 0; w < BUDGETS; w++) {
        snprintf(more[w], sizeof more[w], "=+%.1f %%",
                 100 * (got[w].timing.flops / got[0].timing.flops - 1));
        step[w][0] = '=';
        page_value(step[w] + 1, sizeof step[w] - 1, (double)got[w].timing.step, "ps");
    }
    const Result rows[] = {
        { "activations, peak", "the budget", EACH_WAY("peak") },
        { "forwards of blocks", "m each; full: 2m", EACH_WAY("forwards") },
        { "probabilities again", "m, if selective", EACH_WAY("rebuilds") },
        { "more work", "of a step's work", { more[0], more[1], more[2], more[3] } },
        { "step", "simulated", { step[0], step[1], step[2], step[3] } },
        { 0 }
    };
    results(run, columns, rows);
}

// plan: of the first stage, for the budget that is drawn.
static void conclude(Run *run, const StageMeasured got[BUDGETS], const BudgetPlan *plan) {
    char peak[32], all[32], least[32];
    double before = got[0].timing.flops;
    page_value(peak, sizeof peak, cost_value(run, "b30.peak"), "bytes");
    page_value(all, sizeof all, cost_value(run, "b100.peak"), "bytes");
    page_value(least, sizeof least, cost_value(run, "least.peak"), "bytes");
    say_answer(run,
               "Those that bring the peak under the budget with the least extra work. For %s "
               "instead of %s, stage 0 recomputes %zu of its %zu blocks in full and %zu "
               "selectively, for %.1f %% more work.",
               peak, all, budget_count(plan, RECOMPUTE_FULL), plan->stage.blocks,
               budget_count(plan, RECOMPUTE_SELECTIVE),
               100 * (got[DRAWN].timing.flops / before - 1));
    say_cost(run, "a plan before training. Recomputing all blocks needs %s, but %.1f %% more work.",
             least, 100 * (got[BUDGETS - 1].timing.flops / before - 1));
    say_use_when(run, "activations almost fit, so that not every block needs a second forward.");
}

// ---------------------------------------------------------------- training by a plan

// Segments of k blocks, of which only the first block's input is kept. The last may be shorter.
static void recompute_every(Model *m, size_t k) {
    size_t lo = m->layers[0].number == 0, blocks = 0; // blocks follow the embedding, if any
    while (lo + blocks < m->n_layers && m->layers[lo + blocks].kind->rebuild) blocks++;
    for (size_t i = 0; i * k < blocks; i++)
        recompute_wrap_range(m, lo + i, blocks - i * k < k ? blocks - i * k : k);
}

StageMeasured budget_train(Comm *pp, const Training *t, const Recompute *choice, size_t k,
                           Trajectory *c) {
    RecomputeStage stage = { .pp = pp, .tied = pipeline_tied_group(pp) };
    Model *m =
        model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    counted_wrap_blocks(m, stage.counts);
    if (choice) recompute_each(m, choice);
    else recompute_every(m, k);
    model_allocate(m);
    training_run(c, m, t, 1, 0, recompute_stage_step, &stage);
    StageMeasured seen = { counted_sum(stage.counts, sizeof stage.counts / sizeof *stage.counts),
                           memory_peak(MEM_ACTIVATIONS), counted_computing(),
                           picture_timing(c->run) };
    model_free(m);
    comm_free(stage.tied);
    return seen;
}

static void budgets(Run *run, Comm *pp, const Training *t) {
    Trajectory unsplit = training_unsplit(run, t, 1);
    StageMeasured seen[BUDGETS];
    BudgetPlan drawn = { 0 };
    for (size_t w = 0; w < BUDGETS; w++) {
        BudgetPlan plan = budget_plan(t, pp->size, pp->rank, budgeted[w].share);
        bool found = budget_choose(&plan.stage, plan.budget / sizeof(real), plan.choice);
        check_true(run, "every plan", "is found", found);
        Trajectory got = trajectory_new(run, t);
        seen[w] = budget_train(pp, t, plan.choice, 0, &got);
        char title[64];
        snprintf(title, sizeof title, "budget %s", budgeted[w].name.name);
        picture_show(run, title,
                     PICTURE_MEMORY | PICTURE_SAME_SCALE |
                         (w == DRAWN ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        check_true(run, "every plan", "the measured peak is within its budget",
                   seen[w].peak <= plan.budget);
        budget_costs(run, t, budgeted[w].name, &plan, &seen[w]);
        training_compare(run, "every plan = unsplit", &got, &unsplit, 0);
        trajectory_free(&got);
        if (w == DRAWN) drawn = plan;
        else budget_plan_free(&plan);
    }
    show_plans(run, seen);
    conclude(run, seen, &drawn);
    budget_plan_free(&drawn);
    trajectory_free(&unsplit);
}

static void budget(Run *run) {
    require_one_link(run);
    Comm *pp = comm_split(run->world, 0, run->world->rank, "pp");
    Training t = { .model = tiny,
                   .steps = STEPS,
                   .sequences = option_size(run, "batch"),
                   .micro_batches = option_size(run, "micro-batches"),
                   .optimizer = sgd(0.1),
                   .clip = 0.5,
                   .recorded = true,
                   .watched = MEM_ACTIVATIONS };
    t.model.layers = option_size(run, "layers");
    t.model.seed = run->seed;
    REQUIRE(t.model.layers >= pp->size && t.model.layers <= 96,
            "--layers %zu: expected %zu, a block per stage, to 96", t.model.layers, pp->size);
    REQUIRE(pp->size <= BUDGET_LONG,
            "%zu stages need as many blocks; the longer model has %d: start fewer ranks", pp->size,
            BUDGET_LONG);
    REQUIRE(t.micro_batches > 0 && t.sequences >= t.micro_batches,
            "--batch %zu leaves some of the %zu micro-batches empty: choose at least as many "
            "sequences",
            t.sequences, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    config_require(&t.model);
    say(run,
        "%zu blocks of width %zu on %zu stages; %zu sequences of %zu tokens in m = %zu "
        "micro-batches, all in flight.",
        t.model.layers, tiny.width, pp->size, t.sequences, tiny.context, t.micro_batches);
    say(run, "A budget limits the peak of activations. 0 %%: the peak if all blocks are "
             "recomputed; 100 %%:");
    say(run, "the peak if every block keeps all its items; 60 %%: 60 %% of the way from the first "
             "to the second.");
    say(run, "A plan recomputes a block in full, or selectively (its attention probabilities), or "
             "not at all.");
    budget_search(run);
    budgets(run, pp, &t);
    budget_segments(run, pp, t);
    data_free(&t.data);
    comm_free(pp);
}

static const Option options[] = {
    { "layers", "N", "16", "blocks" },
    { "batch", "N", "4", "sequences in a step" },
    { "micro-batches", "N", "2", "micro-batches of a step, all in flight at once under GPipe" },
    { 0 },
};
EXPERIMENT(budget, options);
