// counted.c: see counted.h.
#include "07_recompute/experiments/counted.h"
#include "common/comm/record.h"
#include <stdio.h>

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
    .name = "counted block", .forward = counted_forward, .backward = counted_backward, .shed = block_shed,
    .rebuild = counted_rebuild, .backward_inputs = layer_defer, .backward_weights = layer_deferred,
};

void counted_wrap_blocks(Model *m, Counts *counts) {
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (!l->kind->rebuild) continue;           // the embedding and the head
        layer_wrap(l, &counted, l->comm);
        l->technique = &counts[i];
    }
}

// ---------------------------------------------------------------- what was recorded

Picoseconds counted_computing(void) {
    size_t n;
    Picoseconds sum = 0;
    const RecordedEvent *events = record_events(&n);
    for (size_t i = 0; i < n; i++)
        if (events[i].kind <= EVENT_UPDATE) sum += events[i].end - events[i].start;
    return sum;
}

void counted_cost(Run *run, const char *way, const char *name, const char *unit, double predicted, double measured) {
    char line[96];
    snprintf(line, sizeof line, "%s: %s", way, name);
    cost(run, line, unit, predicted, measured);
}

void counted_utilisations(Run *run, const char *way, const Timing *t, double model_flops) {
    double hardware = 100 * t->utilisation, model = hardware * model_flops / t->flops;
    say_detail(run, "%s: model FLOPs %.4g, MFU %.1f %%; hardware FLOPs %.4g, HFU %.1f %%", way, model_flops, model,
               t->flops, hardware);
}
void counted_percent(char mfu[32], char hfu[32], const Timing *t, double model_flops) {
    snprintf(mfu, 32, "=%.1f %%", 100 * t->utilisation * model_flops / t->flops);
    snprintf(hfu, 32, "=%.1f %%", 100 * t->utilisation);
}
