// Compares plans for four budgets in a GPipe pipeline with the unsplit model. The trainings must be
// equal in every bit. The plans go from keeping everything to recomputing every block.
#include "07_recompute/experiments/experiments.h"

static const ModelConfig tiny = {
    .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
enum { BUDGETS = 4, DRAWN = 2 };
// `share` places a budget between the peak of recomputing every block (0) and the peak of keeping
// everything (1).
static const struct {
    const char *id, *name;
    double share;
} budgeted[BUDGETS] = {
    { "b100", "100 %", 1 },
    { "b60", "60 %", 0.6 },
    { "b30", "30 %", 0.3 },
    { "least", "0 %", 0 },
};

static void costs(Run *run, const Training *t, size_t w, const BudgetPlan *plan,
                  const RecomputeSeen *seen) {
    size_t p = run->world->size, i = run->world->rank;
    CutSizes z = stage_sizes(&t->model, p, i);
    Work all = recompute_work(t, &z, (double)budget_count(plan, RECOMPUTE_FULL),
                              (double)budget_count(plan, RECOMPUTE_SELECTIVE), false);
    const CostRow row[] = { { "peak", "activation peak", "bytes",
                              BY_PLAY((double)budget_walked_peak(t, p, i, plan->choice)),
                              seen->peak },
                            // Each stage has a plan of its own, so the FLOPs of all ranks are
                            // added.
                            { "flops", "hardware FLOPs, all stages", "FLOPs",
                              BY_FORMULA(sum_of_ranks(run, all.flops)), seen->timing.flops },
                            // With the wall clock the table ends here, because real time is not
                            // predicted.
                            { clock_config()->simulated ? "computing" : NULL, "this stage computes",
                              "ps", BY_FORMULA(all.time), (double)seen->computing },
                            { 0 } };
    check_costs(run, page_text(run, "%s.%%s", budgeted[w].id),
                page_text(run, "budget %s: %%s", budgeted[w].name), row);
}

// ---------------------------------------------------------------- the page

// Returns the budget of the last stage, in bytes. On rank 0 the plans are those of stage 0.
static double last_budget(Run *run, const Training *t, double share) {
    const size_t p = run->world->size;
    BudgetPlan last = budget_plan(t, p, p - 1, share);
    const double budget = (double)last.budget;
    budget_plan_free(&last);
    return budget;
}

// Returns a table cell with a letter per block of the stage.
static const char *letters(Run *run, const BudgetPlan *plan) {
    const char *cell = "=";
    for (size_t i = 0; i < plan->stage.blocks; i++) {
        const Recompute r = plan->choice[i];
        cell = page_text(run, "%s%c", cell,
                         r == RECOMPUTE_FULL        ? 'F'
                         : r == RECOMPUTE_SELECTIVE ? 'S'
                                                    : '.');
    }
    return cell;
}

// Returns the work of this recomputation of a block, divided by the elements that it frees.
static double work_per_byte(const BudgetPlan *plan, Recompute how) {
    const BudgetBlock *b = &plan->stage.block[0];
    return b->again[how] / (double)(b->kept[RECOMPUTE_NONE] - b->kept[how]);
}

// Prints the table of results. Rank 0 prints, so `plan` has the plans of stage 0. A row shows
// each block if the stage has at most 8 blocks, otherwise only their numbers.
static void show(Run *run, const Training *t, const RecomputeSeen seen[BUDGETS],
                 const BudgetPlan *plan) {
    const char *columns[BUDGETS + 1] = { 0 };
    const bool few = plan->stage.blocks <= 8;
    Result rows[] = { { "budget, last stage", "min + x(max-min)", { 0 } },
                      { "budget, stage 0", "min + x(max-min)", { 0 } },
                      { "activations, peak", "at most the budget", { 0 } },
                      few ? (Result){ "blocks, stage 0", "block 0 at left", { 0 } }
                          : (Result){ "full, selective blocks", "of stage 0", { 0 } },
                      { "more work", "over all stages", { 0 } },
                      { "step", "simulated", { 0 } },
                      { 0 } };
    const char *more[BUDGETS]; // work, compared with the plan that recomputes nothing
    for (size_t w = 0; w < BUDGETS; w++) {
        const double work = seen[w].timing.flops / seen[0].timing.flops;
        more[w] = page_text(run, "%.1f %%", 100 * (work - 1));
        columns[w] = page_text(run, "budget %s", budgeted[w].name);
        rows[0].cell[w] = value_cell(run, last_budget(run, t, budgeted[w].share), "bytes");
        rows[1].cell[w] = value_cell(run, (double)plan[w].budget, "bytes");
        rows[2].cell[w] = page_text(run, "%s.peak", budgeted[w].id);
        rows[3].cell[w] = few ? letters(run, &plan[w])
                              : page_text(run, "=%zu, %zu", budget_count(&plan[w], RECOMPUTE_FULL),
                                          budget_count(&plan[w], RECOMPUTE_SELECTIVE));
        rows[4].cell[w] = page_text(run, "=+%s", more[w]);
        rows[5].cell[w] = value_cell(run, (double)seen[w].timing.step, "ps");
    }
    results(run, columns, run->world->size > 1 ? rows : rows + 1);
    const size_t p = run->world->size;
    say_answer(
        run,
        "S first: per byte freed, F takes %.1f times the work of S. But S frees only "
        "probabilities. So a plan has F blocks if S in all blocks frees too little. Memory is %s "
        "its peak when stage 0's last block begins its backward. In any plan this block then "
        "holds all its items of one micro-batch, so recomputing it frees the least. For %s "
        "instead of %s stage 0 recomputes %zu of %zu blocks in full, %zu selectively.",
        work_per_byte(plan, RECOMPUTE_FULL) / work_per_byte(plan, RECOMPUTE_SELECTIVE),
        run->world->size > 1 ? "at" : "at or near", value_text(run, seen[DRAWN].peak, "bytes"),
        value_text(run, seen[0].peak, "bytes"), budget_count(&plan[DRAWN], RECOMPUTE_FULL),
        plan[DRAWN].stage.blocks, budget_count(&plan[DRAWN], RECOMPUTE_SELECTIVE));
    say_cost(run,
             "the step takes %s instead of %s, and a plan must be made. All blocks in full would "
             "need %s on stage 0, with %s more work%s.",
             value_text(run, (double)seen[DRAWN].timing.step, "ps"),
             value_text(run, (double)seen[0].timing.step, "ps"),
             value_text(run, seen[BUDGETS - 1].peak, "bytes"), more[BUDGETS - 1],
             p > 1 ? " over all stages" : "");
    say_use_when(run, "activations do not fit, but F in every block would free more than needed. "
                      "With FlashAttention no probabilities are stored, so S frees nothing.");
}

static void budget(Run *run) {
    ModelConfig model = tiny;
    model.layers = option_size(run, "layers");
    REQUIRE(model.layers <= 96, "--layers %zu: expected at most 96 blocks", model.layers);
    Training t = stages_training(run, &model, option_size(run, "batch"));
    t.steps = 2;
    t.optimizer = sgd(0.1);
    t.clip = 0.5;
    t.recorded = true;
    t.watched = MEM_ACTIVATIONS;
    config_require(&t.model);
    say(run,
        "%zu blocks of width %zu on %zu stage%s; %zu sequences of %zu tokens in m = %zu "
        "micro-batches, all in flight.\n"
        "A block keeps all its items for its backward (.), or drops some and computes them again: "
        "selective\n(S) drops the attention probabilities, full (F) all but the input. max: a "
        "stage's activation peak\nif nothing is dropped. min: if all blocks are F. x: the column's "
        "%%. Plan: least work in the budget.",
        t.model.layers, tiny.width, run->world->size, run->world->size > 1 ? "s" : "", t.sequences,
        tiny.context, t.micro_batches);
    Trajectory unsplit = training_unsplit(run, &t, 1);
    RecomputeSeen seen[BUDGETS];
    BudgetPlan plan[BUDGETS];
    for (size_t w = 0; w < BUDGETS; w++) {
        plan[w] = budget_plan(&t, run->world->size, run->world->rank, budgeted[w].share);
        bool found =
            budget_choose(&plan[w].stage, plan[w].budget / weight_bytes(&t.model), plan[w].choice);
        check_true(run, "every plan", "is found", found);
        Model *stage = recompute_stage(run, &t);
        recompute_each(stage, plan[w].choice);
        seen[w] = recompute_train(run, &t, stage, "every plan", &unsplit);
        check_true(run, "every plan", "the measured peak is within its budget",
                   seen[w].peak <= (double)plan[w].budget);
        if (w == DRAWN)
            picture_show(run, page_text(run, "budget %s", budgeted[w].name),
                         PICTURE_MEMORY | PICTURE_ALIKE_ONCE);
        costs(run, &t, w, &plan[w], &seen[w]);
    }
    show(run, &t, seen, plan);
    for (size_t w = 0; w < BUDGETS; w++) budget_plan_free(&plan[w]);
    trajectory_free(&unsplit);
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
