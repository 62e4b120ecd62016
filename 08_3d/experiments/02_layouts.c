// experiments/02_layouts.c: trains one step of the same model and batch in every layout of the
// world, with the trainer's own functions. The simulated clock has nodes of four ranks. The link
// inside a node is fast (on NVLink's scale), and the link between nodes is slow (on InfiniBand's).
// The layouts differ in time, in memory and in the traffic on each link. The fastest layout runs
// once more with its ranks numbered in the opposite order.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "05_pipeline_1f1b/pipeline_1f1b.h"
#include "08_3d/experiments/experiments.h"
#include "08_3d/layouts.h"
#include "08_3d/plan.h"

enum { BATCH = 16, MICRO_BATCH = 1 };
static const ModelConfig model = {
    .layers = 8, .width = 32, .heads = 8, .context = 16, .vocab = 61, .dropout = 0.1
};

typedef struct {
    Degrees n;
    StepResult result;
    // Picoseconds: the step; computing and exposed communication are means over the ranks. The rest
    // of the step is idle.
    double step, computing, exposed;
    // Bytes that this rank sends in one step, on links inside nodes and between nodes.
    double inside, between;
    // Bytes: weights, gradients and moments; activations at their peak.
    double state, activations;
    double error;                                  // relative, of the cost model's step
    bool as_planned;                               // memory and step are those of the plan
} Layout;

static TrainerConfig config_of(Run *run, Degrees n) {
    TrainerConfig c = { .model = model, .mesh = n, .batch = BATCH, .micro_batch = MICRO_BATCH,
                        .schedule = schedule_1f1b };
    c.model.seed = run->seed;
    return c;
}

// ---------------------------------------------------------- expected: what a layout sends, by link

// Bytes that one rank sends in a step, inside its node and to other nodes.
typedef struct { double inside, between; } LayoutTraffic;
typedef struct { Degrees n; Coordinates at; size_t node; LayoutOrder *order; } Place;

static size_t node_of(const Place *p, Coordinates c) {
    size_t rank = mesh_rank(p->n, c);
    return p->node ? (p->order ? p->order(p->n, rank) : rank) / p->node : 0;
}
// Do all ranks that differ from this one along these axes share its node?
static bool one_node(const Place *p, unsigned axes) {
    bool one = true;
    for (size_t r = 0; r < p->n.dp * p->n.tp * p->n.pp; r++) {
        Coordinates c = mesh_coordinates(p->n, r);
        bool member = (axes & MESH_DP || c.dp == p->at.dp) &&
                      (axes & MESH_TP || c.tp == p->at.tp) && (axes & MESH_PP || c.pp == p->at.pp);
        one &= !member || node_of(p, c) == node_of(p, p->at);
    }
    return one;
}
static void add(LayoutTraffic *t, bool inside, double bytes) {
    *(inside ? &t->inside : &t->between) += bytes;
}

// node: ranks per node; 0: one node for all. order NULL: rank r of the mesh is process r.
static LayoutTraffic layout_traffic(const TrainerConfig *c, const Prediction *p, size_t rank,
                                    size_t node, LayoutOrder *order) {
    Place at = {
        .n = c->mesh, .at = mesh_coordinates(c->mesh, rank), .node = node, .order = order
    };
    LayoutTraffic t = {0};
    size_t world = at.n.dp * at.n.tp * at.n.pp;
    // One double in a ring over the world: chunks of one.
    double loss = (double)(2 * (world - 1) * sizeof(double));
    add(&t, one_node(&at, MESH_TP), (double)p->tp_bytes);
    add(&t, one_node(&at, MESH_DP), (double)p->dp_bytes);
    add(&t, one_node(&at, MESH_ALL), loss);
    add(&t, one_node(&at, MESH_TP | MESH_PP), (double)p->scalar_bytes - loss);
    // Activations go to the next stage and gradients to the previous one: as many bytes each.
    size_t neighbours = (at.at.pp > 0) + (at.at.pp + 1 < at.n.pp);
    for (size_t after = 0; after < 2; after++) {
        Coordinates peer = at.at;
        if (after ? peer.pp + 1 == at.n.pp : peer.pp == 0) continue;
        peer.pp = after ? peer.pp + 1 : peer.pp - 1;
        add(&t, node_of(&at, peer) == node_of(&at, at.at),
            (double)p->pp_bytes / (double)neighbours);
    }
    // The tied embedding: first and last stage.
    Coordinates other = at.at;
    other.pp = at.n.pp - 1 - at.at.pp;
    if (p->tied_bytes) add(&t, node_of(&at, other) == node_of(&at, at.at), (double)p->tied_bytes);
    return t;
}

// ---------------------------------------------------------------- measured

// Adds this rank's bytes to the link on which they were sent. Both neighbours in the pipeline get
// as many bytes. process(r): the rank of the world that is rank r of the mesh.
static void add_traffic(Layout *l, const Mesh *m, LayoutOrder *process) {
    const Comm *groups[] = { m->tp, m->dp, m->model, m->world, m->tied };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i])
            *(groups[i]->one_node ? &l->inside : &l->between) += (double)comm_bytes_sent(groups[i]);
    Coordinates to[2] = { m->at, m->at };
    size_t neighbours = (m->at.pp > 0) + (m->at.pp + 1 < m->n.pp), me = mesh_rank(m->n, m->at);
    to[0].pp--;
    to[1].pp++;
    for (size_t i = 0; i < 2; i++) {
        if (to[i].pp >= m->n.pp) continue;         // no such stage; -1 is the largest size_t
        size_t peer = mesh_rank(m->n, to[i]);
        bool near = process ? clock_same_node(process(m->n, me), process(m->n, peer))
                            : clock_same_node(me, peer);
        *(near ? &l->inside : &l->between) += (double)comm_bytes_sent(m->pp) / (double)neighbours;
    }
}

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
    PlanTask t = { .model = { .model = c->model, .batch = c->batch },
                   .gpus = world,
                   .cluster = { .flops = clock->device.flops,
                                .efficiency = 1,
                                .node = clock->node,
                                .inside = { in->alpha, in->beta },
                                .between = { out->alpha, out->beta } },
                   .format = {
                           .weight = e, .gradient = e, .element = e, .statistic = e, .logit = e } };
    PlanLayout layout = { .n = l->n, .micro_batch = c->micro_batch, .chunks = 1 };
    PlanResult r = plan_layout(&t, &layout);
    const double *m = r.largest.bytes;
    bool memory = m[PLAN_WEIGHTS] + m[PLAN_GRADIENTS] == l->state &&
                  m[PLAN_ACTIVATIONS] == l->activations;
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
    add_traffic(&l, &t->mesh, process);
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
                l.inside);
    layout_cost(run, n, process, "between", "sent between nodes", "bytes", formula(want.between),
                l.between);
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
    l.inside = most_of(run, l.inside);
    l.between = most_of(run, l.between);
    l.state = most_of(run, l.state);
    l.activations = most_of(run, l.activations);
    l.as_planned = process || as_planned(&c, &l);
    return l;
}

static StepResult unsplit_step(Run *run, const Data *d) {
    TrainerConfig c = config_of(run, (Degrees){ .dp = 1, .tp = 1, .pp = 1 });
    StepResult r = {0};
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

// "dp 2 x tp 2 x pp 2"
enum { NAME = 48 };
static const char *layout_name(char text[NAME], const Layout *l) {
    snprintf(text, NAME, "dp %zu x tp %zu x pp %zu", l->n.dp, l->n.tp, l->n.pp);
    return text;
}

// A row per layout, the fastest first, and the one of the opposite order last.
typedef struct { char name[NAME], cell[5][32]; } Row;
static Row row_of(const Layout *l, const char *order) {
    Row row;
    size_t end = strlen(layout_name(row.name, l));
    snprintf(row.name + end, sizeof row.name - end, "%s", order);
    const double value[5] = { l->step, l->inside, l->between, l->state, l->activations };
    for (size_t i = 0; i < 5; i++) {
        row.cell[i][0] = '=';
        page_value(row.cell[i] + 1, sizeof row.cell[i] - 1, value[i], i ? "bytes" : "ps");
    }
    return row;
}
static const char opposite[] = ", opposite";
static void table(Run *run, const Layout *layout, size_t n, const Layout *wrong) {
    static const char *const columns[] = { "step",  "sent in node", "sent between",
                                           "state", "activations", NULL };
    Row text[MOST_LAYOUTS + 1];
    Result rows[MOST_LAYOUTS + 2] = {{0}};
    for (size_t i = 0; i <= n; i++) {
        text[i] = i < n ? row_of(&layout[i], "") : row_of(wrong, opposite);
        rows[i] = (Result){ .what = text[i].name };
        for (size_t k = 0; k < 5; k++) rows[i].cell[k] = text[i].cell[k];
    }
    results(run, columns, rows);
    say(run,
        "  Bytes of the rank that has most, sent to ranks of its node and of other nodes. state: "
        "weights,\n"
        "  gradients, optimizer. activations: their peak. opposite: neighbours in rank order are "
        "pp, not tp");
}

// A bar per layout, as long as its step: how the mean rank spends it.
static void bars(Run *run, const Layout *layout, size_t n, const Layout *wrong) {
    enum { WIDTH = 66 };
    double longest = fmax(layout[n - 1].step, wrong->step);
    say(run, "dp replicas, tp slices, pp stages. The mean rank: = computes  # waits for messages  "
             ". idles");
    for (size_t i = 0; i <= n; i++) {
        const Layout *l = i < n ? &layout[i] : wrong;
        char bar[WIDTH + 1];
        size_t all = (size_t)(l->step / longest * WIDTH + 0.5);
        size_t computing = (size_t)(l->computing / longest * WIDTH + 0.5);
        size_t waits = computing + (size_t)(l->exposed / longest * WIDTH + 0.5);
        for (size_t x = 0; x < all; x++) bar[x] = x < computing ? '=' : x < waits ? '#' : '.';
        bar[all] = 0;
        say(run, "  %-30s %s", row_of(l, i < n ? "" : opposite).name, bar);
    }
}

static double idle(const Layout *l) { return l->step - l->computing - l->exposed; }
// Where the slow layout spends most of its additional time.
static const char *cause(const Layout *fast, const Layout *slow) {
    double waits = slow->exposed - fast->exposed;
    double idles = idle(slow) - idle(fast);
    double computes = slow->computing - fast->computing;
    if (waits >= idles && waits >= computes) return "it waits longer for messages";
    return idles >= computes ? "its pipeline idles longer" : "its ranks compute longer";
}
static void answer(Run *run, const Layout *layout, size_t n, const Layout *wrong) {
    const Layout *fast = &layout[0], *slow = &layout[n - 1];
    char name[2][NAME], step[32], between[32], why[120] = "";
    page_value(step, sizeof step, fast->step, "ps");
    page_value(between, sizeof between, fast->between, "bytes");
    size_t node = clock_config()->node, stage = fast->n.tp * fast->n.dp;
    bool inside = node > 0 && stage <= node && node % stage == 0;
    if (inside && fast->n.tp > 1 && fast->n.dp > 1)
        snprintf(why, sizeof why,
                 ": its sums over tp and dp stay inside a node, and only %s per rank cross between "
                 "nodes", between);
    if (n == 1)
        say_answer(run, "One rank has one layout; its step takes %s.", step);
    else
        say_answer(run,
                   "%s, with %s per step%s. The slowest, %s, takes %.2f times as long, mostly "
                   "because %s.",
                   layout_name(name[0], fast), step, why, layout_name(name[1], slow),
                   slow->step / fast->step, cause(fast, slow));
    say_cost(run,
             "no loss changes; the opposite order of ranks takes %.2f times the fastest step.",
             wrong->step / fast->step);
    say_use_when(run,
                 "one parallelism no longer fits. Keep tp in a node; pp and dp may cross nodes.");
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
    bars(run, layout, n, &wrong);
    table(run, layout, n, &wrong);
    answer(run, layout, n, &wrong);
    if (option_flag(run, "verbose") || option_text(run, "svg") || option_text(run, "trace")) {
        char title[64];
        run_layout(run, run->world, &d, best, NULL);           // once more, to draw it
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
    {0},
};
EXPERIMENT(layouts, options);
