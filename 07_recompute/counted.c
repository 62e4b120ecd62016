// counted.c: see counted.h.
#include "07_recompute/counted.h"

// The inner layer, with a place to count behind it. model_free() frees it as it frees every inner layer.
typedef struct { Layer layer; Counts *counts; } Counted;
static Counts *counts_of(const Layer *l) { return ((Counted *)l->inner)->counts; }

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
static const LayerKind counted = { "counted block", counted_forward, counted_backward, block_shed, counted_rebuild };

void count_blocks(Model *m, Counts *counts) {
    for (size_t i = 0; i < m->n_layers; i++) {
        Layer *l = &m->layers[i];
        if (!l->kind->rebuild) continue;           // the embedding and the head
        Counted *c = host_alloc(sizeof *c);
        *c = (Counted){ *l, &counts[i] };
        l->inner = &c->layer;
        l->kind = &counted;
    }
}
