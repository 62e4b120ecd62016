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

// A block inside of a layer that cannot compute it again: to pass over it would drop the technique without a word.
static bool hides_a_block(const Layer *l) {
    if (l->kind->rebuild) return false;
    while (l->inner) l = l->inner;
    return l->kind->rebuild;
}

void recompute(Model *m, Recompute how) {
    if (how == RECOMPUTE_NONE) return;
    for (size_t i = 0; i < m->n_layers; i++)
        if (hides_a_block(&m->layers[i]))
            fault("recompute() of layer %zu (%s): blocks are wrapped before anything else wraps their layers, "
                  "zero_allocate() for example", m->layers[i].number, m->layers[i].kind->name);
    for (size_t i = 0; i < m->n_layers; i++)
        if (m->layers[i].kind->rebuild) layer_wrap(&m->layers[i], how == RECOMPUTE_FULL ? &full : &selective, NULL);
}
