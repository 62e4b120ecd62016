// experiments/02_layouts.c trains one step of the same model and batch in every layout of the
// world, with the trainer's own functions. The simulated clock has nodes of four ranks, unless
// --node gives another number. The link inside a node is fast, and the link between nodes is slow.
// The ratio of the two rates is that of NVLink to InfiniBand. The layouts differ in time, in memory
// and in the traffic on each link. The fastest layout runs once more with its ranks numbered in the
// opposite order. layout_traffic.c computes the bytes on each link. layout_plan.c compares the
// layouts with the plan. layout_page.c prints the page.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/experiments/experiments.h"

enum { BATCH = 16, MICRO_BATCH = 1 };
static const ModelConfig model = {
    .layers = 8, .width = 32, .heads = 8, .context = 16, .vocab = 61, .dropout = 0.1
};

static TrainerConfig config_of(Run *run, Degrees n) {
    TrainerConfig c = { .model = model,
                        .mesh = n,
                        .batch = BATCH,
                        .micro_batch = MICRO_BATCH,
                        .schedule = schedule_1f1b };
    c.model.seed = run->seed;
    return c;
}

// ---------------------------------------------------------------- a layout, trained and compared

// Checks the costs of one layout, such as the cost with id "dp2.tp2.pp2.state" and name "dp 2 x tp
// 2 x pp 2: state". The time of a step has no closed form, so step_time() plays the step.
static void layout_costs(Run *run, const TrainerConfig *c, size_t rank, LayoutOrder *process,
                         LayoutTraffic sent, double step) {
    Degrees n = c->mesh;
    char ids[64], names[96];
    snprintf(ids, sizeof ids, "dp%zu.tp%zu.pp%zu%s.%%s", n.dp, n.tp, n.pp,
             process ? ".opposite" : "");
    snprintf(names, sizeof names, "dp %zu x tp %zu x pp %zu%s: %%s", n.dp, n.tp, n.pp,
             process ? ", opposite order" : "");
    Prediction p = predict_step(c, rank, false);
    LayoutTraffic want = layout_traffic(c, &p, rank, clock_config()->node, process);
    // step_time() knows only the mesh's own order of ranks. If groups of one kind are placed on
    // nodes differently, step_time() leaves out waits.
    bool timed = !process && clock_config()->simulated && mesh_groups_alike(n);
    const CostRow row[] = {
        { "inside", "sent inside nodes", "bytes", BY_FORMULA(want.inside), sent.inside },
        { "between", "sent between nodes", "bytes", BY_FORMULA(want.between), sent.between },
        { "state", "state", "bytes", BY_FORMULA((double)(p.parameters + p.gradients + p.optimizer)),
          (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) +
                   memory_now(MEM_OPTIMIZER)) },
        { "activations", "activations, peak", "bytes", BY_FORMULA((double)p.activations),
          (double)memory_peak(MEM_ACTIVATIONS) },
        { timed ? "step" : NULL, "step", "ps", BY_PLAY(timed ? step_time(c) : 0), step },
        { 0 }
    };
    check_costs(run, ids, names, row);
}
// Returns the largest value of a cost over all ranks, on rank 0.
static double most_of(Run *run, Degrees n, LayoutOrder *process, const char *what) {
    char id[64];
    snprintf(id, sizeof id, "dp%zu.tp%zu.pp%zu%s.%s", n.dp, n.tp, n.pp, process ? ".opposite" : "",
             what);
    return cost_value(run, id);
}

// Trains one step in one layout. Rank r of `world` is rank r of the mesh.
static Layout run_layout(Run *run, Comm *world, const Data *d, Degrees n, LayoutOrder *process) {
    Layout l = { .n = n };
    TrainerConfig c = config_of(run, n);
    Trainer *t = trainer_new(world, &c, sgd(0.1));
    train_costs_begin(t);
    picture_begin(run, MEM_ACTIVATIONS);
    l.result = trainer_gradients(t, d, 0);
    trainer_update(t, l.result);
    picture_end(run);
    Timing timing = picture_timing(run);
    l.step = (double)timing.step;
    l.computing = (double)timing.busy / (double)world->size;
    l.exposed = (double)timing.exposed / (double)world->size;
    layout_costs(run, &c, world->rank, process, layout_sent(&t->mesh, process), l.step);
    trainer_free(t);
    l.sent.inside = most_of(run, n, process, "inside");
    l.sent.between = most_of(run, n, process, "between");
    l.state = most_of(run, n, process, "state");
    l.activations = most_of(run, n, process, "activations");
    l.as_planned = process || !run->is_root || layout_as_planned(&c, &l);
    return l;
}

static StepResult unsplit_step(Run *run, const Data *d) {
    TrainerConfig c = config_of(run, (Degrees){ .dp = 1, .tp = 1, .pp = 1 });
    StepResult r = { 0 };
    if (!run->is_root) return r;
    Model *m = unsplit_model(&c);
    r = unsplit_gradients(m, &c, d, 0, 1);
    model_free(m);
    return r;
}

static int by_step(const void *a, const void *b) {
    double x = ((const Layout *)a)->step, y = ((const Layout *)b)->step;
    return (x > y) - (x < y);
}

static void layouts(Run *run) {
    size_t world = run->world->size;
    Data d = data_synthetic(model.vocab, model.context, run->seed);
    Layout layout[MOST_LAYOUTS];
    Degrees degrees[MOST_LAYOUTS], most = { .dp = BATCH, .tp = model.heads, .pp = model.layers };
    size_t n = layouts_of(world, most, degrees);
    for (size_t i = 0; i < n; i++) layout[i] = run_layout(run, run->world, &d, degrees[i], NULL);
    REQUIRE(n > 0, "%zu ranks have no layout of %zu heads, %zu blocks and %d sequences: start 8",
            world, model.heads, model.layers, BATCH);

    // These arrays are filled before qsort() sorts the layouts by time, because the digest of the
    // checked numbers must not depend on which layout is fastest.
    double loss[MOST_LAYOUTS], norm[MOST_LAYOUTS], want_loss[MOST_LAYOUTS], want_norm[MOST_LAYOUTS];
    StepResult unsplit = unsplit_step(run, &d);
    for (size_t i = 0; i < n; i++) {
        loss[i] = layout[i].result.loss;
        norm[i] = layout[i].result.norm;
        want_loss[i] = unsplit.loss;
        want_norm[i] = unsplit.norm;
    }
    qsort(layout, n, sizeof *layout, by_step);

    Degrees best = layout[0].n;
    Comm *other = layout_reordered(run->world, best, opposite_order);
    Layout opposed = run_layout(run, other, &d, best, opposite_order);
    comm_free(other);
    TrainerConfig config = config_of(run, best);
    layouts_page(run, layout, n, &opposed, &config);
    if (option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace")) {
        char title[64];
        run_layout(run, run->world, &d, best, NULL); // once more, for the picture
        snprintf(title, sizeof title, "dp %zu x tp %zu x pp %zu, a step", best.dp, best.tp,
                 best.pp);
        picture_show(run, title, PICTURE_CHART);
    }

    check_numbers(run, "every layout = unsplit", "loss", loss, want_loss, n, LIMIT_ROUNDING);
    check_numbers(run, "every layout = unsplit", "gradient norm", norm, want_norm, n,
                  LIMIT_ROUNDING);
    check_true(run, "the opposite order of ranks", "loss and gradient norm, to the bit",
               opposed.result.loss == layout[0].result.loss &&
                   opposed.result.norm == layout[0].result.norm);
    bool as_plan = true;
    for (size_t i = 0; i < n; i++) as_plan = as_plan && layout[i].as_planned;
    check_true(run, "the plan", "every layout's memory and step", as_plan);
    TrainerConfig any = config_of(run, degrees[0]);
    check_true(run, "the plan", "messages that wait for each other, in an interleaved pipeline",
               layout_lanes_as_played(&any));
    data_free(&d);
}

static const Option options[] = {
    { "node", "N", "4", NULL },
    REALS_ONLY("this lesson compares layouts in reals; 08_3d/train takes this option"),
    { 0 },
};
EXPERIMENT(layouts, options);
