// Compares plans for four budgets in a GPipe pipeline with the unsplit model, bit by bit. The plans
// go from keeping everything to recomputing every block. budget_plans.c has the sizes and the peak
// of a plan; segments.c keeps every k-th input.
#include "07_recompute/experiments/experiments.h"

static const ModelConfig tiny = {
    .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
enum { STEPS = 2, BUDGETS = 4, DRAWN = 2 };
// share: a budget's place between the peak of recomputing every block (0) and the peak of keeping
// everything (1).
static const struct {
    const char *id, *name;
    double share;
} budgeted[BUDGETS] = {
    { "b100", "100 %", 1 },
    { "b60", "60 %", 0.6 },
    { "b30", "30 %", 0.3 },
    { "least", "least", 0 },
};

// ---------------------------------------------------------------- a plan, trained

static void costs(Run *run, const Training *t, const char *id, const BudgetPlan *plan,
                  const RecomputeSeen *seen) {
    size_t p = run->world->size, i = run->world->rank;
    CutSizes z = stage_sizes(&t->model, p, i);
    double full = (double)budget_count(plan, RECOMPUTE_FULL);
    double selective = (double)budget_count(plan, RECOMPUTE_SELECTIVE);
    Work all = { 0 }; // added per micro-batch, because each product rounds to picoseconds
    for (size_t k = 0; k < t->micro_batches; k++) {
        size_t B = part_size(t->sequences, t->micro_batches, k);
        Work again = work_sum(work_times(full, work_block(&z, B)),
                              work_times(selective, work_scores(&z, B)));
        all = work_sum(all, work_sum(work_times(3, work_stage(&z, B)), again));
    }
    const CostRow row[] = { { "peak", "activation peak", "bytes",
                              BY_PLAY((double)budget_walked_peak(t, p, i, plan->choice)),
                              seen->peak },
                            // Each stage has a plan of its own.
                            { "flops", "hardware FLOPs, all stages", "FLOPs",
                              BY_FORMULA(sum_of_ranks(run, all.flops)), seen->timing.flops },
                            // Real time is not predicted.
                            { clock_config()->simulated ? "computing" : NULL, "this stage computes",
                              "ps", BY_FORMULA(all.time), (double)seen->computing },
                            { 0 } };
    check_costs(run, page_text(run, "%s.%%s", id), page_text(run, "budget %s: %%s", id), row);
}

static RecomputeSeen train(Run *run, const Training *t, size_t w, const BudgetPlan *plan,
                           Trajectory *unsplit) {
    Range layers = pipeline_stage_layers(&t->model, NULL, run->world->size, run->world->rank);
    Model *m = model_describe(&t->model, layers);
    Trajectory got = trajectory_new(run, t);
    recompute_each(m, plan->choice);
    RecomputeSeen seen = recompute_train(run, t, m, &got);
    recompute_show(run, page_text(run, "budget %s", budgeted[w].name), w == DRAWN, &seen.timing);
    check_true(run, "every plan", "the measured peak is within its budget",
               seen.peak <= (double)plan->budget);
    costs(run, t, budgeted[w].id, plan, &seen);
    training_compare(run, "every plan = unsplit", &got, unsplit, 0);
    trajectory_free(&got);
    return seen;
}

// ---------------------------------------------------------------- the page

// Prints the table and the answer of stage 0, which is rank 0 and prints for all.
static void show(Run *run, const RecomputeSeen seen[BUDGETS], const BudgetPlan *plan) {
    static const char *const columns[] = { "budget 100 %", "budget 60 %", "budget 30 %",
                                           "recompute all", NULL };
    Result rows[] = { { "budget of stage 0", "a share, see above", { 0 } },
                      { "its activations, peak", "at most the budget", { 0 } },
                      { "in full, selectively", "blocks of stage 0", { 0 } },
                      { "more work", "of a step's work", { 0 } },
                      { "step", "simulated", { 0 } },
                      { 0 } };
    const char *more[BUDGETS]; // work, compared with the plan that recomputes nothing
    for (size_t w = 0; w < BUDGETS; w++) {
        const double work = seen[w].timing.flops / seen[0].timing.flops;
        more[w] = page_text(run, "%.1f %%", 100 * (work - 1));
        rows[0].cell[w] = value_cell(run, (double)plan[w].budget, "bytes");
        rows[1].cell[w] = value_cell(run, seen[w].peak, "bytes");
        rows[2].cell[w] = page_text(run, "=%zu, %zu", budget_count(&plan[w], RECOMPUTE_FULL),
                                    budget_count(&plan[w], RECOMPUTE_SELECTIVE));
        rows[3].cell[w] = page_text(run, "=+%s", more[w]);
        rows[4].cell[w] = value_cell(run, (double)seen[w].timing.step, "ps");
    }
    results(run, columns, rows);
    say_answer(run,
               "Selectively first (least work per byte), then the first blocks in full: at the "
               "peak the last block is complete in any case. For %s instead of %s stage 0 "
               "recomputes %zu of %zu blocks in full and %zu selectively, for %s more work.",
               rows[1].cell[DRAWN] + 1, rows[1].cell[0] + 1,
               budget_count(&plan[DRAWN], RECOMPUTE_FULL), plan[DRAWN].stage.blocks,
               budget_count(&plan[DRAWN], RECOMPUTE_SELECTIVE), more[DRAWN]);
    say_cost(run, "a plan before training. With all blocks recomputed: %s, and %s more work.",
             rows[1].cell[BUDGETS - 1] + 1, more[BUDGETS - 1]);
    say_use_when(run, "activations almost fit, so that not every block needs a second forward.");
}

static void budgets(Run *run, const Training *t) {
    Trajectory unsplit = training_unsplit(run, t, 1);
    RecomputeSeen seen[BUDGETS];
    BudgetPlan plan[BUDGETS];
    for (size_t w = 0; w < BUDGETS; w++) {
        plan[w] = budget_plan(t, run->world->size, run->world->rank, budgeted[w].share);
        bool found =
            budget_choose(&plan[w].stage, plan[w].budget / weight_bytes(&t->model), plan[w].choice);
        check_true(run, "every plan", "is found", found);
        seen[w] = train(run, t, w, &plan[w], &unsplit);
    }
    show(run, seen, plan);
    for (size_t w = 0; w < BUDGETS; w++) budget_plan_free(&plan[w]);
    trajectory_free(&unsplit);
}

static void budget(Run *run) {
    ModelConfig model = tiny;
    model.layers = option_size(run, "layers");
    REQUIRE(model.layers <= 96 && run->world->size <= SEGMENTS_BLOCKS,
            "--layers %zu, %zu stages: expected at most 96 blocks and %d stages", model.layers,
            run->world->size, SEGMENTS_BLOCKS);
    Training t = stages_training(run, &model, option_size(run, "batch"));
    t.steps = STEPS;
    t.optimizer = sgd(0.1);
    t.clip = 0.5;
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    config_require(&t.model);
    say(run,
        "%zu blocks of width %zu on %zu stages; %zu sequences of %zu tokens in m = %zu "
        "micro-batches, all in flight.\n"
        "A budget limits the peak of activations. 0 %%: the peak if all blocks are recomputed; 100 "
        "%%: if\nevery block keeps all its items; 60 %%: 60 %% of the way between. A plan "
        "recomputes a block in full,\nor selectively (its attention probabilities), or not at all.",
        t.model.layers, tiny.width, run->world->size, t.sequences, tiny.context, t.micro_batches);
    budgets(run, &t);
    segments_train(run, t);
    data_free(&t.data);
}

static const Option options[] = {
    { "layers", "N", "16", "blocks" },
    { "batch", "N", "4", "sequences in a step" },
    { "micro-batches", "N", "2", "micro-batches of a step, all in flight at once under GPipe" },
    STORAGE_OPTION,
    { 0 },
};
EXPERIMENT(budget, options);
