// recompute.c: see recompute.h. A recomputed block is a layer that wraps a layer.
#include "07_recompute/recompute.h"

// ---------------------------------------------------------------- full

static void full_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)s;
    Saved forgotten = saved_new();
    layer_forward(l->inner, b, x, y, &forgotten);
    saved_free(&forgotten);                        // all that stays is x, which the walker keeps
}
static void full_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Arena scratch = arena(MEM_WORKSPACE);
    Tensor y = tensor_new(&scratch, dy.rows, dy.cols);
    layer_forward(l->inner, b, x, y, s);           // the same forward once more, with the same dropout
    arena_free(&scratch);
    layer_backward(l->inner, b, x, dy, dx, s);
}
static const LayerKind full = { "recomputed", full_forward, full_backward, NULL, NULL };

// ---------------------------------------------------------------- selective

static void selective_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
    l->inner->kind->shed(s);                       // the [T, T] items of every head
}
static void selective_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    l->inner->kind->rebuild(l->inner, b, s);       // q k^T, softmax, dropout: from the saved q and k
    layer_backward(l->inner, b, x, dy, dx, s);
}
static const LayerKind selective = { "selectively recomputed", selective_forward, selective_backward, NULL, NULL };

void recompute(Model *m, Recompute how) {
    if (how == RECOMPUTE_NONE) return;
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].kind->rebuild) layer_wrap(&m->layers[i], how == RECOMPUTE_FULL ? &full : &selective, NULL);
}
