// counted.c: a layer that counts the forwards of a block, costs of a way to recompute, the two
// utilisations, and a step of a stage.
#include "07_recompute/experiments/experiments.h"
#include "common/comm/record.h"
#include <stdio.h>
#include <string.h>

static Counts *counts_of(const Layer *l) { return l->technique; }

static void counted_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    counts_of(l)->forwards++;
    layer_forward(l->inner, b, x, y, s);
}
static void counted_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    layer_backward(l->inner, b, x, dy, dx, s);
}
static void counted_rebuild(Layer *l, const Batch *b, Saved *s) {
    counts_of(l)->rebuilds++;
    l->inner->kind->rebuild(l->inner, b, s);
}
static const LayerKind counted = {
    .name = "counted block",
    .forward = counted_forward,
    .backward = counted_backward,
    .shed = block_shed,
    .rebuild = counted_rebuild,
    .backward_inputs = layer_defer,
    .backward_weights = layer_deferred,
};

void counted_wrap_blocks(Model *m, Counts *counts) {
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (!l->kind->rebuild) continue; // the embedding and the head
        layer_wrap(l, &counted, l->comm);
        l->technique = &counts[i];
    }
}

Counts counted_sum(const Counts *counts, size_t n) {
    Counts sum = { 0 };
    for (size_t i = 0; i < n; i++) {
        sum.forwards += counts[i].forwards;
        sum.rebuilds += counts[i].rebuilds;
    }
    return sum;
}

// ---------------------------------------------------------------- the recorded step

Picoseconds counted_computing(void) {
    size_t n;
    Picoseconds sum = 0;
    const RecordedEvent *events = record_events(&n);
    for (size_t i = 0; i < n; i++)
        if (events[i].kind <= EVENT_UPDATE) sum += events[i].end - events[i].start;
    return sum;
}

static void line(Run *run, WayName way, const char *id, const char *name, const char *unit,
                 Predicted by_formula, Predicted by_play, double measured) {
    char full_id[48], full_name[96];
    snprintf(full_id, sizeof full_id, "%s.%s", way.id, id);
    snprintf(full_name, sizeof full_name, "%s: %s", way.name, name);
    check_cost(run, full_id, full_name, unit, by_formula, by_play, measured);
}
void way_cost(Run *run, WayName way, const char *id, const char *name, const char *unit,
              double predicted, double measured) {
    line(run, way, id, name, unit, formula(predicted), NOT_PREDICTED, measured);
}
void way_cost_played(Run *run, WayName way, const char *id, const char *name, const char *unit,
                     double predicted, double measured) {
    line(run, way, id, name, unit, NOT_PREDICTED, played(predicted), measured);
}

void counted_utilisations(Run *run, const char *way, const Timing *t, double model_flops) {
    double hardware = 100 * t->utilisation, model = hardware * model_flops / t->flops;
    say_detail(run, "%s: model FLOPs %.4g, MFU %.1f %%; hardware FLOPs %.4g, HFU %.1f %%", way,
               model_flops, model, t->flops, hardware);
}
void counted_percent(char mfu[32], char hfu[32], const Timing *t, double model_flops) {
    snprintf(mfu, 32, "=%.1f %%", 100 * t->utilisation * model_flops / t->flops);
    snprintf(hfu, 32, "=%.1f %%", 100 * t->utilisation);
}

// ---------------------------------------------------------------- a step of a stage

StepResult recompute_stage_step(void *stage, Model *m, Optimizer *o, const Training *t,
                                const Batch *batch) {
    RecomputeStage *r = stage;
    memset(r->counts, 0, sizeof r->counts);
    comm_ledger_reset(r->pp);
    if (r->tied) comm_ledger_reset(r->tied);
    model_zero_gradients(m);
    Schedule s = schedule_gpipe(r->pp->size, t->micro_batches, r->pp->rank);
    // Per micro-batch sends an activation [B*T, C] to the next stage, and its gradient to the
    // previous one.
    double loss = pipeline_run(r->pp, m, &s, batch, t->micro_batches).loss;
    schedule_free(&s);
    pipeline_tied_sum(m, r->tied);            // first and last stage: all-reduce of wte's gradient
    comm_all_reduce_doubles(r->pp, &loss, 1); // zero on all stages but the last
    double norm = model_grad_norm(m, r->pp);
    optimizer_step(o, m, clip_factor(norm, t->clip));
    return (StepResult){ loss * batch[0].token_weight, norm };
}
