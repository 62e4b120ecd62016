// stack.c: see stack.h.
#include "04_pipeline_naive/stack.h"
#include "common/random.h"

// ---------------------------------------------------------------- two layers without arithmetic

static void source_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)x; (void)s;
    tensor_randomize(y, random_key(random_key(l->config->seed, b->step), b->first_sequence), 1);
}
static void source_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)l; (void)b; (void)x; (void)dy; (void)dx; (void)s;
}
static const LayerKind source = { "source", source_forward, source_backward, NULL, NULL };

static void sink_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    (void)l; (void)b; (void)s;
    tensor_copy(y, tensor_col_range(x, 0, 1));
}
static void sink_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    (void)l; (void)b; (void)x; (void)s;
    tensor_fill(dx, 0);
    tensor_copy(tensor_col_range(dx, 0, 1), dy);
}
static const LayerKind sink = { "sink", sink_forward, sink_backward, NULL, NULL };

// ---------------------------------------------------------------- the stack

Model *stack_new(const ModelConfig *c, size_t blocks, size_t p, size_t i) {
    ModelConfig whole = *c;
    whole.layers = blocks * p;
    Model *m = model_describe(&whole, pipeline_stage_layers(&whole, NULL, p, i));
    Layer *first = &m->layers[0], *last = &m->layers[m->n_layers - 1];
    if (i == 0) { first->kind = &source; first->n_units = 0; }
    if (i + 1 == p) { last->kind = &sink; last->n_units = 0; }
    model_allocate(m);
    return m;
}

double stack_forward_flops(const ModelConfig *c, size_t rows) {
    double C = (double)c->width, M = (double)rows, T = (double)c->context;
    return 2 * M * C * (3 * C + C + 4 * C + 4 * C) + 2 * 2 * M * T * C;      // 24 M C^2 + 4 M T C: PTD-P's 24 B s h^2 + 4 B s^2 h
}
