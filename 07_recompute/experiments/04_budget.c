// Plans for four budgets, from keeping everything to recomputing every block, in a GPipe pipeline;
// segments of every k-th input; search.c has budget_choose() beside exhaustive search.
#include "07_recompute/experiments/experiments.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ModelConfig tiny = {
    .width = 12, .heads = 3, .context = 10, .vocab = 41, .dropout = 0.1
};
enum { STEPS = 2, LONG = 64 };  // LONG: blocks of the model of which every k-th input is kept
enum { WAYS = 4, DRAWN = 2, SEGMENTS = 4 };
static const size_t every[SEGMENTS] = { 1, 2, 4, 8 };
// Where the budget lies between the least peak that there is, 0, and that of keeping everything, 1.
static const struct { WayName name; double share;
} way[WAYS] = {
    { { "b100", "100 %" }, 1 },
    { { "b60", "60 %" }, 0.6 },
    { { "b30", "30 %" }, 0.3 },
    { { "least", "least" }, 0 },
};

typedef struct {
    Counts counts;                                 // of my layers, in the last step
    size_t peak;                                   // bytes of activations, in the last step
    Picoseconds computing;                         // this rank, in the last step
    Timing timing;                                 // all ranks, in the last step
} Measured;

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
static CutSizes stage_sizes(const Training *t, size_t p, size_t i) {
    return cut_stage(cut_sizes(&t->model, 1, 0), p, i);
}

// ---------------------------------------------------------------- what a plan must cost

// The most elements that stage i of p holds under GPipe: all forwards, then all backwards, block
// after block.
static size_t walked_peak(const Training *t, size_t p, size_t i, const Recompute *choice) {
    CutSizes z = stage_sizes(t, p, i);
    size_t block = kept_block(&z), head = z.last ? kept_head(&z) : 0, held = 0, peak = 0;
    size_t kept[] = { block, block - kept_scores(&z), 0 };
    for (size_t n = 0; n < 2 * t->micro_batches; n++) {
        bool forward = n < t->micro_batches;
        size_t tokens =
            z.T * range_size(shard_range(t->sequences, t->micro_batches, n % t->micro_batches));
        if (!forward) held -= head * tokens;
        for (size_t k = 0; k < z.blocks; k++) {
            size_t b = forward ? k : z.blocks - 1 - k, own = kept[choice[b]] * tokens;
            bool output = b + 1 < z.blocks || z.last;   // of the last block: it may leave the stage
            // its input, its output
            if (forward) held += (k == 0) * z.C * tokens + output * z.C * tokens;
            else held -= own;
            peak = most(peak, held + block * tokens);
            if (forward) held += own;
            else held -= output * z.C * tokens + (b == 0) * z.C * tokens;
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
static Planned planned(const Training *t, size_t p, size_t i, double share) {
    CutSizes z = stage_sizes(t, p, i);
    size_t block = kept_block(&z), scores = kept_scores(&z),
           one = ceil_div(t->sequences, t->micro_batches);
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
                  const Measured *got) {
    size_t p = run->world->size, i = run->world->rank, m = t->micro_batches;
    CutSizes z = stage_sizes(t, p, i);
    size_t full = count(plan, RECOMPUTE_FULL), selective = count(plan, RECOMPUTE_SELECTIVE);
    way_cost_played(run, name, "peak", "activation peak", "bytes",
                    (double)(walked_peak(t, p, i, plan->choice) * sizeof(real)), (double)got->peak);
    way_cost(run, name, "forwards", "forwards of my blocks", "calls",
             (double)((z.blocks + full) * m), (double)got->counts.forwards);
    way_cost(run, name, "rebuilds", "probabilities computed again", "calls",
             (double)(selective * m), (double)got->counts.rebuilds);

    double again[2] = { (double)full * work_block(&z, t->sequences).flops +
                        (double)selective * work_scores(&z, t->sequences).flops,
                        (double)full * work_block(&z, t->sequences).time +
                        (double)selective * work_scores(&z, t->sequences).time };
    double flops = 3 * work_stage(&z, t->sequences).flops + again[0], all = flops;
    comm_all_reduce_doubles(run->world, &all, 1);   // each stage has a plan of its own
    way_cost(run, name, "flops", "hardware FLOPs, all stages", "FLOPs", all, got->timing.flops);
    if (!clock_config()->simulated) return;                        // real time is not predicted
    double micro = 0;   // products round to picoseconds one by one
    for (size_t k = 0; k < m; k++) {
        size_t B = range_size(shard_range(t->sequences, m, k));
        micro += 3 * work_stage(&z, B).time + (double)full * work_block(&z, B).time +
                 (double)selective * work_scores(&z, B).time;
    }
    way_cost(run, name, "computing", "my stage computes", "ps", micro, (double)got->computing);
}

#define EACH_WAY(id) { "b100." id, "b60." id, "b30." id, "least." id }
static void show_plans(Run *run, const Measured got[WAYS]) {
    static const char *const columns[] = { "100 %", "60 %", "30 %", "least", NULL };
    char more[WAYS][32], step[WAYS][32];
    for (size_t w = 0; w < WAYS; w++) {
        snprintf(more[w], sizeof more[w], "=+%.1f %%",
                 100 * (got[w].timing.flops / got[0].timing.flops - 1));
        step[w][0] = '=';
        page_value(step[w] + 1, sizeof step[w] - 1, (double)got[w].timing.step, "ps");
    }
    const Result rows[] = {
        { "activations, peak", "the budget", EACH_WAY("peak") },
        { "forwards of blocks", "m; 2m if full", EACH_WAY("forwards") },
        { "probabilities again", "m if selective", EACH_WAY("rebuilds") },
        { "more work", "of 3F", { more[0], more[1], more[2], more[3] } },
        { "step", "GPipe's order", { step[0], step[1], step[2], step[3] } },
        {0}
    };
    results(run, columns, rows);
}

// ---------------------------------------------------------------- every k-th input

// Elements per token of the segment at work: its blocks' items, and the inputs of all of them but
// the first.
static size_t segment(const CutSizes *z, size_t k) { return k * kept_block(z) + (k - 1) * z->C; }

static size_t segment_peak(const Training *t, size_t p, size_t i, size_t k) {
    CutSizes z = stage_sizes(t, p, i);
    size_t segments = ceil_div(z.blocks, k), last = z.blocks - (segments - 1) * k,
           head = z.last ? kept_head(&z) : 0;
    size_t waiting = (segments + z.last) * z.C + head;
    // The last segment may be a shorter one; then the one before it may take more.
    size_t at_work = (segments + z.last) * z.C + segment(&z, last);
    if (segments > 1) at_work = most(at_work, segments * z.C + segment(&z, k));
    size_t all = t->sequences * z.T, one = ceil_div(t->sequences, t->micro_batches) * z.T;
    return (all - one) * waiting + one * most(waiting, at_work);
}

static void segment_costs(Run *run, WayName name, const Training *t, size_t k,
                          const Measured *got) {
    size_t p = run->world->size, i = run->world->rank;
    way_cost(run, name, "peak", "activation peak", "bytes",
             (double)(segment_peak(t, p, i, k) * sizeof(real)), (double)got->peak);
    double flops = 0;
    for (size_t s = 0; s < p; s++) {
        CutSizes z = stage_sizes(t, p, s);
        flops += 3 * work_stage(&z, t->sequences).flops +
                 (double)z.blocks * work_block(&z, t->sequences).flops;
    }
    way_cost(run, name, "flops", "hardware FLOPs, all stages", "FLOPs", flops, got->timing.flops);
}

static void show_segments(Run *run, const Training *t) {
    char peak[SEGMENTS][64], name[SEGMENTS][16];
    const char *columns[SEGMENTS + 1] = {0};
    Result row = { .what = "activations, peak", .formula = "m(L/k)C + k nC" };
    for (size_t i = 0; i < SEGMENTS; i++) {
        snprintf(name[i], sizeof name[i], "k = %zu", every[i]);
        snprintf(peak[i], sizeof peak[i], "every%zu.peak", every[i]);
        columns[i] = name[i];
        row.cell[i] = peak[i];
    }
    CutSizes z = stage_sizes(t, run->world->size, 0);
    double n = (double)kept_block(&z) / (double)z.C;
    say(run,
        "%zu blocks, L = %zu on stage 0, each n = %.1f times its input; kept is the input of every "
        "k-th:",
        t->model.layers, z.blocks, n);
    const Result rows[] = { row, {0} };
    results(run, columns, rows);
    say(run, "Least at k = sqrt(m L/n) = %.1f.", sqrt((double)(t->micro_batches * z.blocks) / n));
}

// ---------------------------------------------------------------- training by a plan

// Every k-th block's input only: segments of k blocks, the last one may be shorter (Chen et al.
// 2016).
static void recompute_every(Model *m, size_t k) {
    size_t lo = m->layers[0].number == 0, blocks = 0;   // behind the embedding, where that is here
    while (lo + blocks < m->n_layers && m->layers[lo + blocks].kind->rebuild) blocks++;
    for (size_t i = 0; i * k < blocks; i++)
        recompute_wrap_range(m, lo + i, blocks - i * k < k ? blocks - i * k : k);
}

// choice: of each block of my stage; NULL: segments of k blocks.
static Measured train(Comm *pp, const Training *t, const Recompute *choice, size_t k,
                      Trajectory *c) {
    RecomputeStage stage = { .pp = pp, .tied = pipeline_tied_group(pp) };
    Model *m =
        model_describe(&t->model, pipeline_stage_layers(&t->model, NULL, pp->size, pp->rank));
    counted_wrap_blocks(m, stage.counts);
    if (choice) recompute_each(m, choice);
    else recompute_every(m, k);
    model_allocate(m);
    training_run(c, m, t, 1, 0, recompute_stage_step, &stage);
    Measured seen = { counted_sum(stage.counts, sizeof stage.counts / sizeof *stage.counts),
                      memory_peak(MEM_ACTIVATIONS), counted_computing(), picture_timing(c->run) };
    model_free(m);
    comm_free(stage.tied);
    return seen;
}

// Budgets: shares of the peak of keeping everything, down to what recomputing every block takes.
static void budgets(Run *run, Comm *pp, const Training *t) {
    Trajectory unsplit = training_unsplit(run, t, 1);
    Measured seen[WAYS];
    for (size_t w = 0; w < WAYS; w++) {
        Measured *r = &seen[w];
        Planned plan = planned(t, pp->size, pp->rank, way[w].share);
        bool found = budget_choose(&plan.stage, plan.budget / sizeof(real), plan.choice);
        check_true(run, "every plan", "is found", found);
        Trajectory got = trajectory_new(run, t);
        *r = train(pp, t, plan.choice, 0, &got);
        char title[64];
        snprintf(title, sizeof title, "budget: %s of the way from the least to keeping all",
                 way[w].name.name);
        picture_show(run, title, PICTURE_MEMORY | PICTURE_SAME_SCALE |
                     (w == DRAWN ? 0 : PICTURE_NO_FILES | PICTURE_DETAIL));
        check_true(run, "every plan", "the measured peak is within its budget",
                   r->peak <= plan.budget);
        costs(run, t, way[w].name, &plan, r);
        training_compare(run, "every plan = unsplit", &got, &unsplit, 0);
        trajectory_free(&got);
        planned_free(&plan);
    }
    show_plans(run, seen);
    trajectory_free(&unsplit);
}

// Training with segments of k blocks; the peak, in bytes, of the rank that has most.
static size_t train_segment(Run *run, Comm *pp, const Training *t, WayName name, size_t k) {
    Trajectory got = trajectory_new(run, t), unsplit = training_unsplit(run, t, 1);
    Measured r = train(pp, t, NULL, k, &got);
    segment_costs(run, name, t, k, &r);
    training_compare(run, "every segment = unsplit", &got, &unsplit, 0);
    trajectory_free(&got);
    trajectory_free(&unsplit);
    double peak[1] = { pp->rank == 0 ? (double)r.peak : 0 };
    comm_all_reduce_doubles(pp, peak, 1);
    return (size_t)peak[0];
}

// The rule: of L blocks that keep n times their input, every k-th input with k = sqrt(m L/n) takes
// least memory. With one segment a stage, as GPipe has it, memory is O(N + L/K N/M): N sequences in
// M micro-batches, L/K blocks on a stage (Huang et al. 2018, section 2.3; their K is our p).
static void segments(Run *run, Comm *pp, Training t) {
    char id[16], name[48], bytes[4][32];
    t.model.layers = LONG;
    for (size_t i = 0; i < SEGMENTS; i++) {
        snprintf(id, sizeof id, "every%zu", every[i]);
        snprintf(name, sizeof name, "every %zu", every[i]);
        train_segment(run, pp, &t, (WayName){ id, name }, every[i]);
    }
    show_segments(run, &t);
    for (size_t i = 0; i < 3; i++) {
        t.micro_batches = (size_t)1 << i;
        snprintf(id, sizeof id, "whole%zu", t.micro_batches);
        snprintf(name, sizeof name, "whole stage, M = %zu", t.micro_batches);
        size_t peak = t.sequences < t.micro_batches
                          ? 0
                          : train_segment(run, pp, &t, (WayName){ id, name }, LONG);
        page_value(bytes[i], sizeof bytes[i], (double)peak, "bytes");
    }
    say(run, "Whole stages, as GPipe: %s at M = 1, %s at 2, %s at 4: N C + (L/K)(N/M)nC.", bytes[0],
        bytes[1], bytes[2]);
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
    REQUIRE(pp->size <= LONG,
            "%zu stages need as many blocks; the longer model has %d: start fewer ranks", pp->size,
            LONG);
    REQUIRE(t.micro_batches > 0 && t.sequences >= t.micro_batches,
            "--batch %zu leaves some of the %zu micro-batches "
            "empty: choose at least as many sequences",
            t.sequences, t.micro_batches);
    t.data = data_synthetic(tiny.vocab, tiny.context, run->seed);
    config_require(&t.model);
    say(run,
        "%zu blocks on %zu stages, C = %zu, H = %zu, T = %zu; %zu sequences in %zu micro-batches, "
        "all in flight",
        t.model.layers, pp->size, tiny.width, tiny.heads, tiny.context, t.sequences,
        t.micro_batches);
    budget_search(run);    // on random stages: plan = the best of all that there are
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
