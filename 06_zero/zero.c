// zero.c: see zero.h.
#include "06_zero/zero.h"

typedef struct { Comm *dp; size_t stage; } Zero;   // Model.technique

// wte, or the last stage's copy of it: whole for a step.
static bool kept(const Unit *u) { return u->params[0].number == 0; }

// ---------------------------------------------------------------- one unit: gather, drop, reduce

static void gather_weights(Comm *dp, Unit *u, Arena *a) {
    Tensor w = tensor_new(a, 1, u->size);
    comm_all_gather(dp, w, u->own_w);              // (N-1)/N of the unit sent per rank
    unit_attach_weights(u, w);
}
static void drop_weights(Unit *u) { unit_attach_weights(u, (Tensor){0}); }

static void whole_gradients(Unit *u, Arena *a) {
    unit_attach_gradients(u, tensor_new(a, 1, u->size));
    for (size_t i = 0; i < u->n_params; i++) u->params[i].gradient_empty = true;
}
// own_g += my part of the sum over ranks; the whole gradient may be dropped afterwards.
static void reduce_gradients(Comm *dp, Unit *u) {
    if (u->own_gradient_empty) {
        comm_reduce_scatter(dp, u->own_g, u->g);   // (N-1)/N of the unit sent per rank
    } else {
        Arena part = arena(MEM_COMMUNICATION);
        Tensor mine = tensor_new(&part, 1, range_size(u->own));
        comm_reduce_scatter(dp, mine, u->g);
        op_add(u->own_g, u->own_g, mine);
        arena_free(&part);
    }
    u->own_gradient_empty = false;
}

// ---------------------------------------------------------------- stage 2: a gradient lives for one layer's backward

static void forward_as_it_is(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    layer_forward(l->inner, b, x, y, s);
}

static void backward_and_reduce(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Arena in_flight = arena(MEM_COMMUNICATION);
    for (size_t i = 0; i < l->n_units; i++)
        if (!kept(l->units[i])) whole_gradients(l->units[i], &in_flight);
    layer_backward(l->inner, b, x, dy, dx, s);
    for (size_t i = 0; i < l->n_units; i++)
        if (!kept(l->units[i])) {
            reduce_gradients(l->comm, l->units[i]);
            unit_attach_gradients(l->units[i], (Tensor){0});
        }
    arena_free(&in_flight);
}
static const LayerKind zero2 = { "ZeRO-2 layer", forward_as_it_is, backward_and_reduce, NULL, NULL };

// ---------------------------------------------------------------- stage 3: so do weights, in forward and in backward

static void gather_layer(Layer *l, Arena *a) {
    for (size_t i = 0; i < l->n_units; i++)
        if (!kept(l->units[i])) gather_weights(l->comm, l->units[i], a);
}
static void drop_layer(Layer *l, Arena *a) {
    for (size_t i = 0; i < l->n_units; i++)
        if (!kept(l->units[i])) drop_weights(l->units[i]);
    arena_free(a);
}
static void gather_and_forward(Layer *l, const Batch *b, Tensor x, Tensor y, Saved *s) {
    Arena in_flight = arena(MEM_COMMUNICATION);
    gather_layer(l, &in_flight);
    layer_forward(l->inner, b, x, y, s);
    drop_layer(l, &in_flight);
}
static void gather_and_backward(Layer *l, const Batch *b, Tensor x, Tensor dy, Tensor dx, Saved *s) {
    Arena in_flight = arena(MEM_COMMUNICATION);
    gather_layer(l, &in_flight);
    backward_and_reduce(l, b, x, dy, dx, s);
    drop_layer(l, &in_flight);
}
static const LayerKind zero3 = { "ZeRO-3 layer", gather_and_forward, gather_and_backward, NULL, NULL };

// ---------------------------------------------------------------- the model

static void allocate_unit(Model *m, Unit *u, const Zero *z, size_t offset) {
    u->own = shard_range(u->size, z->dp->size, z->dp->rank);
    if (z->stage < 3) {
        unit_attach_weights(u, tensor_flat_range(m->w, offset, offset + u->size));
        unit_initialize(u, u->w, (Range){0, u->size}, m->config.seed);
        u->own_w = tensor_flat_range(u->w, u->own.lo, u->own.hi);
    } else {
        u->own_w = tensor_new(&m->parameters, 1, range_size(u->own));
        unit_initialize(u, u->own_w, u->own, m->config.seed);
    }
    if (z->stage < 2) {
        unit_attach_gradients(u, tensor_flat_range(m->g, offset, offset + u->size));
        u->own_g = tensor_flat_range(u->g, u->own.lo, u->own.hi);
    } else {
        u->own_g = tensor_new(&m->gradients, 1, range_size(u->own));
    }
}

void zero_allocate(Model *m, Comm *dp, size_t stage) {
    REQUIRE(stage >= 1 && stage <= 3, "ZeRO has stages 1, 2 and 3, not %zu", stage);
    if (m->technique || m->w.data)
        fault("zero_allocate() of a model that is allocated: it takes model_allocate()'s place");
    Zero *z = host_alloc(sizeof *z);
    *z = (Zero){dp, stage};
    m->technique = z;
    model_measure(m);
    if (stage < 3) m->w = tensor_new(&m->parameters, 1, m->size);
    if (stage < 2) m->g = tensor_new(&m->gradients, 1, m->size);
    size_t offset = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        if (m->units[i].tied_to) continue;
        allocate_unit(m, &m->units[i], z, offset);
        offset += m->units[i].size;
    }
    Unit *wte = model_wte(m);
    if (stage < 2 && wte && wte->tied_use)
        unit_attach_gradients(wte->tied_use, tensor_new(&m->gradients, 1, wte->size));
    for (size_t i = 0; stage > 1 && i < m->n_layers; i++) layer_wrap(&m->layers[i], stage == 2 ? &zero2 : &zero3, dp);
}

void zero_gather(Model *m) {
    const Zero *z = m->technique;
    for (size_t i = 0; i < m->n_units; i++)
        if (z->stage == 3 && kept(&m->units[i]) && !m->units[i].tied_to)
            gather_weights(z->dp, &m->units[i], &m->buffers);
}

void zero_begin(Model *m) {
    const Zero *z = m->technique;
    zero_gather(m);
    model_zero_gradients(m);
    for (size_t i = 0; i < m->n_units; i++)
        if (z->stage >= 2 && kept(&m->units[i])) whole_gradients(&m->units[i], &m->buffers);
}

void zero_drop(Model *m) {
    const Zero *z = m->technique;
    if (z->stage == 1) return;
    for (size_t i = 0; i < m->n_units; i++) {
        if (!kept(&m->units[i])) continue;
        unit_attach_gradients(&m->units[i], (Tensor){0});
        if (z->stage == 3 && !m->units[i].tied_to) drop_weights(&m->units[i]);
    }
    arena_free(&m->buffers);
}

void zero_reduce(Model *m) {
    const Zero *z = m->technique;
    for (size_t i = 0; i < m->n_units; i++) {
        Unit *u = &m->units[i];
        if (u->tied_to || (z->stage >= 2 && !kept(u))) continue;
        reduce_gradients(z->dp, u);
    }
    zero_drop(m);
}

void zero_end(Model *m) {
    const Zero *z = m->technique;
    if (z->stage == 3) return;
    for (size_t i = 0; i < m->n_units; i++)        // own_w lies in w already
        if (!m->units[i].tied_to) comm_all_gather(z->dp, m->units[i].w, m->units[i].own_w);
}
