// experiments/02_layouts.c: trains one step of the same model and batch in every layout of the
// world, with the trainer's own functions. The simulated clock has nodes of four ranks. The link
// inside a node is fast (on NVLink's scale), and the link between nodes is slow (on InfiniBand's).
// The layouts differ in time, in memory and in the traffic on each link. The fastest layout runs
// once more with its ranks numbered in the opposite order. layout_traffic.c has the bytes on each
// link, layout_page.c the page.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/experiments/experiments.h"
#include "08_3d/plan.h"

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

// The largest value over all ranks.
static double most_of(Run *run, double local) {
    double most = 0;
    size_t *sizes = NULL;
    ledger_pause();
    double *all = side_gather(&local, sizeof local, &sizes);
    for (size_t r = 0; run->is_root && r < run->world->size; r++)
        most = all[r] > most ? all[r] : most;
    side_broadcast(&most, sizeof most);
    ledger_resume();
    free(all);
    free(sizes);
    return most;
}

// Does plan.h, which shares no code with the clock, predict this layout? Memory must match to the
// byte and the step to the picosecond.
static bool as_planned(const TrainerConfig *c, const Layout *l) {
    const ClockConfig *clock = clock_config();
    const ClockLink *in = &clock->link, *out = &clock->between;
    size_t e = sizeof(real), world = l->n.dp * l->n.tp * l->n.pp;
    PlanTask t = {
        .model = { .model = c->model, .batch = c->batch },
        .gpus = world,
        .cluster = { .flops = clock->device.flops,
                     .efficiency = 1,
                     .node = clock->node,
                     .rails = clock->rails,
                     .inside = { in->alpha, in->beta },
                     .between = { out->alpha, out->beta } },
        .format = { .weight = e, .gradient = e, .element = e, .statistic = e, .logit = e },
        .how.overlap.pp = true
    };
    PlanLayout layout = { .n = l->n, .micro_batch = c->micro_batch, .chunks = 1 };
    PlanResult r = plan_layout(&t, &layout);
    const double *m = r.largest.bytes;
    bool memory =
        m[PLAN_WEIGHTS] + m[PLAN_GRADIENTS] == l->state && m[PLAN_ACTIVATIONS] == l->activations;
    double error = fabs(r.step / l->step - 1);
    return memory &&
           (!clock->simulated || (mesh_groups_alike(l->n) ? r.step == l->step : error < 0.02));
}

// Checks a cost of one layout: id "dp2.tp2.pp2.state", name "dp 2 x tp 2 x pp 2: state". A step has
// no closed form, so it is played.
static void layout_cost(Run *run, Degrees n, LayoutOrder *process, const char *what,
                        const char *words, const char *unit, Predicted want, double measured) {
    char id[64], name[96];
    bool is_step = !strcmp(what, "step");
    snprintf(id, sizeof id, "dp%zu.tp%zu.pp%zu%s.%s", n.dp, n.tp, n.pp, process ? ".wrong" : "",
             what);
    snprintf(name, sizeof name, "dp %zu x tp %zu x pp %zu%s: %s", n.dp, n.tp, n.pp,
             process ? ", the wrong way round" : "", words);
    check_cost(run, id, name, unit, is_step ? NOT_PREDICTED : want, is_step ? want : NOT_PREDICTED,
               measured);
}

// Trains one step in one layout. world has the mesh's order.
static Layout run_layout(Run *run, Comm *world, const Data *d, Degrees n, LayoutOrder *process) {
    Layout l = { .n = n };
    TrainerConfig c = config_of(run, n);
    Trainer *t = trainer_new(world, &c, sgd(0.1));
    train_costs_begin(t);
    picture_begin(run, MEM_ACTIVATIONS);
    l.result = trainer_gradients(t, d, 0);
    trainer_update(t, l.result);
    picture_end(run);
    LayoutTraffic sent = layout_sent(&t->mesh, process);
    l.state = (double)(memory_now(MEM_PARAMETERS) + memory_now(MEM_GRADIENTS) +
                       memory_now(MEM_OPTIMIZER));
    l.activations = (double)memory_peak(MEM_ACTIVATIONS);
    Timing timing = picture_timing(run);
    l.step = (double)timing.step;
    l.computing = (double)timing.busy / (double)world->size;
    l.exposed = (double)timing.exposed / (double)world->size;

    Prediction p = predict_step(&c, world->rank, false);
    LayoutTraffic want = layout_traffic(&c, &p, world->rank, clock_config()->node, process);
    double state = (double)(p.parameters + p.gradients + p.optimizer);
    layout_cost(run, n, process, "inside", "sent inside nodes", "bytes", formula(want.inside),
                sent.inside);
    layout_cost(run, n, process, "between", "sent between nodes", "bytes", formula(want.between),
                sent.between);
    layout_cost(run, n, process, "state", "state", "bytes", formula(state), l.state);
    layout_cost(run, n, process, "activations", "activations, peak", "bytes",
                formula((double)p.activations), l.activations);
    if (!process && clock_config()->simulated) {
        double step = step_time(&c);
        l.error = fabs(step / l.step - 1);
        if (mesh_groups_alike(n))
            layout_cost(run, n, NULL, "step", "step", "ps", played(step), l.step);
    }
    trainer_free(t);
    l.sent = (LayoutTraffic){ most_of(run, sent.inside), most_of(run, sent.between) };
    l.state = most_of(run, l.state);
    l.activations = most_of(run, l.activations);
    l.as_planned = process || as_planned(&c, &l);
    return l;
}

static StepResult unsplit_step(Run *run, const Data *d) {
    TrainerConfig c = config_of(run, (Degrees){ .dp = 1, .tp = 1, .pp = 1 });
    StepResult r = { 0 };
    if (!run->is_root) return r;
    Model *m = unsplit_model(&c);
    r = unsplit_gradients(m, &c, d, 0);
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
    qsort(layout, n, sizeof *layout, by_step);

    Degrees best = layout[0].n;
    Comm *other = layout_reordered(run->world, best, wrong_way_round);
    Layout wrong = run_layout(run, other, &d, best, wrong_way_round);
    comm_free(other);
    layouts_page(run, layout, n, &wrong);
    if (option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace")) {
        char title[64];
        run_layout(run, run->world, &d, best, NULL); // once more, to draw it
        snprintf(title, sizeof title, "dp %zu x tp %zu x pp %zu, a step", best.dp, best.tp,
                 best.pp);
        picture_show(run, title, PICTURE_CHART);
    }

    double loss[MOST_LAYOUTS + 1], norm[MOST_LAYOUTS + 1], want_loss[MOST_LAYOUTS + 1],
        want_norm[MOST_LAYOUTS + 1];
    StepResult unsplit = unsplit_step(run, &d);
    for (size_t i = 0; i <= n; i++) {
        loss[i] = i < n ? layout[i].result.loss : wrong.result.loss;
        norm[i] = i < n ? layout[i].result.norm : wrong.result.norm;
        want_loss[i] = unsplit.loss;
        want_norm[i] = unsplit.norm;
    }
    check_numbers(run, "every layout = unsplit", "loss", loss, want_loss, n + 1, LIMIT_ROUNDING);
    check_numbers(run, "every layout = unsplit", "gradient norm", norm, want_norm, n + 1,
                  LIMIT_ROUNDING);
    double error = 0;
    for (size_t i = 0; i < n; i++) error = layout[i].error > error ? layout[i].error : error;
    check_true(run, "the cost model", "steps within 0.1 % of every layout's", error < 1e-3);
    bool planned = true;
    for (size_t i = 0; i < n; i++) planned = planned && layout[i].as_planned;
    check_true(run, "the plan", "every layout's memory and step", planned);
    data_free(&d);
}

static const Option options[] = {
    { "node", "N", "4", NULL },
    { 0 },
};
EXPERIMENT(layouts, options);
