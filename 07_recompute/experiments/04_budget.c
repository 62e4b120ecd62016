// Plans for four budgets in a GPipe pipeline, from keeping everything to recomputing every block,
// are compared with the unsplit model, bit by bit. search.c compares plans with exhaustive search,
// segments.c has segments of every k-th input.
#include "07_recompute/experiments/experiments.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ModelConfig tiny = {
    .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
enum { STEPS = 2, BUDGETS = 4, DRAWN = 2 };
// A budget's place between the peak of recomputing every block, 0, and of keeping everything, 1.
static const struct { WayName name; double share;
} budgeted[BUDGETS] = {
    { { "b100", "100 %" }, 1 },
    { { "b60", "60 %" }, 0.6 },
    { { "b30", "30 %" }, 0.3 },
    { { "least", "least" }, 0 },
};

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
CutSizes budget_sizes(const Training *t, size_t p, size_t i) {
    return cut_stage(cut_sizes(&t->model, 1, 0), p, i);
}

// ---------------------------------------------------------------- the costs of a plan

// The most elements that stage i of p holds under GPipe. Walks through all forwards, then all
// backwards, block by block: another way than the formula of budget_peak().
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

typedef struct {
    BudgetStage stage;
    size_t budget;                                 // bytes
    Recompute *choice;                             // [stage.blocks]
} Planned;
// The sizes of stage i, and a budget at `share` of the way from the least peak to the highest.
static Planned planned(const Training *t, size_t p, size_t i, double share) {
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
    return (Planned){ .stage = s, .budget = budget * sizeof(real), .choice = choice };
}
static void planned_free(Planned *plan) {
    free((void *)plan->stage.block);
    free(plan->choice);
}

static size_t count(const Planned *plan, Recompute how) {
    size_t n = 0;
    for (size_t i = 0; i < plan->stage.blocks; i++) n += plan->choice[i] == how;
    return n;
}

static void costs(Run *run, const Training *t, WayName name, const Planned *plan,
                  const StageMeasured *got) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    CutSizes z = budget_sizes(t, p, i);
    size_t full = count(plan, RECOMPUTE_FULL), selective = count(plan, RECOMPUTE_SELECTIVE);
    way_cost_played(run, name, "peak", "activation peak", "bytes",
                    (double)(walked_peak(t, p, i, plan->choice) * sizeof(real)), (double)got->peak);
    way_cost(run, name, "forwards", "forwards of this stage's blocks", "calls",
             (double)((z.blocks + full) * m), (double)got->counts.forwards);
    way_cost(run, name, "rebuilds", "probabilities computed again", "calls",
             (double)(selective * m), (double)got->counts.rebuilds);

    double flops = 3 * work_stage(&z, t->sequences).flops +
                   (double)full * work_block(&z, t->sequences).flops +
                   (double)selective * work_scores(&z, t->sequences).flops;
    comm_all_reduce_doubles(run->world, &flops, 1);     // each stage has a plan of its own
    way_cost(run, name, "flops", "hardware FLOPs, all stages", "FLOPs", flops, got->timing.flops);
    if (!clock_config()->simulated) return;                        // real time is not predicted
    double computing = 0;   // added per micro-batch, because each product rounds to picoseconds
    for (size_t k = 0; k < m; k++) {
        size_t B = range_size(shard_range(t->sequences, m, k));
        computing += 3 * work_stage(&z, B).time + (double)full * work_block(&z, B).time +
                     (double)selective * work_scores(&z, B).time;
    }
    way_cost(run, name, "computing", "this stage computes", "ps", computing,
             (double)got->computing);
}

// ---------------------------------------------------------------- the page

#define EACH_WAY(id) { "b100." id, "b60." id, "b30." id, "least." id }
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
        { "forwards of blocks", "m, or 2m if full", EACH_WAY("forwards") },
        { "probabilities again", "m if selective", EACH_WAY("rebuilds") },
        { "more work", "of a step's work", { more[0], more[1], more[2], more[3] } },
        { "step", "simulated", { step[0], step[1], step[2], step[3] } },
        {0}
    };
    results(run, columns, rows);
}

// plan: of the first stage, for the budget that is drawn.
static void conclude(Run *run, const StageMeasured got[BUDGETS], const Planned *plan) {
    char peak[32], all[32], least[32];
    double before = got[0].timing.flops;
    page_value(peak, sizeof peak, cost_value(run, "b30.peak"), "bytes");
    page_value(all, sizeof all, cost_value(run, "b100.peak"), "bytes");
    page_value(least, sizeof least, cost_value(run, "least.peak"), "bytes");
    say_answer(run, "The cheapest set that fits. For %s instead of %s, stage 0 recomputes %zu of "
                    "its %zu blocks in full and %zu selectively, for %.1f %% more work.",
               peak, all, count(plan, RECOMPUTE_FULL), plan->stage.blocks,
               count(plan, RECOMPUTE_SELECTIVE), 100 * (got[DRAWN].timing.flops / before - 1));
    say_cost(run, "a plan before training, from sizes alone. Recomputing every block would need "
                  "only %s, but %.1f %% more work.",
             least, 100 * (got[BUDGETS - 1].timing.flops / before - 1));
    say_use_when(run, "activations almost fit: a small gap should not cost a second forward of "
                      "every block.");
}

// ---------------------------------------------------------------- training by a plan

// Segments of k blocks, of which only the first block's input is kept. The last may be shorter.
static void recompute_every(Model *m, size_t k) {
    size_t lo = m->layers[0].number == 0, blocks = 0;   // blocks follow the embedding, if any
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
    Planned drawn = {0};
    for (size_t w = 0; w < BUDGETS; w++) {
        Planned plan = planned(t, pp->size, pp->rank, budgeted[w].share);
        bool found = budget_choose(&plan.stage, plan.budget / sizeof(real), plan.choice);
        check_true(run, "every plan", "is found", found);
        Trajectory got = trajectory_new(run, t);
        seen[w] = budget_train(pp, t, plan.choice, 0, &got);
        char title[64];
        snprintf(title, sizeof title, "budget %s", budgeted[w].name.name);
        picture_show(run, title, PICTURE_MEMORY | PICTURE_SAME_SCALE |
                     (w == DRAWN ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        check_true(run, "every plan", "the measured peak is within its budget",
                   seen[w].peak <= plan.budget);
        costs(run, t, budgeted[w].name, &plan, &seen[w]);
        training_compare(run, "every plan = unsplit", &got, &unsplit, 0);
        trajectory_free(&got);
        if (w == DRAWN) drawn = plan;
        else planned_free(&plan);
    }
    show_plans(run, seen);
    conclude(run, seen, &drawn);
    planned_free(&drawn);
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
    say(run, "A budget limits the peak of activations. 100 %%: every block keeps all its items. "
             "60 %%: the");
    say(run, "least, plus 60 %% of the difference between the two. The least: all blocks are "
             "recomputed.");
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
    {0},
};
EXPERIMENT(budget, options);
